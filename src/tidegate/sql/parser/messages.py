"""The grammar of PUBLISH, CONSUME, ACK, NACK and EXTEND."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidegate.sql.parser.cursor import TokenCursor
from tidegate.sql.parser.dml import values
from tidegate.sql.parser.topics import bound_number, clauses, duration, missing, start_at, text, topic_name
from tidegate.sql.statements import Ack, Consume, Extend, Literal, Nack, Param, Publish, Text, Upto

LEASES_MAX = 100_000  # of a statement: it is one write
DEDUP_KEYS_MAX = 100_000  # of a statement: it has a row for each
PUBLISH_SYNTAX = (
    "Syntax: PUBLISH INTO topic [KEY 'key'] [PARTITION n] [PRODUCER 'producer' SEQUENCE n] "
    "[DEDUP KEY 'key' | DEDUP KEYS ('key', …)] VALUES ('{\"a\": 1}'), …"
)
CONSUME_SYNTAX = (
    "Syntax: CONSUME FROM topic [GROUP 'group' [MEMBER 'member']] [PARTITION n] "
    "[FROM EARLIEST|LATEST|OFFSET n|AFTER n|TIMESTAMP '2026-01-31 12:00'] "
    "[LIMIT n] [WAIT '5 s'] [LEASE '30 s']"
)
ACK_SYNTAX = (
    "Syntax: ACK topic GROUP 'group' [MEMBER 'member'] [PARTITION n] UPTO OFFSET n, "
    "… UPTO (PARTITION n OFFSET n, …) or … LEASES ('lease', …)"
)
NACK_SYNTAX = (
    "Syntax: NACK topic GROUP 'group' [MEMBER 'member'] LEASES ('lease', …) "
    "[DELAY '5 s' | DEAD] [REASON 'reason']"
)
EXTEND_SYNTAX = "Syntax: EXTEND topic GROUP 'group' [MEMBER 'member'] LEASES ('lease', …) [LEASE '30 s']"

_JSON_HINT = "A payload is a text with JSON, such as '{\"a\": 1}', or a parameter."

Readers = Mapping[str, Callable[[TokenCursor], Any]]


def _text(clause: str) -> Callable[[TokenCursor], Text]:
    return lambda cursor: text(cursor, clause)


def _leases(cursor: TokenCursor) -> tuple[Text, ...]:
    """Consume ('lease', …), and return them."""
    return _texts(cursor, "LEASES", LEASES_MAX)


def _texts(cursor: TokenCursor, clause: str, count_max: int) -> tuple[Text, ...]:
    """Consume ('text', …), and return them."""
    found: list[Text] = []
    cursor.expect("(")
    while True:
        if len(found) == count_max:
            what = clause.lower()
            raise cursor.error(f"there are more than {count_max} {what}", cursor.token.start, "Name fewer.")
        found.append(text(cursor, clause))
        if cursor.expect(",", ")") == ")":
            return tuple(found)


_CONSUME: Readers = {
    "GROUP": _text("GROUP"),
    "MEMBER": _text("MEMBER"),
    "PARTITION": lambda cursor: bound_number(cursor, "PARTITION"),
    "FROM": start_at,
    "LIMIT": lambda cursor: bound_number(cursor, "LIMIT", least=1),
    "WAIT": lambda cursor: duration(cursor, "WAIT"),
    "LEASE": lambda cursor: duration(cursor, "LEASE"),
}


def consume(cursor: TokenCursor) -> Consume:
    """Parse what follows CONSUME."""
    cursor.syntax = CONSUME_SYNTAX
    cursor.expect("FROM")
    topic = topic_name(cursor)
    behind = cursor.token.start
    found = clauses(cursor, _CONSUME)
    for word in ("MEMBER", "LEASE"):
        if word in found and "GROUP" not in found:
            hint = "Without a group nothing is remembered, and every message is read by everyone."
            raise cursor.error(f"{word} belongs to a group, and GROUP is missing", behind, hint)
    return Consume(
        topic,
        *(found.get(word) for word in ("GROUP", "MEMBER", "PARTITION", "FROM", "LIMIT", "WAIT", "LEASE")),
    )


def _upto(cursor: TokenCursor) -> tuple[Upto, ...]:
    """Consume OFFSET n or (PARTITION n OFFSET n, …)."""
    if cursor.expect("OFFSET", "(") == "OFFSET":
        return (Upto(None, bound_number(cursor, "OFFSET")),)
    found: list[Upto] = []
    while True:
        position = cursor.token.start
        cursor.expect("PARTITION")
        partition = bound_number(cursor, "PARTITION")
        if isinstance(partition, int) and any(one.partition == partition for one in found):
            raise cursor.error(f"partition {partition} is named twice", position, "Name it once.")
        cursor.expect("OFFSET")
        found.append(Upto(partition, bound_number(cursor, "OFFSET")))
        if cursor.expect(",", ")") == ")":
            return tuple(found)


_ACK: Readers = {
    "GROUP": _text("GROUP"),
    "MEMBER": _text("MEMBER"),
    "PARTITION": lambda cursor: bound_number(cursor, "PARTITION"),
    "UPTO": _upto,
    "LEASES": _leases,
}


def ack(cursor: TokenCursor) -> Ack:
    """Parse what follows ACK."""
    cursor.syntax = ACK_SYNTAX
    topic = topic_name(cursor)
    behind = cursor.token.start
    found = clauses(cursor, _ACK)
    _require(cursor, found, "GROUP")
    upto, leases = found.get("UPTO", ()), found.get("LEASES", ())
    if upto and leases:
        raise cursor.error("UPTO and LEASES do not go together", behind, "Write two statements.")
    if not upto and not leases:
        raise missing(cursor, "UPTO", "LEASES")
    if "PARTITION" in found:
        if leases:
            raise cursor.error("PARTITION belongs to UPTO", behind, "A lease says which partition it is of.")
        if upto[0].partition is not None:
            raise cursor.error("the partitions are named twice", behind, "Name them in the list alone.")
        upto = (Upto(found["PARTITION"], upto[0].offset),)
    return Ack(topic, found["GROUP"], found.get("MEMBER"), upto, leases)


_NACK: Readers = {
    "GROUP": _text("GROUP"),
    "MEMBER": _text("MEMBER"),
    "LEASES": _leases,
    "DELAY": lambda cursor: duration(cursor, "DELAY"),
    "DEAD": lambda _cursor: True,
    "REASON": _text("REASON"),
}


def nack(cursor: TokenCursor) -> Nack:
    """Parse what follows NACK."""
    cursor.syntax = NACK_SYNTAX
    topic = topic_name(cursor)
    found = clauses(cursor, _NACK)
    _require(cursor, found, "GROUP", "LEASES")
    if "DEAD" in found and "DELAY" in found:
        hint = "A dead letter is not given again: say DEAD or DELAY."
        raise cursor.error("DEAD and DELAY do not go together", cursor.token.start, hint)
    return Nack(
        topic,
        found["GROUP"],
        found.get("MEMBER"),
        found["LEASES"],
        found.get("DELAY"),
        found.get("REASON"),
        dead="DEAD" in found,
    )


_EXTEND: Readers = {
    "GROUP": _text("GROUP"),
    "MEMBER": _text("MEMBER"),
    "LEASES": _leases,
    "LEASE": lambda cursor: duration(cursor, "LEASE"),
}


def extend(cursor: TokenCursor) -> Extend:
    """Parse what follows EXTEND."""
    cursor.syntax = EXTEND_SYNTAX
    topic = topic_name(cursor)
    found = clauses(cursor, _EXTEND)
    _require(cursor, found, "GROUP", "LEASES")
    return Extend(topic, found["GROUP"], found.get("MEMBER"), found["LEASES"], found.get("LEASE"))


def _require(cursor: TokenCursor, found: Mapping[str, Any], *words: str) -> None:
    for word in words:
        if word not in found:
            raise missing(cursor, word)


def _sender(cursor: TokenCursor) -> tuple[Any, Any]:
    producer = text(cursor, "PRODUCER")
    cursor.expect("SEQUENCE")
    return producer, bound_number(cursor, "SEQUENCE")


def _dedup_keys(cursor: TokenCursor) -> tuple[Text, ...]:
    """Consume KEY 'key' or KEYS ('key', …), and return them."""
    if cursor.expect("KEY", "KEYS") == "KEY":
        return (text(cursor, "DEDUP KEY"),)
    return _texts(cursor, "DEDUP KEYS", DEDUP_KEYS_MAX)


_PUBLISH: Readers = {
    "KEY": _text("KEY"),
    "PARTITION": lambda cursor: bound_number(cursor, "PARTITION"),
    "PRODUCER": _sender,
    "DEDUP": _dedup_keys,
}


def publish(cursor: TokenCursor) -> Publish:
    """Parse what follows PUBLISH."""
    cursor.syntax = PUBLISH_SYNTAX
    cursor.expect("INTO")
    topic = topic_name(cursor)
    found = clauses(cursor, _PUBLISH, "VALUES")
    cursor.expect("VALUES")
    producer, sequence = found.get("PRODUCER", (None, None))
    start = cursor.token.start
    payloads, dedup_keys = _payloads(cursor), found.get("DEDUP", ())
    if dedup_keys and len(dedup_keys) != len(payloads):
        reason = f"there are {len(payloads)} rows of VALUES, and {len(dedup_keys)} dedup keys"
        raise cursor.error(reason, start, "Each row has its own: DEDUP KEYS ('a', 'b') VALUES ('1'), ('2').")
    return Publish(topic, found.get("KEY"), found.get("PARTITION"), producer, sequence, payloads, dedup_keys)


def _payloads(cursor: TokenCursor) -> tuple[Literal | Param, ...]:
    start = cursor.token.start
    rows, fragments = values(cursor, 1)
    if fragments is not None:
        raise cursor.error("a payload is no expression", start, _JSON_HINT)
    found: list[Literal | Param] = []
    for index, (cell,) in enumerate(rows or (), start=1):
        is_plain = isinstance(cell, Param) or (
            isinstance(cell, Literal) and cell.value is not None and not isinstance(cell.value, bytes)
        )
        if not is_plain:
            raise cursor.error(f"row {index} of VALUES is no JSON", start, f"{_JSON_HINT} null is 'null'.")
        found.append(cell)  # type: ignore[arg-type]
    return tuple(found)
