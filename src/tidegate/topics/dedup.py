"""Dedup keys of topics: the keys that a topic accepted, and the position of the first message of each.

key       TOPIC_DEDUP | topic id u64 | 1 | segment u64 | digest 16   version u8 | time u64 | partition u32 |
                                                                     offset u64 | message id u64
segments  TOPIC_DEDUP | topic id u64 | 0                             version u8 | newest time u64 |
                                                                     segment u64 …

Big-endian, times in microseconds since 1970. A digest is BLAKE2b-128 of the key. A segment is named by the
time at which it ends, so its name says when it expires, and segments written before a change of
`dedup_seconds` lie beside those written after it. Keys are written with their messages in one batch.

The list of segments has the newest time at which the topic accepted a key or expired segments. Time never
goes below it: a clock that is set back lets no duplicate through, keys are only remembered for longer. A
lookup asks for the live segments alone: three, or a few more after a change.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidegate.errors import RequestInvalid, StorageCorrupt
from tidegate.model.clock import Clock
from tidegate.model.epoch import SECOND_US
from tidegate.storage.engine import Engine, Reader
from tidegate.storage.group_commit import Staging
from tidegate.topics import keys
from tidegate.topics.definitions import Topic, staged_topic

# The key itself is not stored: this only bounds the size of a request.
DEDUP_KEY_CHARS_MAX = 1_000
# A segment covers half of `dedup_seconds`, so that no more than three are live and a key is stored for at
# most half as long again; but not less than this, or a topic with a short time would have very many segments.
SEGMENT_SECONDS_MIN = 60
# A background task removes expired segments. Beyond this many a publish removes them, so that the list stays
# short.
SEGMENTS_MAX = 16
# Segments of topics that remember keys for at least this long are large and expire seldom: then a compaction
# frees their room at once. Smaller ones are left to RocksDB's own compactions.
COMPACT_SECONDS_MIN = 3_600
# More keys than this are looked up in several steps: each holds its results in memory.
LOOKUP_KEYS_MAX = 100_000

_VERSION = 1
_SEGMENTS = struct.Struct(">BQ")
_SEGMENT = struct.Struct(">Q")
_MARK = np.dtype(
    [("version", "u1"), ("at_us", ">u8"), ("partition", ">u4"), ("offset", ">u8"), ("message_id", ">u8")]
)


@dataclass(frozen=True, slots=True)
class SegmentList:
    """The segments of a topic's dedup keys, rising, and the newest time of the topic."""

    newest_us: int = 0
    names: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """Return the bytes that store this."""
        return _SEGMENTS.pack(_VERSION, self.newest_us) + b"".join(map(_SEGMENT.pack, self.names))

    @classmethod
    def decode(cls, stored: bytes | None, topic: Topic) -> SegmentList:
        """Return the list of stored bytes; None stands for a topic without keys."""
        if stored is None:
            return cls()
        if len(stored) < _SEGMENTS.size or (len(stored) - _SEGMENTS.size) % _SEGMENT.size:
            raise StorageCorrupt(place=_place(topic), reason=f"a list of segments of {len(stored)} bytes")
        version, newest_us = _SEGMENTS.unpack_from(stored)
        if version != _VERSION:
            raise StorageCorrupt(place=_place(topic), reason=f"version {version}, this reads {_VERSION}")
        names = _SEGMENT.iter_unpack(stored[_SEGMENTS.size :])
        return cls(newest_us, tuple(segment for (segment,) in names))


