"""Values of clauses: takes a cursor behind a word, gives the value that stands there, checked, or a Param."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidegate.errors import DurationInvalid, SqlInvalid, TimeRangeInvalid
from tidegate.model.durations import Duration, parse_duration
from tidegate.model.names import TOPIC_SEGMENTS_MAX, shorten
from tidegate.model.timeranges import parse_time
from tidegate.sql.cursor import Cursor
from tidegate.sql.statements import Param
from tidegate.sql.tokens import NUMBER, PARAM, QUOTED, STRING, WORD, name_of, number_of, shown, string_of
from tidegate.sql.topic_statements import Number, Span, StartAt, Text, TopicName

NUMBER_MAX = 2**63 - 1  # offsets, sequences and sizes are 64-bit numbers at rest
AFTER_LEAST = -1  # after -1 is from the first offset on: where a reader stands that has seen none
_STARTS = ("EARLIEST", "LATEST", "OFFSET", "AFTER", "TIMESTAMP")
_DURATIONS = "'5 s', '250 ms', '15 min'"
# What to do where there is no text to write.
_WITHOUT = {
    "KEY": "Leave KEY out. ",
    "DEDUP KEY": "Leave DEDUP KEY out. ",
    "DEDUP KEYS": "Rows without a key are published by a statement of their own, without DEDUP KEYS. ",
}


def topic_name(cursor: Cursor) -> TopicName:
    """Step over a topic's name, part by part, and give it."""
    position = cursor.token.start
    if cursor.token.kind == STRING:
        raise cursor.expected("a topic", hint=f"Names are written without quotes. {cursor.syntax}")
    parts = [cursor.name("a topic")]
    while cursor.take("."):
        if cursor.token.kind not in (WORD, QUOTED):
            raise cursor.expected("the next part of the topic's name")
        parts.append(name_of(cursor.text, cursor.advance()))
    name = ".".join(parts)
    # One part more: dead letters of a topic are in '<topic>.dead'.
    if len(parts) > TOPIC_SEGMENTS_MAX + 1:
        reason = f"the name of the topic '{shorten(name)}' has {len(parts)} parts"
        raise cursor.error(reason, position, f"It has {TOPIC_SEGMENTS_MAX} at most.")
    if cursor.is_at("-"):
        hint = f"A part with '-' is written in double quotes: \"{shorten(parts[-1])}-…\"."
        raise cursor.error("the name of the topic ends before '-'", cursor.token.start, hint)
    return TopicName(name, position)


def text(cursor: Cursor, clause: str) -> Text:
    """Step over a text in quotes, or a parameter, and give it; an empty text is refused."""
    token = cursor.token
    if token.kind == PARAM:
        return Param(cursor.advance().number)
    value = string_of(cursor.text[token.start : token.stop]) if token.kind == STRING else None
    if not isinstance(value, str):
        raise cursor.expected(f"a text in quotes behind {clause}", hint=_quotes_hint(cursor, clause))
    if not value:
        raise cursor.error(f"the text behind {clause} is empty", token.start, "Write something in it.")
    cursor.advance()
    return value


def _quotes_hint(cursor: Cursor, clause: str) -> str:
    token = cursor.token
    if token.kind not in (WORD, QUOTED, NUMBER):
        return cursor.syntax
    if cursor.is_at("NULL"):
        return f"NULL is no text. {_WITHOUT.get(clause, '')}{cursor.syntax}"
    written = name_of(cursor.text, token) if token.kind != NUMBER else cursor.text[token.start : token.stop]
    return f"Write {clause} '{shorten(written)}'. {cursor.syntax}"


def number(cursor: Cursor, clause: str, *, least: int = 0, most: int = NUMBER_MAX) -> Number:
    """Step over a whole number that is not below the least, or a parameter, and give it."""
    if cursor.token.kind == PARAM:
        return Param(cursor.advance().number)
    return plain_number(cursor, clause, least=least, most=most)


