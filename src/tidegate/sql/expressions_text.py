"""The text of a live query: read by our own tokens, then parsed by sqlglot with DuckDB's grammar.

The tokens are written again for sqlglot: without comments, parameters as calls, texts in single quotes. It
takes `$1+$2` for the begin of a $-quoted text, and does not tell some forms apart that DuckDB does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from tidegate.errors import SqlInvalid
from tidegate.model.names import shorten
from tidegate.sql.expressions_kinds import refuse
from tidegate.sql.tokens import END, NUMBER, PARAM, STRING, Place, Token, scan, string_of

QUERY_CHARS_MAX = 100_000  # a filter with every id of a browser's page fits many times

_PARAMETER_CALL = "tidegate_parameter"
# What sqlglot parses by a rule of its own and is a function of ours; the others go by their name.
_PARSERS_KEPT = ("CAST", "TRY_CAST", "EXTRACT", "TRIM", "POSITION", "SUBSTRING")


class Last(NamedTuple):
    """What LAST asks for: a count, or the number of the parameter that has it."""

    number: int
    is_parameter: bool


@lru_cache(maxsize=1)
def live_dialect() -> Any:
    """Give DuckDB's grammar with function names and JSON paths left as they are written."""
    from sqlglot.dialects.duckdb import DuckDB

    class LiveQueries(DuckDB):  # type: ignore[misc]
        def to_json_path(self, path: Any) -> Any:
            return path

        class Parser(DuckDB.Parser):  # type: ignore[misc]
            FUNCTIONS: Mapping[str, Any] = {}
            FUNCTION_PARSERS = {  # noqa: RUF012
                name: rule for name, rule in DuckDB.Parser.FUNCTION_PARSERS.items() if name in _PARSERS_KEPT
            }

    return LiveQueries


def parse_live(sql: str, parameter_count: int) -> tuple[Any, Last | None]:
    """Parse one statement; gives the tree, with parameters as numbered placeholders, and its LAST."""
    from sqlglot import parse
    from sqlglot.errors import SqlglotError

    if len(sql) > QUERY_CHARS_MAX:
        reason = f"The live query is longer than {QUERY_CHARS_MAX:,} characters."
        raise refuse(reason, "Ask for less in one query, or for all rows, and filter them yourself.")
    tokens = list(_tokens(sql))
    _check_forms(sql, tokens)
    tokens, last = _without_last(sql, tokens, parameter_count)
    try:
        trees = parse(_written(sql, tokens), dialect=live_dialect())
    except SqlglotError as problem:
        raise SqlInvalid(reason=f"it cannot be read: {_first_line(problem)}.") from problem
    except RecursionError as problem:
        raise refuse("The expression is nested too deeply.", "Split it, or use IN for lists.") from problem
    found = [tree for tree in trees if tree is not None and type(tree).__name__ != "Semicolon"]
    if len(found) != 1:
        raise refuse(f"A live query is one SELECT, not {len(found)} statements.")
    return _placed(found[0]), last


def _tokens(sql: str) -> Iterator[Token]:
    """Give the tokens, parameters with their numbers."""
    place, position, marks = Place(sql, 1), 0, 0
    while (token := scan(place, position)).kind != END:
        position = token.stop
        if token.kind == PARAM:
            is_mark = sql[token.start] == "?"
            marks += is_mark
            number = marks if is_mark else int(sql[token.start + 1 : token.stop][:9])
            token = Token(PARAM, "", token.start, token.stop, number)
        yield token


def _check_forms(sql: str, tokens: Sequence[Token]) -> None:
    """Refuse what the tree does not tell apart: .5 and 0.5, x ->> 'a'::INT and (x ->> 'a')::INT.

    To DuckDB, .5 is a DECIMAL of one digit less, and :: is for the path alone.
    """
    for arrow, _, colons in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if arrow.key in ("->", "->>") and colons.key == "::":
            raise refuse(f"A cast after an arrow needs parentheses: (x {arrow.key} 'key')::….")
    for token in tokens:
        text = sql[token.start : token.stop]
        if token.kind == NUMBER and text[0] == ".":
            raise refuse(f"Write 0{text} in a live query, not {text}.")
        if token.kind == STRING and text[0] not in "'$":
            raise refuse(
                f"A text with {text[0]} before it cannot stand in a live query.", "Bind a parameter."
            )


def _without_last(sql: str, tokens: list[Token], parameter_count: int) -> tuple[list[Token], Last | None]:
    """Cut semicolons and LAST n off the end."""
    marks = sum(sql[token.start] == "?" for token in tokens if token.kind == PARAM)
    if marks > parameter_count:
        raise SqlInvalid(reason=f"it has {marks} parameters, and {parameter_count} values were given.")
    while tokens and tokens[-1].key == ";":
        tokens.pop()
    if len(tokens) < 2 or tokens[-2].key != "LAST" or tokens[-1].kind not in (NUMBER, PARAM):
        return tokens, None
    count = tokens[-1]
    if count.kind == PARAM:
        return tokens[:-2], Last(count.number, True)
    text = sql[count.start : count.stop]
    if not text.isdigit() or len(text) > 18:
        raise SqlInvalid(reason=f"LAST takes a whole number, not {shorten(text)}.")
    return tokens[:-2], Last(int(text), False)


def _written(sql: str, tokens: Sequence[Token]) -> str:
    """Write the tokens again; those that touch each other still do."""
    parts = []
    for token, following in pairwise([*tokens, Token(END, "", len(sql) + 1, len(sql) + 1)]):
        text = sql[token.start : token.stop]
        if token.kind == PARAM:
            text = f"{_PARAMETER_CALL}({token.number})"
        elif token.kind == STRING and text[0] == "$":
            text = "'" + str(string_of(text)).replace("'", "''") + "'"
        parts.append(text)
        if following.start > token.stop:
            parts.append(" ")
    return "".join(parts)


def _placed(tree: Any) -> Any:
    """Put placeholders where the calls stand that were written for parameters."""
    from sqlglot import exp

    for call in list(tree.find_all(exp.Anonymous)):
        if str(call.this) == _PARAMETER_CALL and len(call.expressions) == 1:
            call.replace(exp.Placeholder(this=call.expressions[0].name))
    return tree


def _first_line(problem: Exception) -> str:
    details = getattr(problem, "errors", None)
    if details:
        return f"{details[0]['description'].rstrip('.')} near '{shorten(str(details[0]['highlight']))}'"
    return shorten(str(problem).splitlines()[0])
