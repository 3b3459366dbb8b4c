"""The checkpoint of a Python consumer's deduplication: its next call, and outcomes kept for redeliveries.

A redelivered message is known by its stored key, time and offset. That fails when its own call, or one soon
after, moved stream time so far that its time no longer counts: it would be late. And a duplicate would be
unique when the time that it was in conflict with no longer counts. Only such outcomes are kept, in the output
file of the newest commit record.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.checkpoint import epochs
from tidegate.checkpoint.commit_record import committed_batches, read_commit_record
from tidegate.checkpoint.local.lock import FolderLock, lock_folder
from tidegate.checkpoint.local.store import local_files
from tidegate.checkpoint.output_file import read_output
from tidegate.checkpoint.store import CheckpointStore, partition_folder
from tidegate.dedup.columns import Bytes, Hashes, Longs
from tidegate.dedup.decision import DUPLICATE, UNIQUE, BatchColumns
from tidegate.errors import StateInvalid, StorageCorrupt

# The number of key groups that a Spark job has by default.
MAX_PARALLELISM = 128
# The folder of the locks: which deduplications are open.
HELD_NAME = "held"


def folder_of(argument: Any, name: str) -> Path:
    """Return the absolute path of the folder that an argument names; StateInvalid if it is no path."""
    path = os.fspath(argument) if isinstance(argument, str | os.PathLike) else None
    if not isinstance(path, str) or not path or "\0" in path:
        reason = f"its folder is {argument!r}; give the path of one as a text or a Path."
        raise StateInvalid(operator=name, reason=reason)
    return Path(path).absolute()


def check_epochs(checkpoint_store: CheckpointStore) -> None:
    """Raise StorageCorrupt if the epoch file of the newest calls is missing: all their keys would be lost.

    The file is written before the first call of the epoch, and removed before the calls when an epoch is
    removed; the newest epoch is never removed.
    """
    numbers = [int(name[1:]) for name in checkpoint_store.names() if name[:1] == "e" and name[1:].isdecimal()]
    if not numbers:
        return
    newest = f"e{max(numbers)}"
    record = f"{newest}/{epochs.RECORD_NAME}"
    if checkpoint_store.exists(record):
        return
    partitions = [int(name) for name in checkpoint_store.names(newest) if name.isdecimal()]
    if any(committed_batches(checkpoint_store, max(numbers), partition) for partition in partitions):
        reason = "the file is missing, and the calls that it belongs to are there"
        hint = "Put the file back from a backup, or restore the whole folder. Nothing was changed."
        raise StorageCorrupt(place=str(checkpoint_store.path(record)), reason=reason, hint=hint)


def lock_deduplication(folder: Path, name: str) -> FolderLock:
    """Return the lock on a deduplication; StateInvalid if another consumer holds it."""
    place = folder / HELD_NAME / name
    with local_files(place):
        found = lock_folder(place)
    if found is None:
        reason = f"another consumer has it open in {folder}. One has it at a time."
        hint = "Stop the other one, or give each a folder or a name of its own, and messages of its own keys."
        raise StateInvalid(operator=name, reason=reason, hint=hint)
    return found


def max_parallelism_of(checkpoint_store: CheckpointStore) -> int:
    """Return the number of key groups of the checkpoint; that of a Spark job for a new one."""
    found = epochs.list_epochs(checkpoint_store)
    return found[-1].max_parallelism if found else MAX_PARALLELISM


def next_number(checkpoint_store: CheckpointStore) -> int:
    """Return the number of the next call: one more than the newest batch that all partitions committed."""
    found = epochs.list_epochs(checkpoint_store)
    return epochs.last_complete(checkpoint_store, found[-1]) + 1 if found else 0


def recent_of(checkpoint_store: CheckpointStore, number: int) -> RecentOutcomes:
    """Return the outcomes that a call kept; none before the first call."""
    found = epochs.governing(epochs.list_epochs(checkpoint_store), number)
    commit = None if found is None else read_commit_record(checkpoint_store, found.number, 0, number)
    if commit is None or commit.out is None:
        return RecentOutcomes.none()
    return RecentOutcomes.of_batches(
        read_output(checkpoint_store, partition_folder(commit.epoch, commit.partition), commit.out)
    )


# The most outcomes kept of calls before the newest, in a file of about 2 MB.
ROWS_MAX = 65_536
# A consumer that restarts where it last acknowledged repeats at most so many calls.
CALLS_MAX = 64

SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("hash", pa.uint64()),
        ("time_us", pa.int64()),
        ("outcome", pa.uint8()),
        ("first_us", pa.int64()),
        ("call", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class RecentOutcomes:
    """Outcomes of messages of the newest calls that the store could not return again, sorted by offset."""

    table: pa.Table

    @classmethod
    def none(cls) -> RecentOutcomes:
        """Return the outcomes of a deduplication without any call."""
        return cls(SCHEMA.empty_table())

    @classmethod
    def of_batches(cls, batches: Iterable[pa.RecordBatch]) -> RecentOutcomes:
        """Return the outcomes of an output file; batches of another schema are ignored."""
        found = [batch for batch in batches if batch.schema.equals(SCHEMA)]
        return cls(pa.Table.from_batches(found, SCHEMA))

    def recall(self, rows: BatchColumns, outcome: Bytes, first_us: Longs) -> Longs:
        """Set the outcome of the rows that are known, and return their numbers.

        Of one message that occurs twice in the call, the second is a duplicate of the first.
        """
        if not len(self.table) or rows.offsets is None:
            return np.empty(0, np.int64)
        offsets, hashes, times_us, outcomes, firsts_us, _ = self._arrays()
        places = np.minimum(np.searchsorted(offsets, rows.offsets), len(offsets) - 1)
        known = (offsets[places] == rows.offsets) & (times_us[places] == rows.times_us)
        known &= hashes[places] == rows.keys.hashes
        numbers = np.flatnonzero(known)
        outcome[numbers] = outcomes[places[numbers]]
        first_us[numbers] = firsts_us[places[numbers]]
        _, firsts = np.unique(rows.offsets[numbers], return_index=True)
        later = np.setdiff1d(numbers, numbers[firsts], assume_unique=True)
        first_us[later] = np.where(outcome[later] == UNIQUE, rows.times_us[later], first_us[later])
        outcome[later] = DUPLICATE
        return numbers

    def after(
        self, rows: BatchColumns, outcome: Bytes, first_us: Longs, newest: tuple[int, int]
    ) -> RecentOutcomes:
        """Return the outcomes to keep after a call: `newest` is its number and the first time that counts."""
        call, counts_from_us = newest
        older = self.table
        older = older.filter(pa.compute.greater_equal(older["call"], call - CALLS_MAX))
        if rows.offsets is not None and len(rows):
            changes = (outcome == UNIQUE) & (rows.times_us < counts_from_us)
            changes |= (outcome == DUPLICATE) & (np.minimum(first_us, rows.times_us) < counts_from_us)
            numbers = np.flatnonzero(changes)
        else:
            numbers = np.empty(0, np.int64)
        if not len(numbers) and len(older) == len(self.table) <= ROWS_MAX:
            return self
        if len(older) > ROWS_MAX:
            older = older.sort_by([("call", "descending")]).slice(0, ROWS_MAX)
        return RecentOutcomes(_merged(older, _new(rows, outcome, first_us, numbers, call)))

    def _arrays(self) -> list[np.ndarray[Any, Any]]:
        return [column.to_numpy() for column in self.table.columns]


def _new(rows: BatchColumns, outcome: Bytes, first_us: Longs, numbers: Longs, call: int) -> pa.Table:
    if rows.offsets is None:
        return SCHEMA.empty_table()
    hashes: Hashes = rows.keys.hashes
    picked = [column[numbers] for column in (rows.offsets, hashes, rows.times_us, outcome, first_us)]
    calls = np.full(len(numbers), call, np.int64)
    arrays = [pa.array(column, field.type) for column, field in zip([*picked, calls], SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _merged(older: pa.Table, newer: pa.Table) -> pa.Table:
    """Return one line for each offset: the outcome returned first; unique before duplicate in one call."""
    both = pa.concat_tables([older, newer]).combine_chunks()
    both = both.sort_by([("offset", "ascending"), ("call", "ascending"), ("outcome", "ascending")])
    offsets = both["offset"].to_numpy()
    is_first = np.r_[True, offsets[1:] != offsets[:-1]] if len(offsets) else np.empty(0, np.bool_)
    return both.filter(pa.array(is_first))
