"""Fragments: takes the tokens of an expression, gives its sql with numbered parameters, and its meaning.

An expression is not checked here beyond its parentheses: DuckDB does that. What is recognised are constants,
parameters, the three calls that give new values, and conditions that are nothing but equalities.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from tidegate.model.tables import DefaultKind
from tidegate.sql.parser.cursor import CLOSING, NESTING_MAX, OPENING, RESERVED, Cursor
from tidegate.sql.parser.lexer import (
    END,
    NUMBER,
    PARAM,
    QUOTED,
    STRING,
    WORD,
    Token,
    name_of,
    number_of,
    shown,
    string_of,
)
from tidegate.sql.statements import USE_DEFAULT, Call, Cell, Fragment, Literal, Param, Simple, Where

CONSTANTS = {"NULL": Literal(None), "TRUE": Literal(True), "FALSE": Literal(False)}
CALLS = {
    "NOW": Call(DefaultKind.NOW),
    "SNOWFLAKE_ID": Call(DefaultKind.SNOWFLAKE_ID),
    "UUID_V7": Call(DefaultKind.UUID_V7),
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


def collect(cursor: Cursor, stops: Collection[str] = ()) -> list[Token]:
    """Step over tokens up to the statement's end, or to a stop outside of parentheses, and give them.

    A closing parenthesis that was not opened here stops, too. SqlInvalid where parentheses do not match.
    """
    found: list[Token] = []
    opened: list[Token] = []
    while True:
        token = cursor.token
        key = token.key
        if token.kind == END or key == ";":
            if opened:
                raise _unclosed(cursor, opened[-1])
            return found
        if not opened and (key in CLOSING or key in stops):
            return found
        if key in OPENING:
            opened.append(token)
            if len(opened) > NESTING_MAX:
                reason = f"parentheses nest deeper than {NESTING_MAX}"
                raise cursor.error(reason, token.start, "Write it with fewer, or in several statements.")
        elif key in CLOSING:
            if OPENING[opened[-1].key] != key:
                raise _unclosed(cursor, opened[-1])
            opened.pop()
        found.append(cursor.advance())


def _unclosed(cursor: Cursor, opening: Token) -> Exception:
    hint = f"The '{opening.key}' is in {_spot(cursor, opening)}; close it with '{OPENING[opening.key]}'."
    return cursor.expected([OPENING[opening.key]], hint=hint)


def _spot(cursor: Cursor, token: Token) -> str:
    error = cursor.error("", token.start)
    return f"line {error.values['line']}, column {error.values['column']}"


def expression_tokens(cursor: Cursor, noun: str, stops: Collection[str] = ()) -> list[Token]:
    """Step over an expression and give its tokens; SqlInvalid where there is none, or a comma is missing."""
    tokens = collect(cursor, stops)
    if not tokens:
        raise cursor.expected(noun)
    _check_neighbours(cursor, tokens)
    return tokens


def _check_neighbours(cursor: Cursor, tokens: Sequence[Token]) -> None:
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


def expression(cursor: Cursor, noun: str, stops: Collection[str] = ()) -> Fragment:
    """Step over an expression and give it; SqlInvalid where there is none."""
    return fragment_of(cursor, expression_tokens(cursor, noun, stops))


def fragment_of(cursor: Cursor, tokens: Sequence[Token]) -> Fragment:
    """Return the fragment of an expression's tokens."""
    sql, params = sql_of(cursor.text, tokens)
    return Fragment(sql, params, simple_of(cursor, tokens), tokens[0].start)


def sql_of(
    text: str, tokens: Sequence[Token], edits: Mapping[int, str] | None = None
) -> tuple[str, tuple[int, ...]]:
    """Return the text of tokens with parameters written $n, and their numbers.

    `edits` rewrites some by place.

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
    cursor, pieces, done = Cursor(fragment.sql), [], 0
    while cursor.token.kind != END:
        token = cursor.advance()
        if token.kind == PARAM:
            pieces += [fragment.sql[done : token.start], written[token.number]]
            done = token.stop
    return "".join([*pieces, fragment.sql[done:]])


def simple_of(cursor: Cursor, tokens: Sequence[Token]) -> Simple | None:
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


def cell_of(cursor: Cursor, tokens: Sequence[Token]) -> Cell | None:
    """Return what `simple_of` gives, and DEFAULT, which stands in a list of values alone."""
    if len(tokens) == 1 and tokens[0].key == "DEFAULT":
        return USE_DEFAULT
    return simple_of(cursor, tokens)


def _number(cursor: Cursor, first: Token, last: Token) -> Literal:
    value = number_of(cursor.text[first.start : last.stop])
    if value is None:
        found = shown(cursor.place, last)
        raise cursor.error(f"the number {found} is too large", first.start, "No column type holds it.")
    return Literal(value)


def _text(cursor: Cursor, token: Token) -> Literal | None:
    value = string_of(cursor.text[token.start : token.stop])
    return None if value is None else Literal(value)


def where(cursor: Cursor, stops: Collection[str] = ()) -> Where | None:
    """Step over WHERE and its condition, where it stands here, and give it."""
    if not cursor.take("WHERE"):
        return None
    tokens = expression_tokens(cursor, "a condition", stops)
    return Where(fragment_of(cursor, tokens), equalities(cursor, tokens))


def equalities(cursor: Cursor, tokens: Sequence[Token]) -> dict[str, Simple] | None:
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


def column_of(cursor: Cursor, token: Token) -> str | None:
    """Return the column that a token alone names, or None."""
    if token.kind == QUOTED or (token.kind == WORD and token.key not in _NOT_COLUMNS):
        return name_of(cursor.text, token) or None
    return None
