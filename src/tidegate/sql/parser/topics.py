"""The grammar of CREATE, ALTER, DROP, CLEAR, SHOW and DESCRIBE for topics, and of values in clauses.

A value in a clause is checked here; a parameter becomes a Param, which is checked when it is bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from tidegate.errors import DurationInvalid, SqlInvalid, TimeRangeInvalid
from tidegate.model.durations import Duration, parse_duration
from tidegate.model.names import TOPIC_SEGMENTS_MAX, shorten
from tidegate.model.times import parse_time
from tidegate.sql.parser.cursor import TokenCursor
from tidegate.sql.parser.fragments import expression
from tidegate.sql.parser.lexer import (
    NUMBER,
    PARAM,
    QUOTED,
    STRING,
    WORD,
    name_of,
    number_of,
    shown,
    string_of,
)
from tidegate.sql.statements import (
    AddSource,
    ClearTopic,
    CreateTopic,
    DescribeTopic,
    DropGroup,
    DropSource,
    DropTopic,
    DurationValue,
    Fragment,
    Number,
    Param,
    ResetGroup,
    SetPartitions,
    SetRetention,
    ShowGroups,
    StartAt,
    Text,
    TopicName,
    TopicStatement,
)

PAYLOADS = ("key", "full", "diff")
PREVIEW_CHARS_MAX = 1_000  # a preview is read by people; programs take payload = 'full'
KEY_COLUMNS_MAX = 16  # as many as a primary key has
_OPERATIONS = ("INSERT", "UPDATE", "DELETE")

CREATE_TOPIC_SYNTAX = (
    "Syntax: CREATE TOPIC [IF NOT EXISTS] namespace.topic [PARTITIONS n] "
    "[WITH (retention_seconds = n, retention_max_bytes = n, dedup_seconds = n)]"
)
ALTER_TOPIC_SYNTAX = (
    "Syntax: ALTER TOPIC topic ADD SOURCE namespace.table ON …, DROP SOURCE namespace.table [ON …], "
    "SET RETENTION …, SET (dedup_seconds = n), ADD PARTITIONS n or SET PARTITIONS n"
)
ADD_SOURCE_SYNTAX = (
    "Syntax: ALTER TOPIC topic ADD SOURCE namespace.table ON INSERT|UPDATE|DELETE, … [WHERE condition] "
    "[PARTITION BY (column, …)] [WITH (payload = 'key'|'full'|'diff', preview = n)]"
)
DROP_SOURCE_SYNTAX = "Syntax: ALTER TOPIC topic DROP SOURCE namespace.table [ON INSERT|UPDATE|DELETE, …]"
RETENTION_SYNTAX = (
    "Syntax: ALTER TOPIC topic SET RETENTION '7 days', SET RETENTION (seconds = n, max_bytes = n) "
    "or SET RETENTION NONE; SET (dedup_seconds = n); NULL is no limit"
)
PARTITIONS_SYNTAX = "Syntax: ALTER TOPIC topic ADD PARTITIONS n, or SET PARTITIONS n"
DROP_TOPIC_SYNTAX = "Syntax: DROP TOPIC [IF EXISTS] topic"
CLEAR_SYNTAX = "Syntax: CLEAR TOPIC topic"
DESCRIBE_TOPIC_SYNTAX = "Syntax: DESCRIBE TOPIC topic"
SHOW_GROUPS_SYNTAX = "Syntax: SHOW CONSUMER GROUPS ON topic"
DROP_GROUP_SYNTAX = "Syntax: DROP CONSUMER GROUP [IF EXISTS] 'group' ON topic"
RESET_SYNTAX = (
    "Syntax: RESET CONSUMER GROUP 'group' ON topic [PARTITION n] "
    "TO EARLIEST|LATEST|OFFSET n|AFTER n|TIMESTAMP '2026-01-31 12:00'"
)
# Both spellings of a limit: with the prefix in WITH, without it behind RETENTION.
_LIMITS = {
    "retention_seconds": "seconds",
    "retention_max_bytes": "max_bytes",
    "seconds": "seconds",
    "max_bytes": "max_bytes",
}
# Allowed in WITH and in SET (…), but not behind RETENTION: it is not about messages.
_OPTIONS = {**_LIMITS, "dedup_seconds": "dedup_seconds"}

Reader = Callable[[TokenCursor, str], Any]


def create_topic(cursor: TokenCursor) -> CreateTopic:
    """Parse what follows CREATE TOPIC."""
    cursor.syntax = CREATE_TOPIC_SYNTAX
    is_soft = cursor.condition("NOT", "EXISTS")
    topic = topic_name(cursor)
    readers = {
        "PARTITIONS": lambda cursor: plain_number(cursor, "PARTITIONS", least=1),
        "WITH": _topic_options,
    }
    found = clauses(cursor, readers)
    return CreateTopic(topic, is_soft, found.get("PARTITIONS", 1), found.get("WITH", {}))


def alter_topic(cursor: TokenCursor) -> TopicStatement:
    """Parse what follows ALTER TOPIC."""
    cursor.syntax = ALTER_TOPIC_SYNTAX
    topic = topic_name(cursor)
    if cursor.is_at("RENAME"):
        hint = "Make another topic; a consumer or a pipeline carries the messages over."
        raise cursor.unsupported("ALTER TOPIC … RENAME is not supported.", hint)
    word = cursor.expect("ADD", "DROP", "SET")
    if word == "ADD":
        return _add_source(cursor, topic) if _is_source(cursor) else _partitions(cursor, topic, more=True)
    if word == "SET":
        return _set(cursor, topic)
    if cursor.is_at("PARTITION", "PARTITIONS"):
        hint = "Their messages would have no place. Make another topic with fewer."
        raise cursor.unsupported("Partitions are only added.", hint)
    cursor.syntax = DROP_SOURCE_SYNTAX
    cursor.expect("SOURCE")
    table = cursor.table()
    return DropSource(topic, table, _operations(cursor) if cursor.take("ON") else ())


def _is_source(cursor: TokenCursor) -> bool:
    return cursor.expect("SOURCE", "PARTITIONS") == "SOURCE"


def _partitions(cursor: TokenCursor, topic: TopicName, *, more: bool) -> SetPartitions:
    cursor.syntax = PARTITIONS_SYNTAX
    return SetPartitions(topic, plain_number(cursor, "PARTITIONS", least=1), more)


def _set(cursor: TokenCursor, topic: TopicName) -> TopicStatement:
    cursor.syntax = RETENTION_SYNTAX
    if cursor.is_at("("):
        return SetRetention(topic, _topic_options(cursor))
    if cursor.is_at("RETENTION_SECONDS", "RETENTION_MAX_BYTES", "DEDUP_SECONDS"):
        hint = f"Write SET ({cursor.token.key.lower()} = n)."
        raise cursor.expected(["("], hint=hint)
    if cursor.expect("RETENTION", "PARTITIONS", "(") == "PARTITIONS":
        return _partitions(cursor, topic, more=False)
    if cursor.take("NONE"):
        return SetRetention(topic, {"seconds": None, "max_bytes": None})
    if cursor.token.kind == STRING:
        position = cursor.token.start
        retention = plain_duration(cursor, "RETENTION")
        if retention.us == 0 or retention.us % 1_000_000:
            raise cursor.error("retention is a whole number of seconds, 1 or more", position)
        return SetRetention(topic, {"seconds": retention.us // 1_000_000})
    if cursor.is_at("("):
        return SetRetention(topic, _limits(cursor))
    raise cursor.expected("a duration in quotes, '(' or NONE")


def _add_source(cursor: TokenCursor, topic: TopicName) -> AddSource:
    cursor.syntax = ADD_SOURCE_SYNTAX
    table = cursor.table()
    cursor.expect("ON")
    operations = _operations(cursor)
    found = clauses(cursor, {"WHERE": _condition, "PARTITION": _partition_by, "WITH": _payload})
    options = found.get("WITH", {})
    return AddSource(
        topic,
        table,
        operations,
        found.get("WHERE"),
        found.get("PARTITION", ()),
        options.get("payload", "key"),
        options.get("preview", 0),
    )


def _operations(cursor: TokenCursor) -> tuple[str, ...]:
    """Consume INSERT, UPDATE or INSERT OR UPDATE, and return them in small letters."""
    found: dict[str, None] = {}
    while True:
        position = cursor.token.start
        if cursor.is_at("UPSERT"):
            hint = "Write ON INSERT, UPDATE."
            raise cursor.error("an UPSERT is an INSERT or an UPDATE of each of its rows", position, hint)
        word = cursor.expect(*_OPERATIONS)
        if word.lower() in found:
            raise cursor.error(f"{word} is named twice", position, "Name each operation once.")
        found[word.lower()] = None
        if not cursor.take(",", "OR"):
            return tuple(found)


def _condition(cursor: TokenCursor) -> Fragment:
    fragment = expression(cursor, "a condition", {"PARTITION", "WITH"})
    if fragment.params:
        hint = "It is kept with the topic: write the value."
        raise cursor.error("the condition of a source cannot have a parameter", fragment.position, hint)
    return fragment


def _partition_by(cursor: TokenCursor) -> tuple[str, ...]:
    if not cursor.is_at("BY"):
        hint = f'A column of that name is written "partition". {cursor.syntax}'
        raise cursor.expected(["BY"], hint=hint)
    cursor.advance()
    return cursor.names("a column", limit=KEY_COLUMNS_MAX)


def _payload(cursor: TokenCursor) -> dict[str, Any]:
    return cursor.options({"payload": _payload_value, "preview": _preview_value})


def _payload_value(cursor: TokenCursor, _name: str) -> str:
    position = cursor.token.start
    value = cursor.text_value("'key', 'full' or 'diff', in quotes,")
    if value not in PAYLOADS:
        near = get_close_matches(value.lower(), PAYLOADS, n=1)
        hint = (
            f"{f'Did you mean {near[0]!r}? ' if near else ''}'key': the primary key alone. 'full': the row. "
        )
        hint += "'diff': the key and what changed."
        raise cursor.error(f"payload is 'key', 'full' or 'diff', not '{shorten(value)}'", position, hint)
    return value


def _preview_value(cursor: TokenCursor, _name: str) -> int:
    return plain_number(cursor, "preview", most=PREVIEW_CHARS_MAX)


def _topic_options(cursor: TokenCursor) -> dict[str, int | None]:
    """Consume (retention_seconds = n, dedup_seconds = n, …), and return them by their short names."""
    return _limits(cursor, _OPTIONS)


def _limits(cursor: TokenCursor, names: Mapping[str, str] = _LIMITS) -> dict[str, int | None]:
    """Consume (seconds = n, max_bytes = NULL), and return the limits by their short names."""
    position = cursor.token.start
    found = cursor.options(dict.fromkeys(names, _limit))
    if len({names[name] for name in found}) < len(found):
        raise cursor.error("a limit is named twice, in two ways", position, "Say it once.")
    return {names[name]: value for name, value in found.items()}


def _limit(cursor: TokenCursor, name: str) -> int | None:
    if cursor.take("NULL"):
        return None
    if cursor.token.kind == STRING and name.endswith("seconds"):
        hint = "Write the number of seconds, or ALTER TOPIC topic SET RETENTION '7 days'."
        if name == "dedup_seconds":
            hint = "Write the number of seconds: 86400 is a day."
        raise cursor.expected(f"a whole number behind {name}", hint=hint)
    # The topic checks the limit: HTTP and SQL refuse the same values.
    return plain_number(cursor, name, least=1)


def drop_topic(cursor: TokenCursor) -> DropTopic:
    """Parse what follows DROP TOPIC."""
    cursor.syntax = DROP_TOPIC_SYNTAX
    is_soft = cursor.condition("EXISTS")
    return DropTopic(topic_name(cursor), is_soft)


def clear_topic(cursor: TokenCursor) -> ClearTopic:
    """Parse what follows CLEAR."""
    cursor.syntax = CLEAR_SYNTAX
    cursor.expect("TOPIC")
    return ClearTopic(topic_name(cursor))


def describe_topic(cursor: TokenCursor) -> DescribeTopic:
    """Parse what follows DESCRIBE TOPIC."""
    cursor.syntax = DESCRIBE_TOPIC_SYNTAX
    return DescribeTopic(topic_name(cursor))


def show_groups(cursor: TokenCursor) -> ShowGroups:
    """Parse what follows SHOW CONSUMER."""
    cursor.syntax = SHOW_GROUPS_SYNTAX
    cursor.expect("GROUPS")
    cursor.expect("ON")
    return ShowGroups(topic_name(cursor))


def drop_group(cursor: TokenCursor) -> DropGroup:
    """Parse what follows DROP CONSUMER."""
    cursor.syntax = DROP_GROUP_SYNTAX
    cursor.expect("GROUP")
    is_soft = cursor.condition("EXISTS")
    group = text(cursor, "GROUP")
    cursor.expect("ON")
    return DropGroup(group, topic_name(cursor), is_soft)


def reset_group(cursor: TokenCursor) -> ResetGroup:
    """Parse what follows RESET."""
    cursor.syntax = RESET_SYNTAX
    cursor.expect("CONSUMER")
    cursor.expect("GROUP")
    group = text(cursor, "GROUP")
    cursor.expect("ON")
    topic = topic_name(cursor)
    partition = bound_number(cursor, "PARTITION") if cursor.take("PARTITION") else None
    if not cursor.is_at("TO"):
        raise cursor.expected(["PARTITION", "TO"] if partition is None else ["TO"])
    cursor.advance()
    return ResetGroup(group, topic, partition, start_at(cursor))


NUMBER_MAX = 2**63 - 1  # offsets, sequences and sizes are stored as 64-bit numbers
AFTER_LEAST = -1  # AFTER -1 begins at the first offset: the position of a reader that has seen none
_STARTS = ("EARLIEST", "LATEST", "OFFSET", "AFTER", "TIMESTAMP")
_DURATIONS = "'5 s', '250 ms', '15 min'"
# The hint where no text is written.
_WITHOUT = {
    "KEY": "Leave KEY out. ",
    "DEDUP KEY": "Leave DEDUP KEY out. ",
    "DEDUP KEYS": "Rows without a key are published by a statement of their own, without DEDUP KEYS. ",
}


def topic_name(cursor: TokenCursor) -> TopicName:
    """Consume a topic's name, part by part, and return it."""
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


