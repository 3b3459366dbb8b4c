"""Places: takes where DuckDB found a text wrong, gives where that stands in what the caller wrote.

DuckDB gets another text than the caller's: parameters are numbered, LAST is an ORDER BY, and an UPDATE is a
SELECT around its expressions. Both texts are compared word by word. Where it is not certain what a place
belongs to, there is none: no place is better than a wrong one.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Sequence

from tidegate.errors import SqlInvalid
from tidegate.query.duckdb.names import shown_text
from tidegate.sql import statements as sql
from tidegate.sql.parser.lexer import END, PARAM, Place, Token, line_and_column, scan
from tidegate.sql.parser.select import LAST_SQL

# Longer rewritten texts are not compared: that would take tenths of a second.
COMPARED_CHARS_MAX = 64 * 1024
# What is shown of a long line, on each side of the place.
SHOWN_CHARS = 40

_JSON_START = '{"exception_type"'

Span = tuple[int, int]


class TextRefused(Exception):
    """DuckDB's words about a text that it was given; `span` is the place, in characters, if it names one."""

    def __init__(self, error: Exception, text: str) -> None:
        self.words, place = read_error(error)
        super().__init__(self.words)
        self.text = shown_text(text)
        self.span = None if place is None else _in_characters(text, place)


def read_error(error: Exception) -> tuple[str, Span | None]:
    """Return the words of an error of DuckDB, and the bytes (start and stop) of the text that it is about."""
    message = str(error)
    head, start, rest = message.partition(_JSON_START)
    if not start:
        return message, None
    try:
        told, _ = json.JSONDecoder().raw_decode(start + rest)
        place = json.loads(told["location"]) if "location" in told else None
        return head + str(told["exception_message"]), None if place is None else (place[0], sum(place))
    except (ValueError, KeyError, TypeError, IndexError):
        return message, None


def _in_characters(text: str, place: Span) -> Span | None:
    content = text.encode()
    if not content or not 0 <= place[0] <= place[1] <= len(content):
        return None
    start, stop = (len(content[:edge].decode(errors="ignore")) for edge in place)
    return start, stop


def drawn(text: str, span: Span) -> str:
    """Return the line of a place with marks below it."""
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
    """Return where in the caller's text the place stands that DuckDB names.

    None where that is not certain.
    """
    if refused.span is None:
        return None
    given, pieces = refused.text, _pieces(statement)
    if len(pieces) == 1 and _is_verbatim(pieces[0], given, text):
        shift = pieces[0].position
        return refused.span[0] + shift, refused.span[1] + shift
    if len(given) > COMPARED_CHARS_MAX:
        return None
    try:
        tokens = _tokens(given)
        first, last = _marked(tokens, refused.span)
        words = _words(given, tokens)
        found = {span for piece in pieces for span in _spans(words, first, last, piece, text)}
    except SqlInvalid:
        return None  # DuckDB reads a word here where we read none
    return found.pop() if len(found) == 1 else None


def _marked(tokens: Sequence[Token], span: Span) -> tuple[int, int]:
    """Return the first and the last token of a place; the last of all where it is behind them."""
    first = next((at for at, token in enumerate(tokens) if token.stop > span[0]), len(tokens) - 1)
    last = next((at for at in range(first, len(tokens)) if tokens[at].stop >= span[1]), first)
    return first, last


def _pieces(statement: sql.Statement) -> Sequence[sql.Fragment]:
    """Return the parts of a statement that are DuckDB's to read."""
    if isinstance(statement, (sql.ExecuteAs, sql.Explain)):
        return _pieces(statement.statement)
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


def _is_verbatim(piece: sql.Fragment, given: str, text: str) -> bool:
    """Return whether DuckDB got a piece just as it stands in the caller's text, but for the case of names."""
    return (
        len(given) == len(piece.sql)
        and given.lower() == shown_text(piece.sql).lower()
        and text.startswith(piece.sql, piece.position)
    )


def _spans(words: list[str], first: int, last: int, piece: sql.Fragment, text: str) -> Iterator[Span]:
    """Yield places in the caller's text that some words of the given one are, if they are of the piece."""
    own = _words(shown_text(piece.sql), _tokens(shown_text(piece.sql)))
    for place, word in enumerate(own):
        begin = first - place
        end = begin + len(own)
        if word != words[first] or begin < 0 or words[begin:end] != own:
            continue
        # What is put together has each piece in parentheses; a query is the whole text.
        if (begin and words[begin - 1] != "(") or (end < len(words) and words[end] != ")"):
            continue
        start = _written(text, piece, own, place)
        stop = _written(text, piece, own, min(last - begin, len(own) - 1))
        if start is not None and stop is not None:
            yield start.start, stop.stop


def _written(text: str, piece: sql.Fragment, words: Sequence[str], place: int) -> Token | None:
    """Return the token of the caller's text that a word of the piece's sql comes from."""
    source, last = Place(text, 1), _words(LAST_SQL, _tokens(LAST_SQL))
    token, at = scan(source, piece.position), 0
    while token.kind != END:
        is_last = token.key == "LAST" and words[at : at + len(last)] == last
        at += len(last) if is_last else 1
        if at > place:
            return token
        token = scan(source, token.stop)
    return None


def _tokens(text: str) -> list[Token]:
    source, found = Place(text, 1), []
    token = scan(source, 0)
    while token.kind != END:
        found.append(token)
        token = scan(source, token.stop)
    return found


def _words(text: str, tokens: Sequence[Token]) -> list[str]:
    """Return what tokens are compared by: all parameters are alike, as they are numbered anew."""
    return ["$" if token.kind == PARAM else text[token.start : token.stop].upper() for token in tokens]
