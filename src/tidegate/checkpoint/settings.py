"""What a task asks of state: which batch of which partition, and how state is kept on its machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidegate.errors import InvariantBroken
from tidegate.model.clock import Clock
from tidegate.state.backend import Backend
from tidegate.state.backends import SEGMENTS_KIND, open_backend
from tidegate.state.local import Place, default_root
from tidegate.state.rocks_settings import RocksSettings
from tidegate.state.segments.settings import SegmentSettings
from tidegate.state.snapshotting import SnapshotRules

MIB = 1 << 20
# Of the newest one the batch may be done in part only, and left behind by another number of instances.
SNAPSHOTS_KEPT_MIN = 2


@dataclass(frozen=True, slots=True)
class Asked:
    """What a task asks for: one batch of one partition of an operator.

    `attempt` is a text that no other attempt ever has, in this run of the query or in another one. `plan_id`
    says which rows the batch is made of. `seen_epoch` is the newest epoch when the query was planned. `run`
    is the run of a query, from start to stop, and `call` which of its operators asks; both where known.
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
    """How state is kept on this machine and how often it is put into the checkpoint whole."""

    backend: str = "rocksdb"
    rocks: RocksSettings | None = None
    segments: SegmentSettings | None = None
    local_root: str | None = None
    snapshot_every_batches: int = 10
    snapshot_changes_bytes_max: int = 64 * MIB
    snapshots_kept: int = 3
    snapshot_in_background: bool = True
    stage_bytes_max: int = 256 * MIB
    keep_open: bool = True
    # A worker that hands over a large copy writes its memtables out first, which takes a second or two.
    lock_wait_ms_max: int = 10_000

    def __post_init__(self) -> None:
        if (self.backend == SEGMENTS_KIND) != (self.segments is not None):
            raise InvariantBroken(reason="settings of segments and the backend of that name go together")
        if self.snapshots_kept < SNAPSHOTS_KEPT_MIN:
            reason = f"snapshots_kept is {self.snapshots_kept}; a torn batch needs the state before it"
            raise InvariantBroken(reason=reason)

    def place(self, clock: Clock) -> Place:
        """Give where copies lie on this machine under these settings."""
        root = Path(self.local_root) if self.local_root else default_root()

        def opened(folder: Path) -> Backend:
            return self.open_backend(folder, lambda: int(clock.monotonic_seconds() * 1e9))

        opened_with = (self.rocks, self.segments)
        return Place(
            root,
            self.backend,
            opened,
            self.keep_open,
            self.lock_wait_ms_max,
            clock,
            opened_with,
            lends=self.keep_open and self.segments is None,
        )

    def open_backend(self, folder: Path, ticks_ns: Callable[[], int] | None = None) -> Backend:
        """Open a backend in a folder as these settings say."""
        return open_backend(self.backend, folder, self.rocks, self.segments, ticks_ns)

    def snapshot_rules(self) -> SnapshotRules:
        """Give when snapshots are taken and how many are kept."""
        return SnapshotRules(
            self.snapshot_every_batches,
            self.snapshot_changes_bytes_max,
            self.snapshots_kept,
            self.snapshot_in_background,
        )
