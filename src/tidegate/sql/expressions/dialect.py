"""The text of a live query: read by our lexer, then parsed by sqlglot with DuckDB's grammar.

The tokens are written again for sqlglot: without comments, parameters as calls, texts in single quotes. It
takes `$1+$2` for the beginning of a $-quoted text, and does not distinguish some forms that DuckDB does. Some
names of columns are keywords to it, so they are quoted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from tidegate.errors import SqlInvalid
from tidegate.model.names import shorten
from tidegate.sql.expressions.types import refuse
from tidegate.sql.parser.lexer import (
    END,
    NUMBER,
    PARAM,
    QUOTED,
    SIGN,
    STRING,
    SourceText,
    SqlToken,
    fold,
    scan,
    shown,
    string_of,
)

QUERY_CHARS_MAX = 100_000  # a filter with every id of a browser's page fits many times

_PARAMETER_CALL = "tidegate_parameter"
# Functions that keep sqlglot's own parsing rule; all others are parsed as plain calls.
_STANDARD_PARSERS = ("CAST", "TRY_CAST", "EXTRACT", "TRIM", "POSITION", "SUBSTRING")
# Words that DuckDB takes as names of columns, and sqlglot as keywords.
_QUOTED_FOR_IT = frozenset(
    {
        "ALTER",
        "CURRENT_USER",
        "DROP",
        "FORCE",
        "GRANT",
        "IF",
        "INSERT",
        "INSTALL",
        "MAP",
        "REVOKE",
        "ROLLBACK",
    }
)
# Behind these and behind a sign BETWEEN is the name of a column.
_BEFORE_NAMES = frozenset({"SELECT", "WHERE", "AND", "OR", "BETWEEN", "CASE", "WHEN", "THEN", "ELSE"})
_NAMES_HINT = 'A name that is a word of SQL is written in double quotes: "order".'


class Last(NamedTuple):
    """The n of LAST n: a count, or the number of the parameter that has it."""

    number: int
    is_parameter: bool


@lru_cache(maxsize=1)
def live_dialect() -> Any:
    """Return DuckDB's grammar with function names and JSON paths left as they are written."""
    from sqlglot.dialects.duckdb import DuckDB

    class LiveQueries(DuckDB):  # type: ignore[misc]
        def to_json_path(self, path: Any) -> Any:
            return path

        class Parser(DuckDB.Parser):  # type: ignore[misc]
            FUNCTIONS: Mapping[str, Any] = {}
            FUNCTION_PARSERS = {  # noqa: RUF012
                name: rule
                for name, rule in DuckDB.Parser.FUNCTION_PARSERS.items()
                if name in _STANDARD_PARSERS
            }

    return LiveQueries


def parse_live(sql: str, parameter_count: int, columns: Collection[str] = ()) -> tuple[Any, Last | None]:
    """Parse one statement; return the tree, with parameters as numbered placeholders, and its LAST.

    `columns` are the names of the table's columns, folded.
    """
    from sqlglot import parse
    from sqlglot.errors import SqlglotError

    if len(sql) > QUERY_CHARS_MAX:
        reason = f"The live query is longer than {QUERY_CHARS_MAX:,} characters."
        raise refuse(reason, "Ask for less in one query, or for all rows, and filter them yourself.")
    tokens = list(_tokens(sql))
    _check_forms(sql, tokens)
    tokens, last = _without_last(sql, tokens, parameter_count)
    parts = _written(sql, tokens, columns)
    try:
        trees = parse("".join(parts), dialect=live_dialect())
    except SqlglotError as problem:
        raise _unread(problem, sql, tokens, parts) from problem
    except RecursionError as problem:
        raise refuse("The expression is nested too deeply.", "Split it, or use IN for lists.") from problem
    found = [tree for tree in trees if tree is not None and type(tree).__name__ != "Semicolon"]
    if len(found) != 1:
        raise refuse(f"A live query is one SELECT, not {len(found)} statements.")
    return _with_placeholders(found[0]), last


def _tokens(sql: str) -> Iterator[SqlToken]:
    """Yield the tokens, parameters with their numbers."""
    source, position, marks = SourceText(sql, 1), 0, 0
    while (token := scan(source, position)).kind != END:
        position = token.stop
        if token.kind == PARAM:
            is_mark = sql[token.start] == "?"
            marks += is_mark
            number = marks if is_mark else int(sql[token.start + 1 : token.stop][:9])
            token = SqlToken(PARAM, "", token.start, token.stop, number)
        yield token


def _check_forms(sql: str, tokens: Sequence[SqlToken]) -> None:
    """Refuse what is the same in the tree: .5 and 0.5, x ->> 'a'::INT and (x ->> 'a')::INT.

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
                f"A text with {text[0]} before it cannot be used in a live query.", "Bind a parameter."
            )


def _without_last(
    sql: str, tokens: list[SqlToken], parameter_count: int
) -> tuple[list[SqlToken], Last | None]:
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


def _written(sql: str, tokens: Sequence[SqlToken], columns: Collection[str]) -> list[str]:
    """Write each token again; those that touch each other still do."""
    parts = []
    before = SqlToken(END, "", 0, 0)
    for token, following in pairwise([*tokens, SqlToken(END, "", len(sql) + 1, len(sql) + 1)]):
        text = sql[token.start : token.stop]
        if token.kind == PARAM:
            text = f"{_PARAMETER_CALL}({token.number})"
        elif token.kind == STRING and text[0] == "$":
            text = "'" + str(string_of(text)).replace("'", "''") + "'"
        elif _is_column(token, before, following) and fold(text) in columns:
            text = f'"{text}"'
        parts.append(text + " " if following.start > token.stop else text)
        before = SqlToken(QUOTED, "", token.start, token.stop) if text[0] == '"' else token
    return parts


def _is_column(token: SqlToken, before: SqlToken, following: SqlToken) -> bool:
    """Return whether a word that sqlglot knows is the name of a column, if there is one."""
    if token.key == "BETWEEN":
        return before.key in _BEFORE_NAMES or (before.kind == SIGN and before.key != ")")
    return token.key in _QUOTED_FOR_IT and following.key != "("


def _with_placeholders(tree: Any) -> Any:
    """Replace the calls that were written for parameters by placeholders."""
    from sqlglot import exp

    for call in list(tree.find_all(exp.Anonymous)):
        if str(call.this) == _PARAMETER_CALL and len(call.expressions) == 1:
            call.replace(exp.Placeholder(this=call.expressions[0].name))
    return tree


def _unread(problem: Exception, sql: str, tokens: Sequence[SqlToken], parts: Sequence[str]) -> SqlInvalid:
    """Return the error for a text that sqlglot does not take, with the position in the caller's text."""
    details = getattr(problem, "errors", None)
    if not details or not tokens:
        return SqlInvalid(reason="it cannot be read.", hint=_NAMES_HINT)
    found, source = details[0], SourceText(sql, 1)
    token = tokens[_at(parts, int(found["line"]), int(found["col"]))]
    description = str(found["description"])
    expectation = description.removeprefix("Expecting ")
    context = "near" if expectation == description else f"expected {expectation} near"
    return source.error(f"it cannot be read, {context} {shown(source, token)}", token.start, _NAMES_HINT)


def _at(parts: Sequence[str], line: int, column: int) -> int:
    """Return the number of the part that ends at a line and column, both from 1, of all parts together."""
    lines = "".join(parts).split("\n")
    position = sum(len(each) + 1 for each in lines[: line - 1]) + column - 1
    stop = 0
    for number, part in enumerate(parts):
        stop += len(part)
        if position < stop:
            return number
    return len(parts) - 1
