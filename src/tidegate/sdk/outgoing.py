"""What a caller means to send: takes messages and leases, gives them as lists, or says how to write them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tidegate.errors import RequestInvalid

OUTGOING = frozenset({"payload", "key", "partition", "dedupKey"})
FIELDS = "Its fields are payload, key, partition and dedupKey"
# Enough to know one's own message again.
SHOWN_CHARS_MAX = 200
# Iterated, these give letters, numbers and names of fields.
NO_LISTS = (str, bytes, bytearray, Mapping)
# What JSON knows beside an object: certainly no message.
PLAIN = (str, bytes, int, float, list, tuple, type(None))
# JSON has no bytes: they would go out as another text, and be another key.
BYTES = (bytes, bytearray, memoryview)


def message_list(messages: Iterable[Any]) -> list[Any]:
    """Give messages as a list; what is meant as a payload by itself is refused before anything is sent."""
    if isinstance(messages, NO_LISTS):
        whole = isinstance(messages, Mapping) and "payload" in messages and messages.keys() <= OUTGOING
        shown = _shown(messages) if whole else _as_message(messages)
        reason = "Messages are published as a list, also where there is one."
        raise RequestInvalid(reason=reason, hint=f"Write [{shown}].")
    found = list(messages)
    for number, message in enumerate(found):
        _check_message(number, message)
    return found


def lease_list(leases: Iterable[Any]) -> list[str]:
    """Give leases as a list; one text would be taken letter by letter, and is refused."""
    if isinstance(leases, NO_LISTS):
        hint = 'Write ["…"] around one lease; a message has its own in message["lease"].'
        raise RequestInvalid(reason="Leases are given as a list, also where there is one.", hint=hint)
    found = list(leases)
    if not all(isinstance(lease, str) for lease in found):
        hint = 'Write [message["lease"] for message in …], of messages that a group was given.'
        raise RequestInvalid(reason="A lease is a text.", hint=hint)
    return found


def _check_message(number: int, message: object) -> None:
    given = message.get("dedupKey") if isinstance(message, Mapping) else getattr(message, "dedupKey", None)
    if isinstance(given, BYTES):
        reason = f"A dedupKey is a text, not bytes (message {number})."
        raise RequestInvalid(reason=reason, hint="Write it as a text, such as key.decode() or key.hex().")
    if isinstance(message, Mapping):
        unknown = sorted(str(name) for name in message.keys() - OUTGOING)
        if "payload" in message and not unknown:
            return
        lacks = f"has no field '{unknown[0]}'" if unknown else "has a payload, and this one does not"
        reason = f"A message {lacks} (message {number})."
    elif isinstance(message, PLAIN):
        reason = f"A message is a dictionary (message {number})."
    else:
        return  # of a class of the caller's: the server says whether it is one
    hint = f"{FIELDS}. Write {_as_message(message)}."
    if isinstance(message, Mapping) and "payload" in message:
        hint = f"{FIELDS}; fields of your own belong into the payload."
    raise RequestInvalid(reason=reason, hint=hint)


def _as_message(payload: object) -> str:
    return f'{{"payload": {_shown(payload)}}}'


def _shown(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, default=str, skipkeys=True)
    except (ValueError, RecursionError):  # it contains itself
        text = "…"
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"
