"""Local copies of a deduplication, opened without Spark: brought to the newest batch, read, closed well."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.dedup.rows import NAME, newest_heads


def settings(checkpoint: Path, local: Path) -> Any:
    """Return the settings under which the copies of a checkpoint are opened, as its heads say."""
    from tidegate.checkpoint.backends.rocksdb_options import RocksSettings
    from tidegate.checkpoint.settings import StateSettings
    from tidegate.dedup.settings import SegmentSettings
    from tidegate.dedup.store.store import SegmentStoreFactory

    notes = newest_heads(checkpoint)[0].notes
    segments = SegmentSettings(
        store=NAME, retention_us=notes["retention_us"], interval_us=notes["interval_us"]
    )
    rocks = RocksSettings.deduplication()
    return StateSettings(backend=SegmentStoreFactory(segments, rocks), local_root=str(local))


class Copies:
    """All partitions' copies, open; used by one thread."""

    def __init__(self, checkpoint: Path, local: Path) -> None:
        self._checkpoint, self._local = checkpoint, local
        self._open = ExitStack()
        self.stores: list[Any] = []

    def __enter__(self) -> Copies:
        from tidegate.checkpoint.standby import Standby
        from tidegate.model.clock import SystemClock

        found = settings(self._checkpoint, self._local)
        for partition in range(len(newest_heads(self._checkpoint))):
            standby = Standby(self._checkpoint, NAME, partition, found, SystemClock())
            self.stores.append(self._open.enter_context(standby.open()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        from tidegate.checkpoint.local.pool import pool

        self.stores.clear()
        self._open.__exit__(kind, problem, trace)
        pool().close()

    def segments(self) -> list[Any]:
        """Return the facts of all segments of all partitions."""
        return [facts for store in self.stores for facts in store.segments()]
