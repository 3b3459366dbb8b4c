"""Runs that are done: takes a batch job's checkpoint, says which run was which batch, keeps the last of them.

A run is known by the id of its plan, which stands in the heads of its batch. Old heads are pruned, so the
planning of a batch writes down which runs came before it:

    runs.<batch>.json    sealed as heads are; the ids of the runs up to this batch, by their batches

Each is put once and never changed; the one before stays until the next. What heads say goes before what
stands there: a checkpoint of an older version has heads alone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from tidegate.checkpoint import epochs
from tidegate.checkpoint.commit_record import head_batches, read_head
from tidegate.checkpoint.store import Depot, runs_name
from tidegate.errors import StateMismatch, StorageCorrupt
from tidegate.storage.sealed_json import seal, unseal

log = logging.getLogger("tidegate.keyed")

# Nearly three years of nights, in 50 kB.
RUNS_MAX = 1_000
FORMAT = 1
# The newest, and the one before for whoever has just found its name.
_FILES_MAX = 2

_NAME = re.compile(r"runs\.(\d+)\.json")
_RUN_DONE_HINT = (
    "Only the last run can be repeated. Leave this one out: its rows are in the state, and its output is "
    "kept no longer. To put its rows in once more, give it a name that is new. To do it over, begin a new "
    "checkpoint from a savepoint that is older than it."
)


def runs_before(depot: Depot, batch: int) -> dict[int, str]:
    """Return the plan ids of the runs before a batch, by their batches; the last ones alone."""
    known = epochs.listed(depot)
    found = {number: plan_id for number, plan_id in _stored_runs(depot).items() if number < batch}
    listed = {number for epoch in known for number in head_batches(depot, epoch.number, 0)}
    for number in sorted(number for number in listed if number < batch):
        try:
            plan_id = _plan_id(depot, known, number)
        except StorageCorrupt as problem:
            if number == batch - 1:
                raise  # whether it is the run that is asked for decides what is done
            log.warning("the run of batch %d is not known by its head: %s", number, problem)
            continue
        if plan_id is not None:
            found[number] = plan_id
    return dict(sorted(found.items())[-RUNS_MAX:])


def check_is_new(operator: str, run: str, plan_id: str, runs: Mapping[int, str]) -> None:
    """Refuse a run that is done and not the last: its rows would be counted twice."""
    done = max((number for number, found in runs.items() if found == plan_id), default=None)
    if done is None:
        return
    later = sum(number > done for number in runs)
    after = "another run was" if later == 1 else f"{later} other runs were"
    reason = f"run '{run}' is done, and {after} done after it."
    raise StateMismatch(operator=operator, reason=reason, hint=_RUN_DONE_HINT)


def store_runs(depot: Depot, runs: Mapping[int, str]) -> None:
    """Keep the ids of these runs, and remove what was kept before; nothing happens where there are none."""
    if not runs or depot.exists(runs_name(max(runs))):
        return
    named = {str(number): plan_id for number, plan_id in runs.items()}
    depot.put_new(runs_name(max(runs)), seal({"format": FORMAT, "runs": named}))
    for number in _numbers(depot)[:-_FILES_MAX]:
        depot.remove(runs_name(number))


def _stored_runs(depot: Depot) -> dict[int, str]:
    for number in reversed(_numbers(depot)):
        content = depot.read(runs_name(number))
        if content is not None:
            place = str(depot.path(runs_name(number)))
            document = unseal(content, place, FORMAT)
            return {int(batch): str(plan_id) for batch, plan_id in document["runs"].items()}
    return {}


def _plan_id(depot: Depot, known: list[epochs.Epoch], batch: int) -> str | None:
    """Return the id of the plan of a batch, by whatever number of instances it was done."""
    epoch = epochs.governing(known, batch)
    head = None if epoch is None else read_head(depot, epoch.number, 0, batch)
    return None if head is None else head.plan_id


def _numbers(depot: Depot) -> list[int]:
    return sorted(int(found[1]) for name in depot.names() if (found := _NAME.fullmatch(name)))
