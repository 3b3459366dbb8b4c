"""Dedup keys: takes the keys of messages, gives what a topic accepted before, keeps where the first one went.

key    TOPIC_DEDUP | topic id u64 | 1 | segment u64 | digest 16   version u8 | time u64 | partition u32 |
                                                                  offset u64 | message id u64
book   TOPIC_DEDUP | topic id u64 | 0                             version u8 | newest time u64 | segment u64 …

Big-endian, times in microseconds since 1970. A digest is BLAKE2b-128 of the key. A segment is named by the
moment at which it ends, so it needs no other word to say when it can go, and segments of before a change of
`dedup_seconds` lie beside those of after it. Keys are written with their messages in one batch.

The book has the newest time at which the topic accepted a key or let segments go. Time never goes below it:
a clock that is set back lets no duplicate through, keys are only remembered for longer. It lists the
segments, so a lookup asks for the live ones alone: three, or a few more after a change.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidegate.errors import RequestInvalid, StorageCorrupt
from tidegate.model.clock import Clock
from tidegate.storage.engine import Engine, Reader
from tidegate.storage.group_commit import Staging
from tidegate.topics import keys
from tidegate.topics.definitions import Topic, staged_topic

# The key itself is not kept: this only bounds what a request may carry.
DEDUP_KEY_CHARS_MAX = 1_000
# Half of the time, so that no more than three segments are live and a key is kept for half as long again at
# most; but not less than this, or a topic with a short time would make segments without end.
SEGMENT_SECONDS_MIN = 60
# Upkeep removes what is over. Where it does not come by, a publish does, so that the book stays short.
SEGMENTS_MAX = 16
# Segments of topics that remember keys for at least this long are large and go seldom: then it is worth a
# compaction to have their room at once. Of others RocksDB takes care when it comes by.
TIDY_SECONDS_MIN = 3_600
# More keys than this are looked up in several steps: each holds its answers in memory.
LOOKUP_KEYS_MAX = 100_000

_VERSION = 1
_BOOK = struct.Struct(">BQ")
_SEGMENT = struct.Struct(">Q")
_MARK = np.dtype(
    [("version", "u1"), ("at_us", ">u8"), ("partition", ">u4"), ("offset", ">u8"), ("message_id", ">u8")]
)
_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Book:
    """What a topic knows of its dedup keys as a whole: the newest time, and the segments it has, rising."""

    newest_us: int = 0
    segments: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """Return the bytes that store this."""
        return _BOOK.pack(_VERSION, self.newest_us) + b"".join(map(_SEGMENT.pack, self.segments))

    @classmethod
    def decode(cls, stored: bytes | None, topic: Topic) -> Book:
        """Read stored bytes; none means a topic that has no keys."""
        if stored is None:
            return cls()
        if len(stored) < _BOOK.size or (len(stored) - _BOOK.size) % _SEGMENT.size:
            raise StorageCorrupt(place=_place(topic), reason=f"a book of {len(stored)} bytes")
        version, newest_us = _BOOK.unpack_from(stored)
        if version != _VERSION:
            raise StorageCorrupt(place=_place(topic), reason=f"version {version}, this reads {_VERSION}")
        return cls(newest_us, tuple(found for (found,) in _SEGMENT.iter_unpack(stored[_BOOK.size :])))


@dataclass(frozen=True, slots=True)
class Places:
    """Where messages are, in the order of a request."""

    partitions: np.ndarray
    offsets: np.ndarray
    ids: np.ndarray

    @classmethod
    def empty(cls, count: int) -> Places:
        """Return room for the places of so many messages."""
        return cls(*(np.zeros(count, np.int64) for _ in range(3)))

    def put(self, chosen: np.ndarray | int, other: tuple[object, object, object]) -> None:
        """Set the places of some messages: partitions, offsets and ids."""
        self.partitions[chosen], self.offsets[chosen], self.ids[chosen] = other


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which messages of a request are new, by their index, and where those are that the others repeat."""

    topic: Topic
    now_us: int
    book: Book
    fresh: np.ndarray
    duplicates: np.ndarray
    # Where the first ones are that were accepted before; and those that stand earlier in the request.
    known: dict[int, tuple[int, int, int]]
    repeated: dict[int, int]

    def complete(self, places: Places) -> None:
        """Give the duplicates the places of their first messages, once those of the new ones are known."""
        for index, first in self.known.items():
            places.put(index, first)
        for index, earlier in self.repeated.items():
            found = (places.partitions[earlier], places.offsets[earlier], places.ids[earlier])
            places.put(index, found)


