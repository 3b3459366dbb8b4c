"""The check before a start: takes what the code wants, says how the checkpoint lets it begin, or refuses.

Nothing is written: a refused start leaves the checkpoint as it was.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tidegate.checkpoint import epochs
from tidegate.checkpoint.coalesce_guard import moved_batches
from tidegate.checkpoint.commit_record import head_name
from tidegate.checkpoint.epochs import NONE_SEEN, Epoch, check_parallelism
from tidegate.checkpoint.savepoints.record import read_savepoint
from tidegate.checkpoint.store import Depot, checkpoint_path, operator_depot
from tidegate.errors import StateMismatch
from tidegate.state.schema.schema import OperatorSchema, Wanted, check_schema, newest_schema, schema_changes

_SCHEMA = re.compile(r"schema\.\d+\.json")


@dataclass(frozen=True, slots=True)
class StartPlan:
    """How a query begins: with how many instances, at which batch, and what changes in its states.

    `parallelism` is None when neither the code nor the checkpoint nor the savepoint says. `next_batch` is the
    first that is not complete. `seen_epoch` belongs into every task's question (epochs.resolve), so that
    tasks of a run that was replaced are refused. `torn` says that `next_batch` was done in part,
    `is_rescale` that the number of instances changes. `changes` has a sentence for each state that is added,
    dropped, taken up again or migrated. `moved` are batches that were done by the wrong instances (moved.py).
    """

    parallelism: int | None
    next_batch: int
    seen_epoch: int
    torn: bool
    is_rescale: bool
    changes: tuple[str, ...]
    moved: tuple[int, ...] = ()


def check_start(
    checkpoint: str | Path, wanted: Wanted, parallelism: int | None, savepoint: str | Path | None = None
) -> StartPlan:
    """Return how a query with this operator begins from a checkpoint, or refuse with each reason."""
    depot = operator_depot(str(checkpoint), wanted.operator)
    known = epochs.listed(depot)
    if parallelism is not None:
        check_parallelism(wanted.operator, parallelism, wanted.max_parallelism)
    if known:
        return _continued(depot, known[-1], wanted, parallelism, savepoint)
    if savepoint is not None:
        return _from_savepoint(depot, wanted, parallelism, checkpoint_path(str(savepoint)).absolute())
    changes = _changes(depot, wanted)
    return StartPlan(parallelism, 0, NONE_SEEN, torn=False, is_rescale=False, changes=changes)


def _continued(
    depot: Depot, newest: Epoch, wanted: Wanted, parallelism: int | None, savepoint: str | Path | None
) -> StartPlan:
    _check_origin(newest, wanted, savepoint)
    _check_max_parallelism(newest.max_parallelism, wanted)
    chosen = parallelism or newest.parallelism
    next_batch = epochs.last_complete(depot, newest) + 1
    heads = (head_name(newest.number, partition, next_batch) for partition in range(newest.parallelism))
    return StartPlan(
        parallelism=chosen,
        next_batch=next_batch,
        seen_epoch=newest.number,
        torn=any(depot.exists(name) for name in heads),
        is_rescale=chosen != newest.parallelism,
        changes=_changes(depot, wanted),
        moved=moved_batches(depot, newest),
    )


def _from_savepoint(depot: Depot, wanted: Wanted, parallelism: int | None, folder: Path) -> StartPlan:
    made = read_savepoint(folder)
    _check_max_parallelism(made.max_parallelism, wanted)
    if newest_schema(depot, wanted.operator) is not None and not _has_schemas_of(depot, folder, made.schema):
        reason = f"it has other states than the savepoint {folder}. A savepoint starts a new checkpoint."
        raise StateMismatch(operator=wanted.operator, reason=reason)
    chosen = parallelism or made.parallelism
    return StartPlan(
        parallelism=chosen,
        next_batch=0,
        seen_epoch=NONE_SEEN,
        torn=False,
        is_rescale=chosen != made.parallelism,
        changes=_changes(Depot(folder), wanted),
    )


def _check_origin(newest: Epoch, wanted: Wanted, savepoint: str | Path | None) -> None:
    """Refuse a savepoint for a checkpoint with state of its own; the one it began with may stay."""
    if savepoint is None:
        return
    asked = str(checkpoint_path(str(savepoint)).absolute())
    if asked != newest.origin:
        began = f"it began with the savepoint {newest.origin}" if newest.origin else "it has state already"
        reason = f"{began}, and {asked} is asked for. A savepoint starts a new checkpoint."
        raise StateMismatch(operator=wanted.operator, reason=reason)


def _check_max_parallelism(stored: int, wanted: Wanted) -> None:
    if stored != wanted.max_parallelism:
        reason = (
            f"max_parallelism was {stored} at its first start, and the code has {wanted.max_parallelism}."
        )
        raise StateMismatch(operator=wanted.operator, reason=f"{reason} Change `partitions` instead.")


def _has_schemas_of(depot: Depot, folder: Path, count: int) -> bool:
    """True if nothing but the savepoint's schemas is there: a start from it was cut off, and goes on."""
    source = Depot(folder)
    names = [name for name in depot.names() if _SCHEMA.fullmatch(name)]
    return len(names) <= count and all(depot.read(name) == source.read(name) for name in names)


def _changes(depot: Depot, wanted: Wanted) -> tuple[str, ...]:
    """Return a sentence for each state that the code changes, after it was checked against what is stored."""
    old = newest_schema(depot, wanted.operator)
    new = check_schema(depot, wanted)
    return () if old is None else tuple(_sentences(old, new))


def _sentences(old: OperatorSchema, new: OperatorSchema) -> list[str]:
    found = schema_changes(old, new)
    versions = {name: (old.states[name].version, new.states[name].version) for name in found.migrated}
    return [
        *(f"State '{name}' is new and begins empty." for name in found.added),
        *(f"State '{name}' is no longer in the code; its entries stay." for name in found.dropped),
        *(f"State '{name}' is in the code again, with the entries it had." for name in found.returned),
        *(
            f"State '{name}' goes from version {was} to {now}; entries are migrated when they are written."
            for name, (was, now) in versions.items()
        ),
    ]
