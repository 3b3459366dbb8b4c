"""Savepoints: takes a running or stopped operator's checkpoint, gives a named state that stays.

A savepoint is a folder of its own below `savepoints/`, with links to or copies of the files it needs, so it
survives pruning and the removal of everything else in the checkpoint. It is built under a spare name and
renamed when it is whole. Format: savepoint_record.py.
"""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path

from tidegate.errors import CheckpointUnusable, NameInvalid, SavepointExists, StateNotFound, StorageCorrupt
from tidegate.model.clock import Clock
from tidegate.model.names import shorten
from tidegate.state import epochs
from tidegate.state.depot import Depot, operator_depot, refusal
from tidegate.state.epochs import Epoch
from tidegate.state.savepoint_files import FilesMoved, place_epoch, place_schemas
from tidegate.state.savepoint_record import RECORD_NAME, Savepoint, read_savepoint
from tidegate.storage.files import sync_folder, sync_tree

SAVEPOINTS_FOLDER = "savepoints"
NAME_CHARS_MAX = 63  # as for pipelines: also the name of a folder

# No query prunes faster than files are linked five times in a row; in a damaged checkpoint files are missing.
TRIES_MAX = 5
# Attempts that fight for one spare name; each killed one leaves one behind for a day.
SPARES_MAX = 1_000
# What a killed attempt leaves is removed by a later one; no attempt takes a day.
SPARE_AGE_MS_MAX = 24 * 3_600 * 1_000

_SPARE_SUFFIX = ".new"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_RULE = (
    "A savepoint's name has letters a-z and A-Z, digits, '_' and '-', begins with a letter or a digit, "
    f"and is {NAME_CHARS_MAX} characters at most."
)


def make(checkpoint: str | Path, operator: str, name: str, clock: Clock) -> Savepoint:
    """Keep the state after the newest complete batch under a name; the query may run meanwhile.

    SavepointExists when the name is taken. All or nothing: it is there and whole on the disk, or not at all.
    """
    check_savepoint_name(name)
    depot = operator_depot(str(checkpoint), operator)
    target = depot.path(f"{SAVEPOINTS_FOLDER}/{name}")
    if not epochs.listed(depot):
        raise StateNotFound(state=operator)
    if target.exists():
        raise SavepointExists(savepoint=name, operator=operator)
    now_ms = clock.now_us() // 1_000
    _remove_old_spares(target.parent, now_ms)
    moved: FilesMoved | None = None
    for _ in range(TRIES_MAX):
        spare = _new_spare(target)
        try:
            made = _build(depot, Depot(spare), operator, name, now_ms)
            sync_tree(spare)
            _rename(spare, target, operator)
            return made
        except FilesMoved as problem:
            moved = problem  # the query went on and pruned; what it has now is newer
        except OSError as problem:
            raise refusal(target, problem) from problem
        finally:
            shutil.rmtree(spare, ignore_errors=True)
    raise StorageCorrupt(place=str(moved and moved.path), reason="the file is missing") from moved


def listing(checkpoint: str | Path, operator: str) -> list[Savepoint]:
    """Give the savepoints of an operator, oldest first."""
    depot = operator_depot(str(checkpoint), operator)
    names = [name for name in depot.names(SAVEPOINTS_FOLDER) if _NAME.fullmatch(name)]
    folders = [depot.path(f"{SAVEPOINTS_FOLDER}/{name}") for name in names]
    found = [read_savepoint(folder) for folder in folders if (folder / RECORD_NAME).exists()]
    return sorted(found, key=lambda made: (made.made_at_ms, made.name))


def remove(checkpoint: str | Path, operator: str, name: str) -> None:
    """Remove a savepoint; StateNotFound when there is none of that name."""
    folder = path_of(checkpoint, operator, name)
    spare = _new_spare(folder)
    try:
        folder.rename(spare)
    except OSError as problem:
        raise refusal(folder, problem) from problem
    shutil.rmtree(spare, ignore_errors=True)


def path_of(checkpoint: str | Path, operator: str, name: str) -> Path:
    """Give the folder of a savepoint, which a start from it names; StateNotFound when there is none."""
    check_savepoint_name(name)
    depot = operator_depot(str(checkpoint), operator)
    folder = depot.path(f"{SAVEPOINTS_FOLDER}/{name}")
    read_savepoint(folder)
    return folder


def check_savepoint_name(name: str) -> str:
    """Give the name back, or raise NameInvalid with what is wrong and the rule."""
    if len(name) > NAME_CHARS_MAX or not _NAME.fullmatch(name):
        reason = f"it has {len(name)} characters" if len(name) > NAME_CHARS_MAX else "it breaks the rule"
        raise NameInvalid(name=shorten(name), noun="savepoint", reason=reason, rule=_RULE)
    return name


def _build(depot: Depot, target: Depot, operator: str, name: str, now_ms: int) -> Savepoint:
    epoch, batch = _newest(depot, operator)
    times = epochs.times_after(depot, epoch, batch)
    size_bytes = place_epoch(depot, target, epoch, batch)
    schema, schema_bytes = place_schemas(depot, target)
    made = Savepoint(
        name=name,
        operator=operator,
        epoch=epoch.number,
        batch=batch,
        parallelism=epoch.parallelism,
        max_parallelism=epoch.max_parallelism,
        schema=schema,
        order_shift=epoch.order_shift,
        times=times,
        made_at_ms=now_ms,
        size_bytes=size_bytes + schema_bytes,
    )
    target.put_new(RECORD_NAME, made.to_bytes())
    return made


def _newest(depot: Depot, operator: str) -> tuple[Epoch, int]:
    """Give the newest complete batch and its epoch: the parent's when the newest epoch has none yet."""
    epoch = epochs.listed(depot)[-1]
    batch = epochs.last_complete(depot, epoch)
    if batch >= epoch.first_batch:
        return epoch, batch
    # Old tasks may have gone on in the parent; what counts ended with the batch that the epoch came from.
    parent = epoch.parent
    if parent is None or parent.savepoint is not None:
        raise StateNotFound(state=operator, hint="No batch of it is complete yet: let the query run first.")
    found = epochs.read(depot, parent.epoch)
    if found is None:
        raise FilesMoved(depot.path(f"e{parent.epoch}"))
    return found, parent.batch


def _rename(spare: Path, target: Path, operator: str) -> None:
    try:
        spare.rename(target)
    except OSError as problem:
        if problem.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise SavepointExists(savepoint=target.name, operator=operator) from problem
        raise
    sync_folder(target.parent)


def _new_spare(target: Path) -> Path:
    """Make a folder beside a savepoint that nobody else has; no savepoint can have such a name."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for number in range(SPARES_MAX):
        spare = target.with_name(f"{target.name}.{number}{_SPARE_SUFFIX}")
        try:
            spare.mkdir()
        except FileExistsError:
            continue
        return spare
    raise CheckpointUnusable(path=str(target), reason=f"{SPARES_MAX} spare folders lie there")


def _remove_old_spares(folder: Path, now_ms: int) -> None:
    for spare in folder.glob(f"*{_SPARE_SUFFIX}"):
        if now_ms - spare.stat().st_mtime_ns // 1_000_000 > SPARE_AGE_MS_MAX:
            shutil.rmtree(spare, ignore_errors=True)