@dataclass(frozen=True, slots=True)
class MessagePositions:
    """The partitions, offsets and ids of messages, in the order of a request."""

    partitions: np.ndarray
    offsets: np.ndarray
    ids: np.ndarray

    @classmethod
    def empty(cls, count: int) -> MessagePositions:
        """Return zeros for a number of messages."""
        return cls(*(np.zeros(count, np.int64) for _ in range(3)))

    def put(self, chosen: np.ndarray | int, other: tuple[object, object, object]) -> None:
        """Set the positions of some messages: partitions, offsets and ids."""
        self.partitions[chosen], self.offsets[chosen], self.ids[chosen] = other


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which messages of a request are new (`fresh`), by index, and the first messages of the duplicates.

    `known` has the positions of messages that were accepted before; `repeated` the indexes of first messages
    in the same request.
    """

    topic: Topic
    now_us: int
    segments: SegmentList
    fresh: np.ndarray
    duplicates: np.ndarray
    known: dict[int, tuple[int, int, int]]
    repeated: dict[int, int]

    def complete(self, places: MessagePositions) -> None:
        """Set the positions of duplicates to those of their first messages, once the new ones have theirs."""
        for index, first in self.known.items():
            places.put(index, first)
        for index, earlier in self.repeated.items():
            found = (places.partitions[earlier], places.offsets[earlier], places.ids[earlier])
            places.put(index, found)


class DedupKeys:
    """The dedup keys of all topics. Methods named `stage_…` and `judge` belong to the committer's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Duplicates since the server started, by topic; and by tenant, deleted topics included.
        self._dropped: Counter[int] = Counter()
        self._dropped_of: Counter[str] = Counter()

    def dropped_by_tenant(self) -> dict[str, int]:
        """Return how many duplicates each tenant's topics dropped since the server started; any thread."""
        return dict(self._dropped_of)

    def dropped(self, topic: Topic) -> int:
        """Return how many duplicates a topic dropped since the server started; any thread."""
        return self._dropped[topic.id]

    def forget(self, topic: Topic) -> None:
        """Drop the count of a topic that is gone."""
        self._dropped.pop(topic.id, None)

    def judge(self, staging: Staging, topic: Topic, digests: Sequence[bytes | None]) -> Verdict:
        """Return which messages are new; a message without a digest always is."""
        current = staged_topic(staging, topic)
        span_us = dedup_us(current)
        segments = SegmentList.decode(staging.get(keys.dedup_segments_key(topic.id)), topic)
        now_us = max(self._clock.now_us(), segments.newest_us)
        first: dict[bytes, int] = {}
        repeated: dict[int, int] = {}
        for index, digest in enumerate(digests):
            if digest is not None:
                earlier = first.setdefault(digest, index)
                if earlier != index:
                    repeated[index] = earlier
        live = [segment for segment in segments.names if segment > now_us - span_us]
        known = self._known(staging, topic, first, live, now_us - span_us)
        for index, earlier in list(repeated.items()):
            if earlier in known:
                known[index] = known[earlier]
                del repeated[index]
        duplicates = np.zeros(len(digests), bool)
        duplicates[[*known, *repeated]] = True
        count = len(known) + len(repeated)
        if count:
            staging.when_durable(lambda: self._count(topic, count))
        return Verdict(current, now_us, segments, np.flatnonzero(~duplicates), duplicates, known, repeated)

    def _count(self, topic: Topic, count: int) -> None:
        self._dropped[topic.id] += count
        self._dropped_of[topic.tenant] += count

    def _known(
        self, staging: Staging, topic: Topic, first: dict[bytes, int], live: list[int], horizon_us: int
    ) -> dict[int, tuple[int, int, int]]:
        """Return the positions of messages accepted after the horizon, by the index of their duplicates."""
        known: dict[int, tuple[int, int, int]] = {}
        newest_us: dict[int, int] = {}
        digests = list(first)
        for start in range(0, len(digests), LOOKUP_KEYS_MAX):
            part = digests[start : start + LOOKUP_KEYS_MAX]
            prefixes = [keys.dedup_prefix(topic.id, segment) for segment in live]
            stored = staging.get_many([prefix + digest for prefix in prefixes for digest in part])
            if stored.count(None) == len(stored):
                continue
            found = [index for index, value in enumerate(stored) if value is not None]
            marks = _marks([value for value in stored if value is not None], topic)
            for index, (_, at_us, *place) in zip(found, marks.tolist(), strict=True):
                message = first[part[index % len(part)]]
                # A key may be in two segments: it was accepted again, and then dedup_seconds was raised.
                if at_us > newest_us.get(message, horizon_us):
                    newest_us[message] = at_us
                    known[message] = (place[0], place[1], place[2])
        return known

    def stage_accepted(
        self, staging: Staging, verdict: Verdict, digests: Sequence[bytes | None], places: MessagePositions
    ) -> None:
        """Store the keys of the new messages, in the write batch of the messages."""
        chosen = [index for index in verdict.fresh.tolist() if digests[index] is not None]
        if not chosen:
            return
        topic, now_us = verdict.topic, verdict.now_us
        segment = segment_of(topic, now_us)
        names = verdict.segments.names
        if segment not in names:
            if len(names) >= SEGMENTS_MAX:
                names = self._stage_expiry(staging, topic, verdict.segments, now_us)
            names = tuple(sorted((*names, segment)))
        marks = np.empty(len(chosen), _MARK)
        marks["version"], marks["at_us"] = _VERSION, now_us
        marks["partition"], marks["offset"] = places.partitions[chosen], places.offsets[chosen]
        marks["message_id"] = places.ids[chosen]
        prefix, content, size = keys.dedup_prefix(topic.id, segment), marks.tobytes(), _MARK.itemsize
        staging.put_many(
            [prefix + (digests[index] or b"") for index in chosen],
            [content[at : at + size] for at in range(0, len(content), size)],
        )
        staging.put(keys.dedup_segments_key(topic.id), SegmentList(now_us, names).encode())

    def has_expired(self, reader: Reader, topic: Topic) -> bool:
        """True if a topic has expired segments; blocking, any thread."""
        segments = SegmentList.decode(reader.get(keys.dedup_segments_key(topic.id)), topic)
        horizon_us = max(self._clock.now_us(), segments.newest_us) - dedup_us(topic)
        return any(segment <= horizon_us for segment in segments.names)

    def stage_expire(self, staging: Staging, topic: Topic) -> int:
        """Remove expired segments; return their number."""
        current = staged_topic(staging, topic)
        if current.dedup_seconds is None:
            return 0  # changed since the list was made, and its keys went with the change
        key = keys.dedup_segments_key(topic.id)
        segments = SegmentList.decode(staging.get(key), topic)
        now_us = max(self._clock.now_us(), segments.newest_us)
        left = self._stage_expiry(staging, current, segments, now_us)
        if len(left) < len(segments.names):
            # The time of the topic is at least this from now on, so that a clock that is set back does not
            # ask for removed segments.
            staging.put(key, SegmentList(now_us, left).encode())
        return len(segments.names) - len(left)

    def _stage_expiry(
        self, staging: Staging, topic: Topic, segments: SegmentList, now_us: int
    ) -> tuple[int, ...]:
        horizon_us = now_us - dedup_us(topic)
        left = tuple(segment for segment in segments.names if segment > horizon_us)
        if len(left) < len(segments.names):
            staging.delete_keys(keys.dedup_range(topic.id, 0, horizon_us + 1))
        return left

    def compact(self, engine: Engine, topic: Topic) -> None:
        """Free the disk room of large segments that were removed; blocking, any thread."""
        if topic.dedup_seconds is not None and topic.dedup_seconds >= COMPACT_SECONDS_MIN:
            segments = SegmentList.decode(engine.get(keys.dedup_segments_key(topic.id)), topic)
            oldest = min(segments.names, default=segments.newest_us)
            engine.compact(keys.dedup_range(topic.id, 0, oldest))

    def stage_clear(self, staging: Staging, topic: Topic) -> None:
        """Remove all keys of a topic."""
        staging.delete_keys(keys.dedup_everything(topic.id))


