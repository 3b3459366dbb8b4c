"""A store that works until it is killed: `python -m tests.dedup.store.store_child FOLDER SEED BATCHES`.

It opens what is there, catches up, and says each batch before it takes it.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np

from tests.dedup.store.stores import DAY, SETTINGS, Remembered, packed, random_keys, version
from tidegate.checkpoint.backend import StateChanges
from tidegate.dedup.columns import Bytes, Longs
from tidegate.dedup.store import segment
from tidegate.dedup.store.store import SegmentStore

# Small, so that batches come as files often and each of them is quick.
FILE_KEYS_MIN = 300
SIZES = (20, 200, 3_000)
DAYS_PER_BATCH = 9


def make_files_of_few_keys() -> None:
    """Let batches come as files often, in the whole of this process: tests undo it."""
    segment.FILE_KEYS_MIN = FILE_KEYS_MIN  # type: ignore[attr-defined]


def rows_of(seed: int, batch: int) -> tuple[Bytes, Longs]:
    """Return the keys and times of a batch, the same each time; times spread over some segments."""
    rng = np.random.default_rng([seed, batch])
    size = int(rng.choice(SIZES))
    newest_us = (batch * DAYS_PER_BATCH - 70) * DAY
    return random_keys(rng, size), newest_us - rng.integers(0, 90 * DAY, size)


def stream_us(seed: int, batch: int) -> int | None:
    """Return the newest time of the batches before."""
    return max((int(rows_of(seed, before)[1].max()) for before in range(batch)), default=None)


def opened(folder: Path) -> tuple[SegmentStore, int]:
    """Open a copy and give it with the batch that comes next; one that stands nowhere is begun anew."""
    store = SegmentStore(folder, SETTINGS)
    here = store.version()
    if here is None:
        store.close()
        shutil.rmtree(folder)
        return SegmentStore(folder, SETTINGS), 0
    return store, here.batch + 1


def take(store: SegmentStore, seed: int, batch: int) -> None:
    """Take one batch as a task does; some of them in several parts."""
    store.expire(stream_us(seed, batch))
    changes = packed(SETTINGS.rule, *rows_of(seed, batch))
    if batch % 3 == 1:
        for entries in changes.packed[:-1]:
            store.apply_early(StateChanges(packed=[entries]), version(batch))
        changes = StateChanges(packed=changes.packed[-1:])
    store.apply(changes, version(batch))


def remembered(seed: int, batches: int) -> Remembered:
    """Return what a store knows after so many batches."""
    known = Remembered()
    for batch in range(batches):
        known.add(*rows_of(seed, batch))
    first_live = SETTINGS.rule.first_live(stream_us(seed, batches - 1))
    if first_live is not None:
        known.expire(SETTINGS.rule.start_us(first_live))
    return known


def main(folder: Path, seed: int, batches: int) -> None:
    """Take batches until the end, or until somebody kills us."""
    make_files_of_few_keys()
    store, first = opened(folder)
    for batch in range(first, batches):
        sys.stdout.write(f"{batch}\n")
        sys.stdout.flush()
        take(store, seed, batch)
        if batch % 4 == 0:
            store.snapshot(folder.with_name("snapshot"))
            shutil.rmtree(folder.with_name("snapshot"))
    store.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
