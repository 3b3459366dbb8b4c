"""Errors of keyed state: its definition, its checkpoint, its bytes and its rows."""

from __future__ import annotations

from tidegate.errors.refused import Conflict, NotFound, RequestInvalid
from tidegate.errors.root import TidegateError
from tidegate.errors.unavailable import StorageCorrupt, Unavailable


class StateInvalid(RequestInvalid):
    code = "STATE_INVALID"
    template = "Operator '{operator}' cannot run: {reason}"
    default_hint = "docs/guide/state.md shows how operators and states are written."


class StateOutsideKey(RequestInvalid):
    code = "STATE_OUTSIDE_KEY"
    template = "State '{state}' was used while no key is being worked on."
    default_hint = "Use keyed state inside process, process_batch and on_timer; open and close have no key."


class StateMismatch(Conflict):
    code = "STATE_MISMATCH"
    template = "The checkpoint of operator '{operator}' does not fit: {reason}"
    default_hint = "Nothing was changed. Undo the change, or start from a savepoint or a new checkpoint."


class PlanChanged(Conflict):
    code = "PLAN_CHANGED"
    template = (
        "Batch {batch} of operator '{operator}', partition {partition}, was done before under another plan."
    )
    default_hint = (
        "Spark's offsets of this batch were changed or removed; put them back, or start a new checkpoint."
    )


class SavepointExists(Conflict):
    code = "SAVEPOINT_EXISTS"
    template = "There is a savepoint '{savepoint}' of operator '{operator}' already."
    default_hint = "Choose another name, or remove the old one."


class StateNotFound(NotFound):
    code = "STATE_NOT_FOUND"
    template = "There is no state '{state}'."
    default_hint = "`tidegate state list` lists the operators and states."


class BatchTaken(Unavailable):
    code = "BATCH_TAKEN"
    template = "Another attempt did batch {batch} of operator '{operator}', partition {partition}, first."
    default_hint = "Nothing is lost: the next attempt of the task returns the output of the first."
    retryable = True


class CheckpointUnusable(Unavailable):
    code = "CHECKPOINT_UNUSABLE"
    template = "The checkpoint at {path} cannot be used: {reason}"
    default_hint = "It must be a folder that the driver and every executor can read and write."


class StateCorrupt(StorageCorrupt):
    code = "STATE_CORRUPT"
    template = "Damaged bytes in operator '{operator}', state '{state}', key {key}: {reason}"
    default_hint = "Start from a savepoint, or from the checkpoint with the local store removed."


class RowFailed(TidegateError):
    code = "ROW_FAILED"
    template = "Operator '{operator}' failed on key {key}: {reason}"
    default_hint = 'Fix the operator or the row; with dead_letters="…" such rows are set aside.'