class DedupKeys:
    """The dedup keys of all topics. Methods named `stage_…` and `judge` belong to the committer's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Duplicates since the start, by topic; and by tenant, topics that are gone among them.
        self._dropped: Counter[int] = Counter()
        self._dropped_of: Counter[str] = Counter()

    def dropped_by_tenant(self) -> dict[str, int]:
        """Return how many duplicates the topics of each tenant dropped since the start; any thread."""
        return dict(self._dropped_of)

    def dropped(self, topic: Topic) -> int:
        """Return how many duplicates a topic dropped since the start; any thread."""
        return self._dropped[topic.id]

    def forget(self, topic: Topic) -> None:
        """Drop what is remembered of a topic that is gone."""
        self._dropped.pop(topic.id, None)

    def judge(self, staging: Staging, topic: Topic, digests: Sequence[bytes | None]) -> Verdict:
        """Return which messages are new; a message without a digest is."""
        current = staged_topic(staging, topic)
        span_us = dedup_us(current)
        book = Book.decode(staging.get(keys.dedup_book_key(topic.id)), topic)
        now_us = max(self._clock.now_us(), book.newest_us)
        first: dict[bytes, int] = {}
        repeated: dict[int, int] = {}
        for index, digest in enumerate(digests):
            if digest is not None:
                earlier = first.setdefault(digest, index)
                if earlier != index:
                    repeated[index] = earlier
        live = [segment for segment in book.segments if segment > now_us - span_us]
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
        return Verdict(current, now_us, book, np.flatnonzero(~duplicates), duplicates, known, repeated)

    def _count(self, topic: Topic, count: int) -> None:
        self._dropped[topic.id] += count
        self._dropped_of[topic.tenant] += count

    def _known(
        self, staging: Staging, topic: Topic, first: dict[bytes, int], live: list[int], horizon_us: int
    ) -> dict[int, tuple[int, int, int]]:
        """Return the places of messages that were accepted after the horizon, by the index of who repeats."""
        known: dict[int, tuple[int, int, int]] = {}
        newest_us: dict[int, int] = {}
        digests = list(first)
        for start in range(0, len(digests), LOOKUP_KEYS_MAX):
            asked = digests[start : start + LOOKUP_KEYS_MAX]
            prefixes = [keys.dedup_prefix(topic.id, segment) for segment in live]
            stored = staging.get_many([prefix + digest for prefix in prefixes for digest in asked])
            if stored.count(None) == len(stored):
                continue
            found = [index for index, value in enumerate(stored) if value is not None]
            marks = _marks([value for value in stored if value is not None], topic)
            for index, (_, at_us, *place) in zip(found, marks.tolist(), strict=True):
                message = first[asked[index % len(asked)]]
                # A key may be in two segments: it was accepted again, and then the time was made longer.
                if at_us > newest_us.get(message, horizon_us):
                    newest_us[message] = at_us
                    known[message] = (place[0], place[1], place[2])
        return known

    def stage_accepted(
        self, staging: Staging, verdict: Verdict, digests: Sequence[bytes | None], places: Places
    ) -> None:
        """Remember the keys of the new messages, with the write that stores the messages."""
        chosen = [index for index in verdict.fresh.tolist() if digests[index] is not None]
        if not chosen:
            return
        topic, book, now_us = verdict.topic, verdict.book, verdict.now_us
        segment = segment_of(topic, now_us)
        segments = book.segments
        if segment not in segments:
            if len(segments) >= SEGMENTS_MAX:
                segments = self._stage_expiry(staging, topic, book, now_us)
            segments = tuple(sorted((*segments, segment)))
        marks = np.empty(len(chosen), _MARK)
        marks["version"], marks["at_us"] = _VERSION, now_us
        marks["partition"], marks["offset"] = places.partitions[chosen], places.offsets[chosen]
        marks["message_id"] = places.ids[chosen]
        prefix, content, size = keys.dedup_prefix(topic.id, segment), marks.tobytes(), _MARK.itemsize
        staging.put_many(
            [prefix + (digests[index] or b"") for index in chosen],
            [content[at : at + size] for at in range(0, len(content), size)],
        )
        staging.put(keys.dedup_book_key(topic.id), Book(now_us, segments).encode())

    def has_expired(self, reader: Reader, topic: Topic) -> bool:
        """Return whether there are segments that nobody will ask for any more; blocking, any thread."""
        book = Book.decode(reader.get(keys.dedup_book_key(topic.id)), topic)
        horizon_us = max(self._clock.now_us(), book.newest_us) - dedup_us(topic)
        return any(segment <= horizon_us for segment in book.segments)

    def stage_expire(self, staging: Staging, topic: Topic) -> int:
        """Remove segments that are over, whole; give how many."""
        current = staged_topic(staging, topic)
        if current.dedup_seconds is None:
            return 0  # changed since the list was made, and its keys went with the change
        key = keys.dedup_book_key(topic.id)
        book = Book.decode(staging.get(key), topic)
        now_us = max(self._clock.now_us(), book.newest_us)
        left = self._stage_expiry(staging, current, book, now_us)
        if len(left) < len(book.segments):
            # From here on it is so late: a clock that is set back cannot ask for what is gone.
            staging.put(key, Book(now_us, left).encode())
        return len(book.segments) - len(left)

    def _stage_expiry(self, staging: Staging, topic: Topic, book: Book, now_us: int) -> tuple[int, ...]:
        horizon_us = now_us - dedup_us(topic)
        left = tuple(segment for segment in book.segments if segment > horizon_us)
        if len(left) < len(book.segments):
            span = keys.dedup_range(topic.id, 0, horizon_us + 1)
            staging.delete_range(span.start, span.stop)
        return left

    def tidy(self, engine: Engine, topic: Topic) -> None:
        """Give the disk back what large segments had that went; blocking, any thread."""
        if topic.dedup_seconds is not None and topic.dedup_seconds >= TIDY_SECONDS_MIN:
            book = Book.decode(engine.get(keys.dedup_book_key(topic.id)), topic)
            engine.compact(keys.dedup_range(topic.id, 0, min(book.segments, default=book.newest_us)))

    def stage_clear(self, staging: Staging, topic: Topic) -> None:
        """Forget all keys of a topic."""
        span = keys.dedup_everything(topic.id)
        staging.delete_range(span.start, span.stop)


def dedup_us(topic: Topic) -> int:
    """Return for how long a topic remembers dedup keys; one that takes none says so."""
    if topic.dedup_seconds is None:
        raise RequestInvalid(
            reason=f"Topic '{topic.name}' takes no dedup keys: it has no dedup_seconds.",
            hint=f"ALTER TOPIC {topic.name} SET (dedup_seconds = 86400) lets it, for a day; "
            "or leave the key out.",
        )
    return topic.dedup_seconds * _US


def segment_of(topic: Topic, now_us: int) -> int:
    """Return the segment of a moment: the end of it."""
    interval_us = max(dedup_us(topic) // 2, SEGMENT_SECONDS_MIN * _US)
    return (now_us // interval_us + 1) * interval_us


def checked_digests(topic: Topic, dedup_keys: Sequence[str | None]) -> list[bytes | None] | None:
    """Return the digests of dedup keys.

    None where no message has one. A topic that takes none refuses them.
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
