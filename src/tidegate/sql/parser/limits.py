"""Limits of the text that DuckDB has to parse: its length, its lists, its names and its set operations.

What it costs to parse and bind a statement grows with these, and faster than its text. They are checked on
the tokens of the parser, which are counted while they are read (`cursor.STATEMENT_TOKENS_MAX`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.sql.parser.cursor import CLOSING, NESTING_MAX, OPENING, TokenCursor
from tidegate.sql.parser.lexer import SqlToken

QUERY_CHARS_MAX = 1_000_000  # DuckDB's parser takes some kilobytes for each kilobyte of text
COLUMNS_MAX = 2_000  # as of a table; so many take DuckDB a tenth of a second
SET_OPERATIONS_MAX = 500  # each is bound within the one before

_SET_OPERATIONS = frozenset({"UNION", "EXCEPT", "INTERSECT"})
_VALUES_HINT = "Bind values as parameters; a list is one value: x = ANY (?)."


def check_query(cursor: TokenCursor, tokens: Sequence[SqlToken]) -> None:
    """Raise SqlInvalid, with the limit, where a query or an expression is too much for DuckDB."""
    if tokens[-1].stop - tokens[0].start > QUERY_CHARS_MAX:
        reason = f"a query or an expression is longer than {QUERY_CHARS_MAX} characters"
        raise cursor.error(reason, tokens[0].start, _VALUES_HINT)
    if len(tokens) > NESTING_MAX:
        _check_names(cursor, tokens)
    if len(tokens) > SET_OPERATIONS_MAX:
        _check_set_operations(cursor, tokens)
    if len(tokens) > COLUMNS_MAX:
        _check_lists(cursor, tokens)


def _check_names(cursor: TokenCursor, tokens: Sequence[SqlToken]) -> None:
    parts = 0
    for at in range(1, len(tokens)):
        if tokens[at].key == ".":
            parts = parts + 1 if tokens[at - 2].key == "." and at > 1 else 1
            if parts == NESTING_MAX:
                raise cursor.error(f"a name has more than {NESTING_MAX} parts", tokens[at].start)


def _check_set_operations(cursor: TokenCursor, tokens: Sequence[SqlToken]) -> None:
    count = 0
    for token in tokens:
        count += token.key in _SET_OPERATIONS
        if count > SET_OPERATIONS_MAX:
            reason = f"there are more than {SET_OPERATIONS_MAX} UNION, EXCEPT and INTERSECT"
            raise cursor.error(reason, token.start, "Write the rows as VALUES, or bind a list.")


def _check_lists(cursor: TokenCursor, tokens: Sequence[SqlToken]) -> None:
    """Count what is between commas behind SELECT, FROM and BY, and in a row of VALUES."""
    # For every open bracket: the word whose list it has, and how many commas came since that word.
    levels: list[tuple[str, int]] = [("", 0)]
    before = ""
    for token in tokens:
        key = token.key
        word, commas = levels[-1]
        if key in OPENING:
            levels.append(("ROW" if word == "VALUES" and before in ("VALUES", ",") else "", 0))
        elif key in CLOSING:
            if len(levels) > 1:
                levels.pop()
        elif key in ("SELECT", "FROM", "BY", "VALUES") and before not in (".", "AS", "DISTINCT"):
            levels[-1] = (key, 0)
        elif key == "," and word not in ("", "VALUES"):
            levels[-1] = (word, commas + 1)
            if commas + 1 == COLUMNS_MAX:
                reason = f"a list of columns has more than {COLUMNS_MAX}"
                raise cursor.error(reason, token.start, "Select fewer, or bind a list as one parameter.")
        before = key
