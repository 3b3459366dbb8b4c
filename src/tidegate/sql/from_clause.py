"""Tables that a query names: takes its tokens, gives namespace.table behind FROM and JOIN, as far as seen.

Without binding the query this is a guess: good enough to find out early what is asked for, not to decide
what someone may read.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.sql.cursor import RESERVED, Cursor
from tidegate.sql.statements import TableName
from tidegate.sql.tokens import QUOTED, WORD, Token, name_of

_OPENS_QUERY = frozenset({"SELECT", "WITH", "FROM", "TABLE", "VALUES", "("})
_ENDS_FROM = frozenset(
    {
        "SELECT",
        "WHERE",
        "GROUP",
        "ORDER",
        "HAVING",
        "LIMIT",
        "OFFSET",
        "WINDOW",
        "QUALIFY",
        "UNION",
        "INTERSECT",
    }
    | {"EXCEPT", "FETCH", "LAST"}
)
_NAMES_NEXT = frozenset({"JOIN", "TABLE", "SUMMARIZE", "DESCRIBE"})


def table_at(tokens: Sequence[Token], at: int) -> tuple[Token, Token] | None:
    """Give the two names where namespace.table stands at a place, and is neither longer nor a function."""
    if at + 2 >= len(tokens) or tokens[at + 1].key != ".":
        return None
    first, second = tokens[at], tokens[at + 2]
    if first.key in RESERVED or not {first.kind, second.kind} <= {WORD, QUOTED}:
        return None
    is_more = at + 3 < len(tokens) and tokens[at + 3].key in (".", "(")
    return None if is_more else (first, second)


def table_name(cursor: Cursor, found: tuple[Token, Token]) -> TableName:
    """Give the name that `table_at` has found."""
    first, second = found
    return TableName(name_of(cursor.text, first), name_of(cursor.text, second), first.start)


def named_tables(cursor: Cursor, tokens: Sequence[Token]) -> tuple[TableName, ...]:
    """Give the tables behind FROM, JOIN and the commas of a FROM, each once, in their order."""
    found: dict[TableName, None] = {}
    # For every open parenthesis: whether a query or a part of FROM is in it, and whether FROM is open there.
    levels = [(True, False)]
    is_next = False
    for at, token in enumerate(tokens):
        is_query, is_from = levels[-1]
        key = token.key
        if is_next and key != "(":
            named = table_at(tokens, at)
            if named is not None:
                found[table_name(cursor, named)] = None
        was_next, is_next = is_next, False
        if key == "(":
            opens = at + 1 < len(tokens) and tokens[at + 1].key in _OPENS_QUERY
            levels.append((opens or was_next, was_next))
            is_next = was_next
        elif key == ")":
            if len(levels) > 1:
                levels.pop()
        elif key == "FROM" and is_query and (at == 0 or tokens[at - 1].key != "DISTINCT"):
            levels[-1] = (True, True)
            is_next = True
        elif key in _NAMES_NEXT or (key == "," and is_from):
            is_next = True
        elif key in _ENDS_FROM:
            levels[-1] = (is_query, False)
    return tuple(found)
