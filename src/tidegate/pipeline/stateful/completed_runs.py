"""The completed runs of a batch job: which run was which batch, for the last of them.

A run is identified by its plan id, which the commit records of its batch contain. Old commit records are
pruned, so the planning of a batch stores which runs came before it:

    runs.<batch>.json    sealed as commit records are; the ids of the runs up to this batch, by their batches

Each file is written once and never changed; the one before stays until the next. Commit records take
precedence: a checkpoint of an older version has those alone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from tidegate.checkpoint import epochs
from tidegate.checkpoint.commit_record import committed_batches, read_commit_record
from tidegate.checkpoint.store import CheckpointStore, runs_name
from tidegate.errors import StateMismatch, StorageCorrupt
from tidegate.storage.sealed_json import seal, unseal

log = logging.getLogger("tidegate.keyed")

# Nearly three years of nights, in 50 kB.
RUNS_MAX = 1_000
FORMAT = 1
# The newest, and the one before for a reader that has just listed it.
_FILES_MAX = 2

_NAME = re.compile(r"runs\.(\d+)\.json")
_RUN_DONE_HINT = (
    "Only the last run can be repeated. Leave this one out: its rows are in the state, and its output is "
    "kept no longer. To put its rows in once more, give it a name that is new. To do it over, begin a new "
    "checkpoint from a savepoint that is older than it."
)


def runs_before(store: CheckpointStore, batch: int) -> dict[int, str]:
    """Return the plan ids of the last runs before a batch, by their batches."""
    known = epochs.list_epochs(store)
    found = {number: plan_id for number, plan_id in _stored_runs(store).items() if number < batch}
    listed = {number for epoch in known for number in committed_batches(store, epoch.number, 0)}
    for number in sorted(number for number in listed if number < batch):
        try:
            plan_id = _plan_id(store, known, number)
        except StorageCorrupt as problem:
            if number == batch - 1:
                raise  # whether this is the run of the call decides what happens
            log.warning("commit record damaged, run unknown batch=%d error=%r", number, str(problem))
            continue
        if plan_id is not None:
            found[number] = plan_id
    return dict(sorted(found.items())[-RUNS_MAX:])


def check_is_new(operator: str, run: str, plan_id: str, runs: Mapping[int, str]) -> None:
    """Refuse a completed run that is not the last one: its rows would be counted twice."""
    done = max((number for number, found in runs.items() if found == plan_id), default=None)
    if done is None:
        return
    later = sum(number > done for number in runs)
    after = "another run was" if later == 1 else f"{later} other runs were"
    reason = f"run '{run}' is done, and {after} done after it."
    raise StateMismatch(operator=operator, reason=reason, hint=_RUN_DONE_HINT)


def store_runs(store: CheckpointStore, runs: Mapping[int, str]) -> None:
    """Store the ids of these runs, if there are any, and remove files that are no longer needed."""
    if not runs or store.exists(runs_name(max(runs))):
        return
    named = {str(number): plan_id for number, plan_id in runs.items()}
    store.put_new(runs_name(max(runs)), seal({"format": FORMAT, "runs": named}))
    for number in _numbers(store)[:-_FILES_MAX]:
        store.remove(runs_name(number))


def _stored_runs(store: CheckpointStore) -> dict[int, str]:
    for number in reversed(_numbers(store)):
        content = store.read(runs_name(number))
        if content is not None:
            document = unseal(content, str(store.path(runs_name(number))), FORMAT)
            return {int(batch): str(plan_id) for batch, plan_id in document["runs"].items()}
    return {}


def _plan_id(store: CheckpointStore, known: list[epochs.Epoch], batch: int) -> str | None:
    """Return the plan id of a batch, whatever number of instances committed it."""
    epoch = epochs.governing(known, batch)
    commit = None if epoch is None else read_commit_record(store, epoch.number, 0, batch)
    return None if commit is None else commit.plan_id


def _numbers(store: CheckpointStore) -> list[int]:
    return sorted(int(found[1]) for name in store.names() if (found := _NAME.fullmatch(name)))
