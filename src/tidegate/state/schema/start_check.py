"""The check of a checkpoint before a query starts: parallelism, first batch and changed states, or a refusal.

Nothing is written: a refused start leaves the checkpoint as it was.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tidegate.checkpoint import epochs
from tidegate.checkpoint.coalesce_guard import moved_batches
from tidegate.checkpoint.commit_record import commit_record_name
from tidegate.checkpoint.epochs import NONE_SEEN, Epoch, check_parallelism
from tidegate.checkpoint.savepoints.record import read_savepoint
from tidegate.checkpoint.store import CheckpointStore, checkpoint_path, operator_store
from tidegate.errors import StateMismatch
from tidegate.state.schema.schema import (
    OperatorSchema,
    SchemaRequest,
    check_schema,
    newest_schema,
    schema_changes,
)

_SCHEMA = re.compile(r"schema\.\d+\.json")


@dataclass(frozen=True, slots=True)
class StartPlan:
    """The start of a query: the number of instances, the first batch, and the changes of its states.

    `parallelism` is None when neither the code nor the checkpoint nor the savepoint determines it.
    `next_batch` is the first that is not complete. Every task passes `seen_epoch` on to `epochs.resolve`, so
    that tasks of a replaced run are refused. `torn` is True if some partitions have committed `next_batch`.
    `changes` has a sentence for each state that is added, dropped, used again or migrated. `moved` are
    batches that were run by the wrong instances (checkpoint/coalesce_guard.py).
    """

    parallelism: int | None
    next_batch: int
    seen_epoch: int
    torn: bool
    changes: tuple[str, ...]
    moved: tuple[int, ...] = ()


def check_start(
    checkpoint: str | Path,
    request: SchemaRequest,
    parallelism: int | None,
    savepoint: str | Path | None = None,
) -> StartPlan:
    """Return how a query with this operator starts from a checkpoint; StateMismatch where it cannot."""
    store = operator_store(str(checkpoint), request.operator)
    known = epochs.list_epochs(store)
    if parallelism is not None:
        check_parallelism(request.operator, parallelism, request.max_parallelism)
    if known:
        return _continued(store, known[-1], request, parallelism, savepoint)
    if savepoint is not None:
        return _from_savepoint(store, request, parallelism, checkpoint_path(str(savepoint)).absolute())
    changes = _changes(store, request)
    return StartPlan(parallelism, 0, NONE_SEEN, torn=False, changes=changes)


def _continued(
    store: CheckpointStore,
    newest: Epoch,
    request: SchemaRequest,
    parallelism: int | None,
    savepoint: str | Path | None,
) -> StartPlan:
    _check_origin(newest, request, savepoint)
    _check_max_parallelism(newest.max_parallelism, request)
    next_batch = epochs.last_complete(store, newest) + 1
    heads = (
        commit_record_name(newest.number, partition, next_batch) for partition in range(newest.parallelism)
    )
    return StartPlan(
        parallelism=parallelism or newest.parallelism,
        next_batch=next_batch,
        seen_epoch=newest.number,
        torn=any(store.exists(name) for name in heads),
        changes=_changes(store, request),
        moved=moved_batches(store, newest),
    )


def _from_savepoint(
    store: CheckpointStore, request: SchemaRequest, parallelism: int | None, folder: Path
) -> StartPlan:
    made = read_savepoint(folder)
    _check_max_parallelism(made.max_parallelism, request)
    if newest_schema(store, request.operator) is not None and not _has_schemas_of(store, folder, made.schema):
        reason = f"it has other states than the savepoint {folder}. A savepoint starts a new checkpoint."
        raise StateMismatch(operator=request.operator, reason=reason)
    return StartPlan(
        parallelism=parallelism or made.parallelism,
        next_batch=0,
        seen_epoch=NONE_SEEN,
        torn=False,
        changes=_changes(CheckpointStore(folder), request),
    )


def _check_origin(newest: Epoch, request: SchemaRequest, savepoint: str | Path | None) -> None:
    """Raise StateMismatch for a savepoint where the checkpoint has state that did not start from it."""
    if savepoint is None:
        return
    requested = str(checkpoint_path(str(savepoint)).absolute())
    if requested != newest.origin:
        began = f"it began with the savepoint {newest.origin}" if newest.origin else "it has state already"
        reason = f"{began}, and {requested} is requested. A savepoint starts a new checkpoint."
        raise StateMismatch(operator=request.operator, reason=reason)


def _check_max_parallelism(stored: int, request: SchemaRequest) -> None:
    if stored != request.max_parallelism:
        reason = (
            f"max_parallelism was {stored} at its first start, and the code has {request.max_parallelism}."
        )
        raise StateMismatch(operator=request.operator, reason=f"{reason} Change `partitions` instead.")


def _has_schemas_of(store: CheckpointStore, folder: Path, count: int) -> bool:
    """True if only the savepoint's schemas are there: a start from it was interrupted, and continues."""
    source = CheckpointStore(folder)
    names = [name for name in store.names() if _SCHEMA.fullmatch(name)]
    return len(names) <= count and all(store.read(name) == source.read(name) for name in names)


def _changes(store: CheckpointStore, request: SchemaRequest) -> tuple[str, ...]:
    """Return a sentence for each state that the code changes, after a check against what is stored."""
    old = newest_schema(store, request.operator)
    new = check_schema(store, request)
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