def text(cursor: TokenCursor, clause: str) -> Text:
    """Consume a text in quotes, or a parameter, and return it; an empty text is refused."""
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


def _quotes_hint(cursor: TokenCursor, clause: str) -> str:
    token = cursor.token
    if token.kind not in (WORD, QUOTED, NUMBER):
        return cursor.syntax
    if cursor.is_at("NULL"):
        return f"NULL is no text. {_WITHOUT.get(clause, '')}{cursor.syntax}"
    written = name_of(cursor.text, token) if token.kind != NUMBER else cursor.text[token.start : token.stop]
    return f"Write {clause} '{shorten(written)}'. {cursor.syntax}"


def bound_number(cursor: TokenCursor, clause: str, *, least: int = 0, most: int = NUMBER_MAX) -> Number:
    """Consume a whole number that is not below the least, or a parameter, and return it."""
    if cursor.token.kind == PARAM:
        return Param(cursor.advance().number)
    return plain_number(cursor, clause, least=least, most=most)


def plain_number(cursor: TokenCursor, clause: str, *, least: int = 0, most: int = NUMBER_MAX) -> int:
    """Consume a whole number that is not below the least, and return it."""
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
        expected = number_text(least, most, value)
        raise cursor.error(f"{clause} is {expected}, not {shorten(written)}", first.start)
    cursor.advance()
    return value


