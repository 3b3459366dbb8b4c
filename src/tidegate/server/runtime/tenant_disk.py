"""What a tenant has on the disk: messages, parts of batches, rows, streams and its lake.

Messages and rows are counted as they are stored, before RocksDB compresses them; the folders of streams and
of the lake are walked. Dedup keys, positions of groups, indexes and Spark's checkpoints are left out.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.model.access import DEFAULT_TENANT
from tidegate.model.tables import TableKind
from tidegate.topics.staged_batches import parts_bytes

if TYPE_CHECKING:
    from tidegate.server.runtime.runtime import Runtime

# A measurement that is no older than this is used again: whoever asks often costs little.
FRESH_SECONDS = 5.0


class TenantDisks:
    """Measures tenants, one at a time. Belongs to the event loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._at_seconds: dict[str, float] = {}

    async def measure(self, runtime: Runtime, tenant: str, age_seconds_max: float = FRESH_SECONDS) -> int:
        """Return the bytes of a tenant, measured now or a moment ago, and tell the quotas."""
        async with self._turn:
            now = runtime.clock.monotonic_seconds()
            known = runtime.quotas.disk_bytes(tenant)
            if known is not None and 0 <= now - self._at_seconds[tenant] <= age_seconds_max:
                return known
            size_bytes: int = await runtime.threads.upkeep(disk_bytes_of, runtime, tenant)
            runtime.quotas.set_disk(tenant, size_bytes)
            self._at_seconds[tenant] = now
            return size_bytes


def tenants_with_storage(runtime: Runtime) -> set[str]:
    """Return the tenants that have topics, tables or a folder; blocks."""
    holders = {topic.tenant for topic in runtime.topics.directory}
    holders |= {table.tenant for table in runtime.tables.directory}
    try:
        holders |= {entry.name for entry in os.scandir(runtime.home.tenants_path)}
    except FileNotFoundError:
        pass
    return holders | {DEFAULT_TENANT}


def disk_bytes_of(runtime: Runtime, tenant: str) -> int:
    """Return the bytes that a tenant has on the disk, about; blocks."""
    return (
        _topic_bytes(runtime, tenant)
        + _table_bytes(runtime, tenant)
        + folder_bytes(runtime.home.tenant_streams_path(tenant))
        + folder_bytes(runtime.home.tenant_lake_path(tenant))
    )


def _topic_bytes(runtime: Runtime, tenant: str) -> int:
    found = 0
    for topic in runtime.topics.directory.of(tenant):
        found += parts_bytes(runtime.engine, topic)
        for partition in range(topic.partitions):
            found += runtime.topics.log.counters(topic, partition).stored_bytes
    return found


def _table_bytes(runtime: Runtime, tenant: str) -> int:
    tables = runtime.tables
    return sum(
        tables.store.counts(table).bytes
        for table in tables.directory.of(tenant)
        if table.kind != TableKind.STREAM
    )


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder; what goes meanwhile is left out, and so are links."""
    found, folders = 0, [str(folder)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        found += _size_of(entry)
        except (FileNotFoundError, NotADirectoryError):
            continue
    return found


def _size_of(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0
