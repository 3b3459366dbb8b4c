"""Fragments: expressions as SQL text with numbered parameters, and the constants that some of them are.

An expression is not checked beyond its parentheses: DuckDB does that. Constants, parameters, the three calls
that make new values, and conditions that are nothing but equalities are recognised.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from tidegate.model.tables import DefaultKind
from tidegate.sql.parser.cursor import CLOSING, NESTING_MAX, OPENING, RESERVED, TokenCursor
from tidegate.sql.parser.lexer import (
    END,
    NUMBER,
    PARAM,
    QUOTED,
    STRING,
    WORD,
    SqlToken,
    name_of,
    number_of,
    shown,
    string_of,
)
from tidegate.sql.parser.limits import check_query
from tidegate.sql.statements import USE_DEFAULT, Cell, Fragment, FunctionCall, Literal, Param, Simple, Where

CONSTANTS = {"NULL": Literal(None), "TRUE": Literal(True), "FALSE": Literal(False)}
CALLS = {
    "NOW": FunctionCall(DefaultKind.NOW),
    "SNOWFLAKE_ID": FunctionCall(DefaultKind.SNOWFLAKE_ID),
    "UUID_V7": FunctionCall(DefaultKind.UUID_V7),
}
# TIMESTAMP '…' means what the text means once the column's type is known.
_TYPED_TEXTS = frozenset({"TIMESTAMP", "TIMESTAMPTZ", "DATE"})
# Two of these never follow each other, but for strings on two lines.
_VALUES = frozenset({NUMBER, STRING, PARAM})
# What begins something else than a value, outside of parentheses.
_CLAUSES = frozenset(
    {"SELECT", "FROM", "WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "OFFSET", "JOIN", "INTO", "DEFAULT"}
    | {"UNION", "INTERSECT", "EXCEPT", "QUALIFY", "WINDOW", "RETURNING"}
)
# Words that are no columns although they may be written like one.
_NOT_COLUMNS = RESERVED | {
    "CURRENT_DATE",
    "CURRENT_TIME",
    "CURRENT_TIMESTAMP",
    "CURRENT_USER",
    "LOCALTIMESTAMP",
}


def collect(cursor: TokenCursor, stops: Collection[str] = ()) -> list[SqlToken]:
    """Consume tokens up to the statement's end, or to a stop outside of parentheses, and return them.

    A closing parenthesis that was not opened here stops, too. SqlInvalid where parentheses do not match.
    """
    found: list[SqlToken] = []
    open_brackets: list[SqlToken] = []
    room = cursor.tokens_left
    while True:
        token = cursor.token
        key = token.key
        is_end = token.kind == END or key == ";"
        if is_end and open_brackets:
            raise _unclosed(cursor, open_brackets[-1])
        if is_end or (not open_brackets and (key in CLOSING or key in stops)):
            cursor.tokens_left -= len(found)
            return found
        if len(found) == room:
            raise cursor.too_many_tokens(token.start)
        if key in OPENING:
            open_brackets.append(token)
            if len(open_brackets) > NESTING_MAX:
                reason = f"parentheses nest deeper than {NESTING_MAX}"
                raise cursor.error(reason, token.start, "Write it with fewer, or in several statements.")
        elif key in CLOSING:
            if OPENING[open_brackets[-1].key] != key:
                raise _unclosed(cursor, open_brackets[-1])
            open_brackets.pop()
        found.append(cursor.advance())


def _unclosed(cursor: TokenCursor, opening: SqlToken) -> Exception:
    hint = f"The '{opening.key}' is in {_spot(cursor, opening)}; close it with '{OPENING[opening.key]}'."
    return cursor.expected([OPENING[opening.key]], hint=hint)


def _spot(cursor: TokenCursor, token: SqlToken) -> str:
    error = cursor.error("", token.start)
    return f"line {error.values['line']}, column {error.values['column']}"


def expression_tokens(cursor: TokenCursor, noun: str, stops: Collection[str] = ()) -> list[SqlToken]:
    """Consume an expression and return its tokens; SqlInvalid where there is none, or a comma is missing."""
    tokens = collect(cursor, stops)
    if not tokens:
        raise cursor.expected(noun)
    _check_neighbours(cursor, tokens)
    return tokens


def _check_neighbours(cursor: TokenCursor, tokens: Sequence[SqlToken]) -> None:
    """Raise SqlInvalid where two values follow each other, or a clause begins inside an expression."""
    if tokens[0].key == "DEFAULT" and len(tokens) > 1:
        raise cursor.found_at("nothing behind DEFAULT", tokens[1])
    depth = 0
    for before, token in pairwise(tokens):
        depth += (before.key in OPENING) - (before.key in CLOSING)
        if before.kind in _VALUES and token.kind in _VALUES and not before.kind == token.kind == STRING:
            raise cursor.found_at("',' or an operator", token)
        if depth == 0 and token.key in _CLAUSES and before.key not in ("DISTINCT", "."):
            raise cursor.found_at("an operator or the end of the expression", token)


def expression(cursor: TokenCursor, noun: str, stops: Collection[str] = ()) -> Fragment:
    """Consume an expression and return it; SqlInvalid where there is none."""
    return fragment_of(cursor, expression_tokens(cursor, noun, stops))


def fragment_of(cursor: TokenCursor, tokens: Sequence[SqlToken]) -> Fragment:
    """Return the fragment of an expression's tokens."""
    simple = simple_of(cursor, tokens)
    if simple is None:
        check_query(cursor, tokens)
    sql, params = sql_of(cursor.text, tokens)
    return Fragment(sql, params, simple, tokens[0].start)


