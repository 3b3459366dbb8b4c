"""Settings of state: the batch that a task requests, and how its machine stores state."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tidegate.checkpoint.backend import BackendFactory
from tidegate.checkpoint.backends.heap import HeapFactory
from tidegate.checkpoint.backends.rocksdb import RocksFactory
from tidegate.checkpoint.backends.rocksdb_options import RocksSettings
from tidegate.checkpoint.local.store import LocalDirectory, default_root
from tidegate.checkpoint.rescale import Redistribution, no_operator_state
from tidegate.checkpoint.snapshotter import SnapshotRules
from tidegate.errors import InvariantBroken, StateInvalid
from tidegate.model.clock import Clock

MIB = 1 << 20
# The batch of the newest one may be committed in part only, and abandoned by another number of instances.
SNAPSHOTS_RETAINED_MIN = 2
# The backends of keyed state; deduplication brings its own.
BACKEND_KINDS = (RocksFactory.kind, HeapFactory.kind)


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A task's request for one batch of one partition of an operator.

    `attempt` is a text that no other attempt ever has, in this run of the query or in another one. `plan_id`
    identifies the rows of the batch. `seen_epoch` is the newest epoch when the query was planned. `run` is
    the run of a query, from start to stop, and `call` is the operator of the query; both where known.
    """

    checkpoint: str
    operator: str
    partition: int
    parallelism: int
    max_parallelism: int
    number: int
    plan_id: str
    attempt: str
    savepoint: str | None = None
    seen_epoch: int | None = None
    run: str | None = None
    call: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings:
    """How state is stored on this machine, and how often a snapshot goes into the checkpoint."""

    backend: BackendFactory = field(default_factory=RocksFactory)
    # How operator state is redistributed when the number of partitions changes; a function of a module.
    redistribution: Redistribution = no_operator_state
    local_root: str | None = None
    snapshot_every_batches: int = 10
    snapshot_changes_bytes_max: int = 64 * MIB
    snapshots_retained: int = 3
    snapshot_in_background: bool = True
    stage_bytes_max: int = 256 * MIB
    keep_open: bool = True
    # A worker that closes a large store for another one flushes its memtables first: a second or two.
    lock_wait_ms_max: int = 10_000

    def __post_init__(self) -> None:
        if self.snapshots_retained < SNAPSHOTS_RETAINED_MIN:
            reason = f"snapshots_retained is {self.snapshots_retained}; a torn batch needs the one before"
            raise InvariantBroken(reason=reason)

    def local_directory(self, clock: Clock) -> LocalDirectory:
        """Return the directory of local stores on this machine under these settings."""
        root = (Path(self.local_root) if self.local_root else default_root()).absolute()
        is_served = self.keep_open and self.backend.is_served
        return LocalDirectory(
            root, self.backend, self.keep_open, self.lock_wait_ms_max, clock, self.redistribution, is_served
        )

    def snapshot_rules(self) -> SnapshotRules:
        """Return when snapshots are taken and how many are retained."""
        return SnapshotRules(
            self.snapshot_every_batches,
            self.snapshot_changes_bytes_max,
            self.snapshots_retained,
            self.snapshot_in_background,
        )


def backend_factory(
    kind: str, options: RocksSettings | None = None, *, operator: str = "state"
) -> RocksFactory | HeapFactory:
    """Return the backend of keyed state of a name; the options are RocksDB's."""
    if kind == RocksFactory.kind:
        return RocksFactory(options)
    if kind == HeapFactory.kind:
        return HeapFactory()
    known = " or ".join(map(repr, BACKEND_KINDS))
    raise StateInvalid(operator=operator, reason=f"backend is {kind!r}; it is {known}")
