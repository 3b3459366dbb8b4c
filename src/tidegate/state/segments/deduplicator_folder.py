"""The folder of a Python consumer's deduplication: takes a checkpoint, gives where its next call begins."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tidegate.errors import StateInvalid, StorageCorrupt
from tidegate.state import epochs
from tidegate.state.claims import Claim, claim
from tidegate.state.depot import Depot, partition_folder
from tidegate.state.heads import head_batches, read_head
from tidegate.state.local import local_files
from tidegate.state.outputs import read_output
from tidegate.state.segments.deduplicator_recent import Recent

# As many key groups as a Spark job has unless it is told otherwise.
MAX_PARALLELISM = 128
# In the folder: who has which deduplication open.
HELD_NAME = "held"


def folder_of(given: Any, name: str) -> Path:
    """Give the folder that a caller names; StateInvalid for what is no name of one."""
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
    """Give how many key groups the checkpoint has; a new one has as many as a Spark job's."""
    found = epochs.listed(depot)
    return found[-1].max_parallelism if found else MAX_PARALLELISM


def next_number(depot: Depot) -> int:
    """Give the number of the next call: that after the newest batch that all partitions have done."""
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
    """Give what a call kept of messages that stored times cannot tell; nothing before the first one."""
    found = epochs.governing(epochs.listed(depot), number)
    head = None if found is None else read_head(depot, found.number, 0, number)
    if head is None or head.out is None:
        return Recent.none()
    return Recent.of_batches(read_output(depot, partition_folder(head.epoch, head.partition), head.out))