def plain_number(cursor: Cursor, clause: str, *, least: int = 0, most: int = NUMBER_MAX) -> int:
    """Step over a whole number that is not below the least, and give it."""
    first = cursor.token
    if first.key in ("-", "+") and cursor.after().kind == NUMBER:
        cursor.advance()
    if cursor.token.kind != NUMBER:
        if first.kind == PARAM:
            raise cursor.error(f"{clause} takes no parameter", first.start, "Write the number.")
        raise cursor.expected(f"a whole number behind {clause}")
    digits = cursor.text[cursor.token.start : cursor.token.stop]
    written = f"{'-' if first.key == '-' else ''}{digits}"
    value = number_of(written)
    if value is None or not isinstance(value, int) or not least <= value <= most:
        wanted = number_text(least, most, value)
        raise cursor.error(f"{clause} is {wanted}, not {shorten(written)}", first.start)
    cursor.advance()
    return value


def number_text(least: int, most: int, given: object) -> str:
    """Give what a clause takes, in words; the most where something is nearer to it than to the least."""
    if most == NUMBER_MAX and not (isinstance(given, int) and given > most):
        return f"a whole number of {least} or more"
    return f"a whole number from {least} to {most}"


def duration(cursor: Cursor, clause: str) -> Span:
    """Step over a duration in quotes, or a parameter, and give it."""
    if cursor.token.kind == PARAM:
        return Param(cursor.advance().number)
    return plain_duration(cursor, clause)


def plain_duration(cursor: Cursor, clause: str) -> Duration:
    """Step over a duration in quotes, and give it."""
    token = cursor.token
    value = string_of(cursor.text[token.start : token.stop]) if token.kind == STRING else None
    if not isinstance(value, str):
        hint = f"Write it in quotes, with its unit: {_DURATIONS}. {cursor.syntax}"
        raise cursor.expected(f"a duration behind {clause}", hint=hint)
    try:
        found = parse_duration(value)
    except DurationInvalid as problem:
        raise cursor.error(problem.message.removesuffix("."), token.start, problem.hint) from problem
    cursor.advance()
    return found


def moment(cursor: Cursor) -> Number:
    """Step over the time behind TIMESTAMP, or a parameter, and give it in microseconds; no zone is UTC."""
    token = cursor.token
    if token.kind == PARAM:
        return Param(cursor.advance().number)
    value = string_of(cursor.text[token.start : token.stop]) if token.kind == STRING else None
    if not isinstance(value, str):
        raise cursor.expected("a time in quotes behind TIMESTAMP")
    try:
        found = parse_time(value)
    except TimeRangeInvalid as problem:
        raise cursor.error(str(problem.values["reason"]), token.start, problem.hint) from problem
    cursor.advance()
    return found


def start_at(cursor: Cursor) -> StartAt:
    """Step over EARLIEST, LATEST, OFFSET n, AFTER n or TIMESTAMP '…'."""
    if cursor.token.kind == NUMBER:
        raise cursor.expected(_STARTS, hint=f"An offset is written OFFSET n. {cursor.syntax}")
    word = cursor.expect(*_STARTS)
    if word == "TIMESTAMP":
        return StartAt("timestamp", moment(cursor))
    if word == "AFTER":
        return StartAt("after", number(cursor, word, least=AFTER_LEAST))
    if word == "OFFSET":
        return StartAt("offset", number(cursor, word))
    return StartAt("earliest" if word == "EARLIEST" else "latest")


def clauses(cursor: Cursor, readers: Mapping[str, Callable[[Cursor], Any]], *stops: str) -> dict[str, Any]:
    """Step over clauses, in any order and each at most once, up to a stop or the statement's end.

    Gives what the reader of each gave, by its word.
    """
    found: dict[str, Any] = {}
    while not (cursor.is_at_end or cursor.is_at(*stops)):
        word = cursor.token.key
        if word in found:
            raise cursor.error(f"{word} is there twice", cursor.token.start, "Say it once.")
        if word not in readers:
            wanted = [*(key for key in readers if key not in found), *stops]
            raise cursor.expected(wanted or "the end of the statement")
        cursor.advance()
        found[word] = readers[word](cursor)
    return found


def missing(cursor: Cursor, *words: str) -> SqlInvalid:
    """Give the error that the statement ends before one of these clauses."""
    found = shown(cursor.place, cursor.token)
    wanted = " or ".join(words)
    return cursor.error(f"expected {wanted} but found {found}", cursor.token.start)
