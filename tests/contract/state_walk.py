"""Random walks through all states and a plain model of them, which must never differ.

`python -m tests.contract.state_walk --minutes 5` walks on and on with new seeds, and prints each.
"""

from __future__ import annotations

import argparse
import copy
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.checkpoint.backends.opening import open_backend
from tests.checkpoint.bench import Bench
from tests.contract.state_model import Entry, Model
from tests.state.kinds.test_declaration import Average, Mean
from tidegate.state.kinds.list import ListState
from tidegate.state.kinds.map import MapState
from tidegate.state.kinds.reducing import AggregatingState, ReducingState
from tidegate.state.kinds.value import ValueState
from tidegate.state.ttl import Ttl
from tidegate.state.write_batch import WriteBatch

KEYS = ["", "ann", "bob", "a\x00b", "a"]
SUBS = [-300, -1, 0, 1, 7, 2**40]
# Small enough that a walk spills many times.
SPILLING_BYTES = 4_000

TTLS: dict[str, Ttl | None] = {
    "none": None,
    "write": Ttl("10 ms"),
    "read": Ttl("10 ms", update="OnReadAndWrite", cleanup="FullSnapshot"),
    "incremental": Ttl("10 ms", cleanup="IncrementalCleanup", entries_per_access=3),
    "shown": Ttl("10 ms", update="OnReadAndWrite", visibility="ReturnExpiredIfNotCleanedUp"),
    "event": Ttl("10 ms", clock="event"),
    "event read": Ttl("10 ms", clock="event", update="OnReadAndWrite"),
}


