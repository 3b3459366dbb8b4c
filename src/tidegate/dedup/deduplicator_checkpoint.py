"""The folder of a Python consumer's deduplication: takes a checkpoint, gives where its next call begins.

What stored times cannot tell of messages that come again: takes outcomes, gives those that would change.

A message that a consumer gets again is known by its stored key, time and offset. That fails when its own
call, or one soon after, moved stream time so far that its time no longer counts: it would be late. And a
duplicate would be unique, when the time that it was in conflict with no longer counts. These few are kept,
beside the newest head, in the file of its output.
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
from tidegate.checkpoint.commit_record import head_batches, read_head
from tidegate.checkpoint.local.lock import Claim, claim
from tidegate.checkpoint.local.store import local_files
from tidegate.checkpoint.output_file import read_output
from tidegate.checkpoint.store import Depot, partition_folder
from tidegate.dedup.columns import Bytes, Hashes, Longs
from tidegate.dedup.decision import DUPLICATE, UNIQUE, BatchColumns
from tidegate.errors import StateInvalid, StorageCorrupt

# As many key groups as a Spark job has unless it is told otherwise.
MAX_PARALLELISM = 128
# In the folder: who has which deduplication open.
HELD_NAME = "held"


def folder_of(given: Any, name: str) -> Path:
    """Return the folder that a caller names; StateInvalid for what is no name of one."""
    path = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(path, str) or not path or "\0" in path:
        reason = f"its folder is {given!r}; give the path of one as a text or a Path."
        raise StateInvalid(operator=name, reason=reason)
    return Path(path)


def check_epochs(depot: Depot) -> None:
    """Refuse a folder that lost the record of its newest calls: all they stored would be forgotten.

    The record is there before the first call is, and it goes before they go when an epoch is removed; but
    the newest epoch is never removed.
    """
    numbers = [int(name[1:]) for name in depot.names() if name[:1] == "e" and name[1:].isdecimal()]
    if not numbers:
        return
    newest = f"e{max(numbers)}"
    record = f"{newest}/{epochs.RECORD_NAME}"
    if depot.exists(record):
        return
    partitions = [int(name) for name in depot.names(newest) if name.isdecimal()]
    if any(head_batches(depot, max(numbers), partition) for partition in partitions):
        reason = "the file is missing, and the calls that it belongs to are there"
        hint = "Put the file back from a backup, or restore the whole folder. Nothing was changed."
        raise StorageCorrupt(place=str(depot.path(record)), reason=reason, hint=hint)


def claimed(folder: Path, name: str) -> Claim:
    """Take a deduplication for this consumer; StateInvalid when another one has it."""
    place = folder / HELD_NAME / name
    with local_files(place):
        found = claim(place)
    if found is None:
        reason = f"another consumer has it open in {folder}. One has it at a time."
        hint = "Stop the other one, or give each a folder or a name of its own, and messages of its own keys."
        raise StateInvalid(operator=name, reason=reason, hint=hint)
    return found


def max_parallelism_of(depot: Depot) -> int:
    """Return how many key groups the checkpoint has; a new one has as many as a Spark job's."""
    found = epochs.listed(depot)
    return found[-1].max_parallelism if found else MAX_PARALLELISM


def next_number(depot: Depot) -> int:
    """Return the number of the next call: that after the newest batch that all partitions have done."""
    found = epochs.listed(depot)
    if not found:
        return 0
    newest = found[-1]
    done = [
        max(head_batches(depot, newest.number, partition), default=newest.first_batch - 1)
        for partition in range(newest.parallelism)
    ]
    return min(done) + 1


def recent_of(depot: Depot, number: int) -> Recent:
    """Return what a call kept of messages that stored times cannot tell; nothing before the first one."""
    found = epochs.governing(epochs.listed(depot), number)
    head = None if found is None else read_head(depot, found.number, 0, number)
    if head is None or head.out is None:
        return Recent.none()
    return Recent.of_batches(read_output(depot, partition_folder(head.epoch, head.partition), head.out))


# Of calls before the newest; the newest call's are all kept. A file of so many has about 2 MB.
ROWS_MAX = 65_536
# A consumer that begins again where it last acknowledged has come past them after so many calls.
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
class Recent:
    """Messages of the newest calls whose outcome the store could not tell again, sorted by offset."""

    table: pa.Table

    @classmethod
    def none(cls) -> Recent:
        """Return that of a deduplication without any call."""
        return cls(SCHEMA.empty_table())

    @classmethod
    def of_batches(cls, batches: Iterable[pa.RecordBatch]) -> Recent:
        """Return what `table` was when it was written; nothing of a file that holds something else."""
        found = [batch for batch in batches if batch.schema.equals(SCHEMA)]
        return cls(pa.Table.from_batches(found, SCHEMA))

    def recall(self, rows: BatchColumns, outcome: Bytes, first_us: Longs) -> Longs:
        """Set the outcome of rows that are known, and give their numbers.

        Of one message that comes twice in the call, the second is a duplicate of the first.
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

    def after(self, rows: BatchColumns, outcome: Bytes, first_us: Longs, kept: tuple[int, int]) -> Recent:
        """Return what is kept after a call: `kept` is its number, and the first time that counts after it."""
        call, counts_from_us = kept
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
        return Recent(_merged(older, _new(rows, outcome, first_us, numbers, call)))

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
    """Return one line for each offset: what was told first holds; unique before duplicate in one call."""
    both = pa.concat_tables([older, newer]).combine_chunks()
    both = both.sort_by([("offset", "ascending"), ("call", "ascending"), ("outcome", "ascending")])
    offsets = both["offset"].to_numpy()
    is_first = np.r_[True, offsets[1:] != offsets[:-1]] if len(offsets) else np.empty(0, np.bool_)
    return both.filter(pa.array(is_first))