def number_text(least: int, most: int, actual: object) -> str:
    """Return what a clause takes, in words; the most where something is nearer to it than to the least."""
    if most == NUMBER_MAX and not (isinstance(actual, int) and actual > most):
        return f"a whole number of {least} or more"
    return f"a whole number from {least} to {most}"


def duration(cursor: TokenCursor, clause: str) -> DurationValue:
    """Consume a duration in quotes, or a parameter, and return it."""
    if cursor.token.kind == PARAM:
        return Param(cursor.advance().number)
    return plain_duration(cursor, clause)


def plain_duration(cursor: TokenCursor, clause: str) -> Duration:
    """Consume a duration in quotes, and return it."""
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


def moment(cursor: TokenCursor) -> Number:
    """Consume the time behind TIMESTAMP, or a parameter, and return it in microseconds; no zone is UTC."""
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


def start_at(cursor: TokenCursor) -> StartAt:
    """Consume EARLIEST, LATEST, OFFSET n, AFTER n or TIMESTAMP '…'."""
    if cursor.token.kind == NUMBER:
        raise cursor.expected(_STARTS, hint=f"An offset is written OFFSET n. {cursor.syntax}")
    word = cursor.expect(*_STARTS)
    if word == "TIMESTAMP":
        return StartAt("timestamp", moment(cursor))
    if word == "AFTER":
        return StartAt("after", bound_number(cursor, word, least=AFTER_LEAST))
    if word == "OFFSET":
        return StartAt("offset", bound_number(cursor, word))
    return StartAt("earliest" if word == "EARLIEST" else "latest")


def clauses(
    cursor: TokenCursor, readers: Mapping[str, Callable[[TokenCursor], Any]], *stops: str
) -> dict[str, Any]:
    """Consume clauses, in any order and each at most once, up to a stop or the statement's end.

    Return what the reader of each clause returned, by its word.
    """
    found: dict[str, Any] = {}
    while not (cursor.is_at_end or cursor.is_at(*stops)):
        word = cursor.token.key
        if word in found:
            raise cursor.error(f"{word} is named twice", cursor.token.start, "Say it once.")
        if word not in readers:
            expected = [*(key for key in readers if key not in found), *stops]
            raise cursor.expected(expected or "the end of the statement")
        cursor.advance()
        found[word] = readers[word](cursor)
    return found


def missing(cursor: TokenCursor, *words: str) -> SqlInvalid:
    """Return the error that the statement ends before one of these clauses."""
    found = shown(cursor.source, cursor.token)
    expected = " or ".join(words)
    return cursor.error(f"expected {expected} but found {found}", cursor.token.start)