def sql_of(
    text: str, tokens: Sequence[SqlToken], edits: Mapping[int, str] | None = None
) -> tuple[str, tuple[int, ...]]:
    """Return the text of tokens with parameters written $n, and their numbers.

    `edits` replaces some, by their position in `tokens`.

    DuckDB takes AT without quotes only for AT TIME ZONE and AT (VERSION …), so a column of that name is
    quoted.
    """
    pieces: list[str] = []
    params: dict[int, None] = {}
    done = tokens[0].start
    for place, token in enumerate(tokens):
        if edits and place in edits:
            written = edits[place]
        elif token.kind == PARAM:
            params[token.number] = None
            written = f"${token.number}"
        elif token.key == "AT" and not (place + 1 < len(tokens) and tokens[place + 1].key in ("TIME", "(")):
            written = '"at"'
        else:
            continue
        pieces += (text[done : token.start], written)
        done = token.stop
    pieces.append(text[done : tokens[-1].stop])
    return "".join(pieces), tuple(params)


def renumbered(fragments: Sequence[Fragment]) -> tuple[list[str], tuple[int, ...]]:
    """Return the sql of some fragments of a statement with parameters from $1 on, and which ones those are.

    For running a part of a statement: its own $1 is the parameter of the statement that comes first.
    """
    numbers = tuple(sorted({number for fragment in fragments for number in fragment.params}))
    written = {number: f"${new}" for new, number in enumerate(numbers, start=1)}
    return [_rewritten(fragment, written) for fragment in fragments], numbers


def _rewritten(fragment: Fragment, written: Mapping[int, str]) -> str:
    if not fragment.params:
        return fragment.sql
    cursor, pieces, done = TokenCursor(fragment.sql), [], 0
    while cursor.token.kind != END:
        token = cursor.advance()
        if token.kind == PARAM:
            pieces += [fragment.sql[done : token.start], written[token.number]]
            done = token.stop
    return "".join([*pieces, fragment.sql[done:]])


def simple_of(cursor: TokenCursor, tokens: Sequence[SqlToken]) -> Simple | None:
    """Return the constant, parameter or call that the tokens are, or None where they are something else."""
    first = tokens[0]
    if len(tokens) == 1:
        if first.kind == PARAM:
            return Param(first.number)
        if first.kind == NUMBER:
            return _number(cursor, first, first)
        if first.kind == STRING:
            return _text(cursor, first)
        return CONSTANTS.get(first.key)
    if len(tokens) == 2:
        second = tokens[1]
        # A sign directly before a number; with a comment between them it is left to DuckDB.
        if first.key in ("-", "+") and second.kind == NUMBER and first.stop == second.start:
            return _number(cursor, first, second)
        if first.key in _TYPED_TEXTS and second.kind == STRING:
            literal = _text(cursor, second)
            return literal if literal is not None and isinstance(literal.value, str) else None
    if len(tokens) == 3 and tokens[1].key == "(" and tokens[2].key == ")":
        return CALLS.get(first.key)
    return None


def cell_of(cursor: TokenCursor, tokens: Sequence[SqlToken]) -> Cell | None:
    """Return what `simple_of` returns, and DEFAULT, which only a list of values can have."""
    if len(tokens) == 1 and tokens[0].key == "DEFAULT":
        return USE_DEFAULT
    return simple_of(cursor, tokens)


def _number(cursor: TokenCursor, first: SqlToken, last: SqlToken) -> Literal:
    value = number_of(cursor.text[first.start : last.stop])
    if value is None:
        found = shown(cursor.source, last)
        raise cursor.error(f"the number {found} is too large", first.start, "No column type holds it.")
    return Literal(value)


def _text(cursor: TokenCursor, token: SqlToken) -> Literal | None:
    value = string_of(cursor.text[token.start : token.stop])
    return None if value is None else Literal(value)


def where(cursor: TokenCursor, stops: Collection[str] = ()) -> Where | None:
    """Consume WHERE and its condition, if it is next, and return it."""
    if not cursor.take("WHERE"):
        return None
    tokens = expression_tokens(cursor, "a condition", stops)
    return Where(fragment_of(cursor, tokens), equalities(cursor, tokens))


def equalities(cursor: TokenCursor, tokens: Sequence[SqlToken]) -> dict[str, Simple] | None:
    """Return `column = simple AND column = simple …` by column; None where the tokens are anything else.

    A comparison with NULL is never true, and a column that is compared twice has two values: both are left
    to DuckDB.
    """
    found: dict[str, Simple] = {}
    at = 0
    while True:
        column = column_of(cursor, tokens[at]) if at + 2 < len(tokens) else None
        if column is None or tokens[at + 1].key != "=":
            return None
        stop = at + 2
        while stop < len(tokens) and tokens[stop].key != "AND":
            stop += 1
        simple = simple_of(cursor, tokens[at + 2 : stop]) if stop > at + 2 else None
        if simple is None or simple == CONSTANTS["NULL"] or column in found:
            return None
        found[column] = simple
        if stop == len(tokens):
            return found
        at = stop + 1


def column_of(cursor: TokenCursor, token: SqlToken) -> str | None:
    """Return the column that a token alone names, or None."""
    if token.kind == QUOTED or (token.kind == WORD and token.key not in _NOT_COLUMNS):
        return name_of(cursor.text, token) or None
    return None