class Walk:
    """One walk: each step does the same to the states and to the model, and compares what they say."""

    def __init__(self, seed: int, kind: str, ttl: Ttl | None, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.kind, self.ttl, self.folder = kind, ttl, folder
        self.bench = Bench(kind, folder)
        self.model = Model(ttl)
        self.watermark_ms = 0
        self.is_spilling = self.rng.random() < 0.5
        self.is_event = ttl is not None and ttl.clock == "event"
        self.begin()

    def begin(self) -> None:
        """Begin a batch and bind the states."""
        bench = self.bench.batch(self.model.now_ms, self.watermark_ms)
        if self.is_spilling:
            bench.stage = WriteBatch(bench.backend, stage_bytes_max=SPILLING_BYTES, spill=lambda _: None)
        self.value = bench.bind(ValueState(int, default=-1, ttl=self.ttl), 1)
        self.elements = bench.bind(ListState(str, ttl=self.ttl), 2)
        self.entries = bench.bind(MapState(int, list[int], ttl=self.ttl), 3)
        self.total = bench.bind(ReducingState(int, np.add, ttl=self.ttl), 4)
        self.mean = bench.bind(AggregatingState(Average(), ttl=self.ttl), 5)

    def end(self) -> None:
        """Clean, commit, let time pass, and sometimes open the copy anew."""
        shows = self.ttl is not None and self.ttl.visibility == "ReturnExpiredIfNotCleanedUp"
        if not shows:
            self.bench.clean(
                self.model.now_ms, watermark_ms=self.watermark_ms, snapshot=self.rng.random() < 0.3
            )
        self.bench.commit()
        if self.rng.random() < 0.2:
            self.bench.backend.close()
            self.bench.backend = open_backend(self.kind, self.folder)
        self.watermark_ms += self.rng.choice([0, 1, 5, 9, 2_000])
        self.model.now_ms = max(self.model.now_ms, self.watermark_ms)
        self.begin()

    def run(self, steps: int) -> None:
        """Walk so many steps."""
        for _ in range(steps):
            draw = self.rng.random()
            if draw < 0.04:
                self.end()
            elif draw < 0.12:
                self.fail_a_row()
            elif draw < 0.2:
                self.many()
            else:
                self.row()
        self.end()
        if self.ttl is not None:
            self.forget_everything(self.model.now_ms + 1_000_000)
        self.bench.backend.close()

    def forget_everything(self, now_ms: int) -> None:
        """Long after, cleaning leaves nothing: neither entries nor the index that names them."""
        for _ in range(2):
            for state in self.bench.states:
                state.cells.accesses = 10_000
            self.bench.clean(now_ms, watermark_ms=now_ms, snapshot=True)
            self.bench.commit()
            self.begin()
        assert self.bench.entry_count() == 0

    def row(self) -> None:
        """Do some things to one key."""
        key = self.rng.choice(KEYS)
        if self.is_event:
            self.model.now_ms = self.watermark_ms + self.rng.randrange(15)
        self.bench.on(key, self.model.now_ms)
        for _ in range(self.rng.randrange(1, 5)):
            self.rng.choice([self.on_value, self.on_list, self.on_map, self.on_map, self.on_folds])(key)
        self.bench.cursor.leave()

    def fail_a_row(self) -> None:
        """Do things that are undone."""
        before = copy.deepcopy(self.model.keys)
        self.bench.stage.begin_row()
        self.row()
        self.bench.stage.undo_row()
        self.model.keys = before

    def on_value(self, key: str) -> None:
        mine, cells = self.model, self.model.of(key).value
        match self.rng.randrange(4):
            case 0 | 1:
                found = mine.read(cells)
                assert self.value.value() == (-1 if found is None else found)
            case 2:
                number = self.rng.randrange(-(2**63), 2**63)
                self.value.update(number)
                mine.write(cells, number)
            case _:
                self.value.clear()
                cells.clear()

    def on_list(self, key: str) -> None:
        mine, kept = self.model, self.model.of(key)
        words = [self.rng.choice(["", "x", "ü" * 30]) for _ in range(self.rng.randrange(4))]
        match self.rng.randrange(6):
            case 0 | 1:
                assert self.elements.get() == mine.listed(key)
            case 2:
                self.elements.add("one")
                kept.elements.append(Entry("one", mine.now_ms))
            case 3:
                self.elements.add_all(words)
                kept.elements += [Entry(word, mine.now_ms) for word in words]
            case 4:
                self.elements.update(iter(words))
                kept.elements = [Entry(word, mine.now_ms) for word in words]
            case _:
                self.elements.clear()
                kept.elements.clear()

    def on_map(self, key: str) -> None:
        mine, cells = self.model, self.model.of(key).entries
        sub = self.rng.choice(SUBS)
        match self.rng.randrange(10):
            case 0 | 1:
                assert self.entries.get(sub) == mine.read(cells, sub)
            case 2 | 3:
                self.entries.put(sub, [sub, 1])
                mine.write(cells, [sub, 1], sub)
            case 4:
                self.entries.remove(sub)
                cells.pop(sub, None)
            case 5:
                assert self.entries.contains(sub) == (mine.read(cells, sub) is not None)
            case 6:
                assert self.entries.entries() == mine.items(key)
            case 7:
                assert self.entries.keys() == [sub for sub, _ in mine.items(key)]
                assert self.entries.values() == [value for _, value in mine.items(key)]
            case 8:
                seen = [entry for entry in cells.values() if mine.is_seen(entry, touch=False)]
                assert self.entries.is_empty() == (not seen)
            case _:
                if self.rng.random() < 0.5:
                    self.entries.clear()
                    cells.clear()
                else:
                    self.entries.put_all({1: [1], sub: []})
                    mine.write(cells, [1], 1)
                    mine.write(cells, [], sub)

    def on_folds(self, key: str) -> None:
        mine, kept = self.model, self.model.of(key)
        number = self.rng.randrange(1_000)
        match self.rng.randrange(5):
            case 0 | 1:
                assert self.total.get() == mine.read(kept.total)
                found = mine.read(kept.mean)
                assert self.mean.get() == (None if found is None else found.total / found.count)
            case 2 | 3:
                self.total.add(number)
                mine.write(kept.total, (mine.read(kept.total) or 0) + number)
                self.mean.add(number)
                old = mine.read(kept.mean) or Mean()
                mine.write(kept.mean, Mean(old.total + number, old.count + 1))
            case _:
                self.total.clear()
                self.mean.clear()
                kept.total.clear()
                kept.mean.clear()

    def many(self) -> None:
        """Read and write many keys at once."""
        if self.is_event:
            self.model.now_ms = self.watermark_ms + self.rng.randrange(15)
        self.bench.cursor.event_ms = self.model.now_ms
        mine, keys = self.model, self.bench.on_all(KEYS)
        some = [self.rng.choice(KEYS) for _ in range(self.rng.randrange(1, 6))]
        numbers = [self.rng.randrange(100) for _ in some]
        match self.rng.randrange(4):
            case 0:
                found = [mine.read(mine.of(key).value) for key in KEYS]
                assert self.value.get_many(keys).tolist() == [-1 if one is None else one for one in found]
            case 1:
                once = dict(zip(some, numbers, strict=True))
                self.value.put_many(pa.array(list(once)), np.array(list(once.values())))
                for key, number in once.items():
                    mine.write(mine.of(key).value, number)
            case 2:
                self.total.add_many(pa.array(some), np.array(numbers))
                for key, number in zip(some, numbers, strict=True):
                    cells = mine.of(key).total
                    mine.write(cells, (mine.read(cells) or 0) + number)
            case _:
                self.elements.add_many(pa.array(some), ["many"] * len(some))
                for key in some:
                    mine.of(key).elements.append(Entry("many", mine.now_ms))
        self.bench.cursor.leave()


def walk(seed: int, kind: str, ttl_name: str, folder: Path, steps: int) -> None:
    """Walk once; an AssertionError names what differed."""
    Walk(seed, kind, TTLS[ttl_name], folder).run(steps)


def main() -> None:
    """Walk until the time is over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**9)
    asked: Any = parser.parse_args()
    stop = time.monotonic() + asked.minutes * 60
    seed = asked.seed
    while time.monotonic() < stop:
        for kind in ("heap", "rocksdb"):
            for ttl_name in TTLS:
                print(f"seed {seed} {kind} {ttl_name}", flush=True)
                with tempfile.TemporaryDirectory() as folder:
                    walk(seed, kind, ttl_name, Path(folder) / "copy", 600)
        seed += 1


if __name__ == "__main__":
    main()
