"""Positions of errors: from where DuckDB found its text wrong to the same position in the caller's text.

DuckDB gets another text than the caller's: parameters are numbered, LAST is an ORDER BY, and an UPDATE is a
SELECT around its expressions. Both texts are compared word by word. Where it is not certain what a position
belongs to, there is none: no position is better than a wrong one.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Sequence

from tidegate.errors import SqlInvalid
from tidegate.query.duckdb.names import shown_text
from tidegate.sql import statements as sql
from tidegate.sql.parser.lexer import END, PARAM, SourceText, SqlToken, line_and_column, scan
from tidegate.sql.parser.select import LAST_SQL

# Longer rewritten texts are not compared: that would take tenths of a second.
COMPARED_CHARS_MAX = 64 * 1024
# Characters of a long line that are shown on each side of the position.
SHOWN_CHARS = 40

_JSON_START = '{"exception_type"'

Span = tuple[int, int]


class EngineError(Exception):
    """An error of DuckDB or Arrow in the process that ran the statement; `kind` is the name of its class."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class TextRefused(Exception):
    """DuckDB's error about a text; `span` is its position, in characters, if it has one."""

    def __init__(self, message: str, text: str, span: Span | None) -> None:
        super().__init__(message)
        self.message = message
        self.text = text
        self.span = span

    @classmethod
    def of(cls, error: Exception, text: str) -> TextRefused:
        """Return the error with which a text was refused."""
        message, location = read_error(error)
        span = None if location is None else _in_characters(text, location)
        return cls(message, shown_text(text), span)

    @classmethod
    def at(cls, message: str, text: str, location: Span) -> TextRefused:
        """Return the error of a position, in bytes, that DuckDB's tree has."""
        return cls(message, shown_text(text), _in_characters(text, location))


def read_error(error: Exception) -> tuple[str, Span | None]:
    """Return the message of an error of DuckDB, and its position in the text, in bytes (start and stop)."""
    message = str(error)
    head, start, rest = message.partition(_JSON_START)
    if not start:
        return message, None
    try:
        details, _ = json.JSONDecoder().raw_decode(start + rest)
        location = json.loads(details["location"]) if "location" in details else None
        return head + str(details["exception_message"]), None if location is None else (
            location[0],
            sum(location),
        )
    except (ValueError, KeyError, TypeError, IndexError):
        return message, None


def _in_characters(text: str, location: Span) -> Span | None:
    content = text.encode()
    if not content or not 0 <= location[0] <= location[1] <= len(content):
        return None
    start, stop = (len(content[:edge].decode(errors="ignore")) for edge in location)
    return start, stop


def drawn(text: str, span: Span) -> str:
    """Return the line of a span with marks below it."""
    start, stop = span
    line, column = line_and_column(text, start)
    begin = start - column + 1
    end = text.find("\n", start)
    end = len(text) if end < 0 else end
    first, last = max(begin, start - SHOWN_CHARS), min(end, start + SHOWN_CHARS)
    head = f"LINE {line}: " + "..." * (first > begin)
    shown = "".join(letter if letter.isprintable() else " " for letter in text[first:last])
    before, marked = shown[: start - first], shown[start - first : max(stop, start + 1) - first]
    marks = "^" * max(_width(marked), 1)
    return f"{head}{shown}{'...' * (last < end)}\n{' ' * (len(head) + _width(before))}{marks}"


