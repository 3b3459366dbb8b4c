"""Entries of consumer groups as version 1 wrote them, with neither user nor token."""

from __future__ import annotations

import struct
import zlib

from tidegate.storage.engine import Engine
from tidegate.storage.keys import KeySpace, prefix_range
from tidegate.topics.groups import codec
from tidegate.topics.groups.codec import Entry

_HEAD = struct.Struct(">BBQIQqqqH")


def version_1(entry: Entry) -> bytes:
    """Return the bytes of an entry in version 1."""
    member = entry.member.encode()
    numbers = (entry.stop, entry.deliveries, entry.fetch_id, entry.ends_us, entry.span_us, entry.delivered_us)
    body = _HEAD.pack(1, entry.kind, *numbers, len(member)) + member + entry.reason.encode()
    return body + struct.pack(">I", zlib.crc32(body))


def as_version_1(engine: Engine) -> None:
    """Write every entry again as version 1 did."""
    batch = engine.batch()
    for key, stored in list(engine.scan(prefix_range(KeySpace.TOPIC_LEASE))):
        batch.put(key, version_1(codec.decode_entry(stored, codec.start_in(key), "here")))
    engine.write(batch, sync=True)
