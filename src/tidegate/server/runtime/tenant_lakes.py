"""The lake of each tenant: its own folder, and SQL that sees that folder alone."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from tidegate.query.duckdb.engine import LakeQuery
from tidegate.query.duckdb.remote import query_pool
from tidegate.query.duckdb.session import QueryLimits
from tidegate.query.processes.pool import ChildPool
from tidegate.settings import Settings
from tidegate.storage.home.home import Home
from tidegate.storage.lake.tables import Lake


class TenantLakes:
    """Lakes by tenant, opened at their first use; any thread."""

    def __init__(self, home: Home, settings: Settings) -> None:
        self._home = home
        # What statements of a killed server left there.
        shutil.rmtree(self._spill_path, ignore_errors=True)
        self._settings = settings
        self._pool = query_pool()
        self._lock = threading.Lock()
        self._open: dict[str, tuple[Lake, LakeQuery]] = {}

    def lake(self, tenant: str) -> Lake:
        """Return the Delta tables of a tenant."""
        return self._open_lake(tenant)[0]

    def query(self, tenant: str) -> LakeQuery:
        """Return SQL over the Delta tables of a tenant."""
        return self._open_lake(tenant)[1]

    @property
    def processes(self) -> ChildPool:
        """The processes that run statements."""
        return self._pool

    def warm(self) -> None:
        """Start processes for the first statements; does not wait for them."""
        self._pool.warm()

    def interrupt(self) -> None:
        """Interrupt every running statement."""
        for _, query in list(self._open.values()):
            query.interrupt()

    def close(self) -> None:
        """End the processes that wait for a statement."""
        for _, query in self._open.values():
            query.close()

    def _open_lake(self, tenant: str) -> tuple[Lake, LakeQuery]:
        with self._lock:
            if tenant not in self._open:
                lake = Lake(self._home.tenant_lake_path(tenant))
                self._open[tenant] = (lake, LakeQuery(lake, self._limits(tenant), self._pool))
            return self._open[tenant]

    def _limits(self, tenant: str) -> QueryLimits:
        limits = self._settings.query
        return QueryLimits(
            timeout_seconds=limits.timeout_seconds,
            rows_max=limits.rows_max,
            memory_mb=limits.memory_mb,
            threads=limits.threads,
            spill_path=self._spill_path / tenant,
        )

    @property
    def _spill_path(self) -> Path:
        return self._home.run_path / "spill"
