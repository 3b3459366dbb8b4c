"""Streams drawn by a seed: rows that come near every edge of the rule, in batches."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tests.dedup.model import Row

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US

# Retention and interval: the seed's, days, the rule of 60 s, intervals that are given, odd lengths.
RULES: tuple[tuple[int, int | None], ...] = (
    (100 * DAY_US, None),
    (3 * DAY_US, None),
    (10 * SECOND_US, None),
    (SECOND_US // 2, None),
    (120 * SECOND_US, None),
    (120 * SECOND_US, 7 * SECOND_US),
    (90 * SECOND_US, 600 * SECOND_US),
    (1, None),
    (61_234_567, 61_235 * 1_000),
)
# Where streams begin: 1970, before it, now; the last just below a boundary of most intervals.
BEGINNINGS_US = (0, -400 * DAY_US, 1_767_225_600 * SECOND_US, -1)

_TEXTS = ("", "a", "b", "ab", "é", "a\x00", None)
_NUMBERS = (0, -1, 7, 2**62, None)


@dataclass(frozen=True)
class Stream:
    """A stream: the retention, the interval if it is given, whether rows have offsets, and its batches."""

    retention_us: int
    interval_us: int | None
    with_offsets: bool
    batches: tuple[tuple[Row, ...], ...]


def draw(seed: int, *, batches: int = 8, rows_max: int = 24) -> Stream:
    """Return the stream of a seed; a key is a text and a number, either of which may be missing."""
    chance = random.Random(seed)
    retention_us, interval_us = chance.choice(RULES)
    return _Drawing(chance, retention_us, interval_us).stream(batches, rows_max)


class _Drawing:
    def __init__(self, chance: random.Random, retention_us: int, interval_us: int | None) -> None:
        self._chance = chance
        self._retention_us = retention_us
        self._interval_us = interval_us
        self._cut_us = interval_us or max(retention_us // 2, 60 * SECOND_US)
        self._now_us = chance.choice(BEGINNINGS_US)
        self._offset = 0
        self._seen: list[Row] = []
        self._keys = [(chance.choice(_TEXTS), chance.choice(_NUMBERS)) for _ in range(chance.randint(1, 12))]

    def stream(self, batches: int, rows_max: int) -> Stream:
        with_offsets = self._chance.random() < 0.5
        found = tuple(self._batch(self._chance.randint(0, rows_max), with_offsets) for _ in range(batches))
        return Stream(self._retention_us, self._interval_us, with_offsets, found)

    def _batch(self, count: int, with_offsets: bool) -> tuple[Row, ...]:
        rows: list[Row] = []
        for _ in range(count):
            if rows and self._chance.random() < 0.15:
                row = replace(self._chance.choice(rows), tie=self._chance.getrandbits(60))
            else:
                row = Row(self._chance.choice(self._keys), self._time(), tie=self._chance.getrandbits(60))
            if with_offsets:
                # Now and then a source counts an offset twice.
                self._offset += self._chance.choice((1, 1, 1, 0))
                row = replace(row, offset=self._offset)
            rows.append(row)
        self._seen = (self._seen + rows)[-200:]
        self._chance.shuffle(rows)
        return tuple(rows)

    def _time(self) -> int:
        """Draw an event time: of a clock that moves and jumps, or at an edge."""
        chance, retention_us = self._chance, self._retention_us
        kind = chance.random()
        edge_us = chance.choice((-1, 0, 1))
        if kind < 0.35:
            self._now_us += chance.randint(0, max(1, retention_us // 20))
            return self._now_us
        if kind < 0.55 and self._seen:
            return chance.choice(self._seen).time_us + chance.choice((-1, 1)) * retention_us + edge_us
        if kind < 0.65 and self._seen:
            return chance.choice(self._seen).time_us + edge_us
        if kind < 0.75:
            return (self._now_us // self._cut_us + chance.choice((-1, 0, 1))) * self._cut_us + min(0, edge_us)
        if kind < 0.93:
            return self._now_us - chance.randint(0, retention_us * 13 // 10)
        if kind < 0.97:
            return self._now_us + retention_us + edge_us
        self._now_us += chance.choice((-1, 1)) * chance.randint(0, 3 * retention_us)
        return self._now_us