def _width(shown: str) -> int:
    """Return how many columns of a terminal a text takes."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in shown)
    return len(shown) + wide - sum(bool(unicodedata.combining(letter)) for letter in shown)


def written_span(refused: TextRefused, text: str, statement: sql.Statement) -> Span | None:
    """Return the position in the caller's text that DuckDB's means; None where that is not certain."""
    if refused.span is None:
        return None
    sql_text, fragments = refused.text, _fragments(statement)
    if len(fragments) == 1 and _is_verbatim(fragments[0], sql_text, text):
        shift = fragments[0].position
        return refused.span[0] + shift, refused.span[1] + shift
    if len(sql_text) > COMPARED_CHARS_MAX:
        return None
    try:
        tokens = _tokens(sql_text)
        first, last = _marked(tokens, refused.span)
        words = _words(sql_text, tokens)
        found = {span for fragment in fragments for span in _spans(words, first, last, fragment, text)}
    except SqlInvalid:
        return None  # DuckDB has a token where our lexer has none
    return found.pop() if len(found) == 1 else None


def _marked(tokens: Sequence[SqlToken], span: Span) -> tuple[int, int]:
    """Return the first and the last token of a span; the last of all where it is behind them."""
    first = next((at for at, token in enumerate(tokens) if token.stop > span[0]), len(tokens) - 1)
    last = next((at for at in range(first, len(tokens)) if tokens[at].stop >= span[1]), first)
    return first, last


def _fragments(statement: sql.Statement) -> Sequence[sql.Fragment]:
    """Return the fragments of a statement that DuckDB parses."""
    if isinstance(statement, (sql.ExecuteAs, sql.Explain)):
        return _fragments(statement.statement)
    if isinstance(statement, sql.Select):
        return [statement.query]
    if isinstance(statement, sql.Insert):
        if statement.query is not None:
            return [statement.query]
        cells = (cell for row in statement.fragments or () for cell in row)
        return [cell for cell in cells if isinstance(cell, sql.Fragment)]
    if isinstance(statement, (sql.Update, sql.Delete)):
        assignments = statement.assignments if isinstance(statement, sql.Update) else ()
        where = [] if statement.where is None else [statement.where.fragment]
        return [*(fragment for _, fragment in assignments), *where]
    return []


def _is_verbatim(fragment: sql.Fragment, sql_text: str, text: str) -> bool:
    """Return whether DuckDB's text is a fragment of the caller's text, but for the case of names."""
    return (
        len(sql_text) == len(fragment.sql)
        and sql_text.lower() == shown_text(fragment.sql).lower()
        and text.startswith(fragment.sql, fragment.position)
    )


def _spans(words: list[str], first: int, last: int, fragment: sql.Fragment, text: str) -> Iterator[Span]:
    """Yield the spans in the caller's text of some words of DuckDB's, if they are of the fragment."""
    own = _words(shown_text(fragment.sql), _tokens(shown_text(fragment.sql)))
    for place, word in enumerate(own):
        begin = first - place
        end = begin + len(own)
        if word != words[first] or begin < 0 or words[begin:end] != own:
            continue
        # A composed text has each fragment in parentheses; a query is the whole text.
        if (begin and words[begin - 1] != "(") or (end < len(words) and words[end] != ")"):
            continue
        start = _written(text, fragment, own, place)
        stop = _written(text, fragment, own, min(last - begin, len(own) - 1))
        if start is not None and stop is not None:
            yield start.start, stop.stop


def _written(text: str, fragment: sql.Fragment, words: Sequence[str], place: int) -> SqlToken | None:
    """Return the token of the caller's text that a word of the fragment's SQL comes from."""
    source, last = SourceText(text, 1), _words(LAST_SQL, _tokens(LAST_SQL))
    token, at = scan(source, fragment.position), 0
    while token.kind != END:
        is_last = token.key == "LAST" and words[at : at + len(last)] == last
        at += len(last) if is_last else 1
        if at > place:
            return token
        token = scan(source, token.stop)
    return None


def _tokens(text: str) -> list[SqlToken]:
    source, found = SourceText(text, 1), []
    token = scan(source, 0)
    while token.kind != END:
        found.append(token)
        token = scan(source, token.stop)
    return found


def _words(text: str, tokens: Sequence[SqlToken]) -> list[str]:
    """Return the words by which tokens are compared: all parameters are equal, as their numbers change."""
    return ["$" if token.kind == PARAM else text[token.start : token.stop].upper() for token in tokens]
