"""Positions in a topic as callers write them: a word, an object with one field, or offsets by partition."""

from __future__ import annotations

import msgspec

from tidegate.errors import InvariantBroken, RequestInvalid
from tidegate.model.names import shorten
from tidegate.model.timeranges import parse_time
from tidegate.topics.reading import Start

HINT = 'Say "earliest", "latest", {"offset": n}, {"after": n}, {"timestamp": "…"} or {"offsets": {"0": n}}.'


class FromBody(msgspec.Struct, forbid_unknown_fields=True):
    """The object form of a position; exactly one field is given."""

    offset: int | None = None
    after: int | None = None
    timestamp: str | None = None
    offsets: dict[int, int] | None = None


def start_of(given: str | FromBody | dict[int, int]) -> Start:
    """Read a position."""
    if isinstance(given, dict):
        return Start("offsets", offsets=given)
    if given == "earliest":
        return Start("earliest")
    if given == "latest":
        return Start("latest")
    if isinstance(given, str):
        raise RequestInvalid(reason=f"'{shorten(given)}' is not a position.", hint=HINT)
    chosen = [name for name in FromBody.__struct_fields__ if getattr(given, name) is not None]
    if len(chosen) != 1:
        reason = "A position has exactly one of offset, after, timestamp and offsets."
        raise RequestInvalid(reason=reason, hint='For example {"offset": 12}.')
    if given.timestamp is not None:
        return Start("timestamp", parse_time(given.timestamp))
    if given.offsets is not None:
        return Start("offsets", offsets=given.offsets)
    if given.after is not None:
        return Start("after", given.after)
    if given.offset is not None:
        return Start("offset", given.offset)
    raise InvariantBroken(reason="a position without a field passed the check")