def dedup_us(topic: Topic) -> int:
    """Return for how long a topic remembers dedup keys; raise RequestInvalid for a topic without them."""
    if topic.dedup_seconds is None:
        raise RequestInvalid(
            reason=f"Topic '{topic.name}' takes no dedup keys: it has no dedup_seconds.",
            hint=f"ALTER TOPIC {topic.name} SET (dedup_seconds = 86400) lets it, for a day; "
            "or leave the key out.",
        )
    return topic.dedup_seconds * SECOND_US


def segment_of(topic: Topic, now_us: int) -> int:
    """Return the segment of a moment: the time at which it ends."""
    interval_us = max(dedup_us(topic) // 2, SEGMENT_SECONDS_MIN * SECOND_US)
    return (now_us // interval_us + 1) * interval_us


def checked_digests(topic: Topic, dedup_keys: Sequence[str | None]) -> list[bytes | None] | None:
    """Return the digests of dedup keys; None where no message has one.

    Raise RequestInvalid for a topic without dedup keys.
    """
    if dedup_keys.count(None) == len(dedup_keys):
        return None
    dedup_us(topic)
    for index, key in enumerate(dedup_keys):
        if key is not None and not 1 <= len(key) <= DEDUP_KEY_CHARS_MAX:
            most = DEDUP_KEY_CHARS_MAX
            reason = f"A dedup key has 1 to {most} characters, not {len(key)} (message {index})."
            raise RequestInvalid(reason=reason, hint="Null, or none, is a message that is always published.")
    digest = keys.dedup_digest
    return [None if key is None else digest(key) for key in dedup_keys]


def _marks(stored: list[bytes], topic: Topic) -> np.ndarray:
    content = b"".join(stored)
    if {*map(len, stored)} != {_MARK.itemsize}:
        raise StorageCorrupt(place=_place(topic), reason=f"keys of {sorted({*map(len, stored)})} bytes")
    marks = np.frombuffer(content, _MARK)
    if (marks["version"] != _VERSION).any():
        raise StorageCorrupt(place=_place(topic), reason=f"a version that is not {_VERSION}")
    return marks


def _place(topic: Topic) -> str:
    return f"the dedup keys of topic '{topic.name}'"
