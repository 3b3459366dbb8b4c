"""The snapshot of a running home at one point of time, in a folder beside it: the frozen copy.

The order of the steps makes it one point of time; nothing is stopped:

    1. the catalog, dumped by the caller: what it names was made before it was recorded
    2. which batches each pipeline has committed
    3. every Delta table of every tenant, at its version of now
    4. which batches each pipeline has planned; from 2 once more, until no pipeline is more than a batch ahead
    5. Spark's checkpoints, cut to a batch that fits the tables (`spark_checkpoints`)
    6. pipelines, settings, token, id
    7. the streams of every tenant, flushed first: every row that was acknowledged before
    8. the engine, synced first: every message and row that was acknowledged before, every offset that 5
       names, and the definition of every stream that 7 copied, as new as its rows or newer

Streams come before the engine, which has their definitions. A column that is added in between is in the
definition and in no copied row, which reads like any row that is older than its column; in the other order,
rows would have an unknown column. A stream that is created in between is there and empty; one that is dropped
leaves logs without a definition; one that is dropped and created again has logs with another id than its
definition, which are moved away when it is opened. All these rows came after the backup began, or were
dropped before it ended. In the other order, a stream that is created again in between would lose rows that
were acknowledged long before.

Immutable files are hard links, so a snapshot takes moments and almost no space. The folder is scratch:
nothing in it is synced, and a killed server's is removed at the next start.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.errors import BackupUnusable, StorageFailed
from tidegate.model.clock import Clock
from tidegate.model.epoch import SECOND_US
from tidegate.model.times import format_time
from tidegate.storage.engine import Engine
from tidegate.storage.files import copy_file
from tidegate.storage.home.home import ID_FILE, LAYOUT_FILE, LAYOUT_VERSION, TOKEN_FILE, Home
from tidegate.storage.home.pipeline_files import installed_path, list_pipeline_files, stopped_path
from tidegate.upkeep.backup.delta_tables import LakeCopy
from tidegate.upkeep.backup.spark_checkpoints import (
    CheckpointPosition,
    batch_to_keep,
    committed_positions,
    copy_checkpoint,
    is_settled,
    planned_positions,
)
from tidegate.upkeep.backup.stream_logs import copy_streams

CONTENT_FOLDER = "content"  # what goes into the file, at the paths that it has in a home
NOTES_FILE = "freeze.json"
CATALOG_DUMP = Path("catalog") / "dump"
SETTINGS_FILE = "tidegate.toml"
# A pass after the first links only what is new: milliseconds. Pipelines that still get further than a batch
# in that time are cut by their tables' transactions.
PASSES_MAX = 8
# Tables of one pipeline that are more than a batch apart fit no checkpoint: they are copied again.
TRIES_MAX = 4

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FreezeNotes:
    """What the manifest of a frozen home needs beside its files."""

    home_id: str
    layout: int
    created_at: str
    # Files that may still grow, by their path in the content: bytes after the length are not in the snapshot.
    lengths_bytes: Mapping[str, int] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the notes beside the content."""
        fields = {
            "homeId": self.home_id,
            "layout": self.layout,
            "createdAt": self.created_at,
            "lengthsBytes": dict(self.lengths_bytes),
        }
        (folder / NOTES_FILE).write_text(json.dumps(fields), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> FreezeNotes:
        """Return the notes of a frozen home."""
        try:
            found = json.loads((folder / NOTES_FILE).read_text(encoding="utf-8"))
            lengths_bytes = found.get("lengthsBytes", {})  # a server of an earlier version writes none
            return cls(found["homeId"], found["layout"], found["createdAt"], lengths_bytes)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            raise BackupUnusable(file=str(folder), reason=f"{NOTES_FILE} cannot be read") from problem


def freeze(
    home: Home,
    engine: Engine,
    folder: Path,
    clock: Clock,
    between_steps: Callable[[], None] = lambda: None,
    flush_streams: Callable[[], object] = lambda: None,
) -> None:
    """Copy everything but the catalog, which the caller has dumped into `CATALOG_DUMP` before.

    `flush_streams` writes what streams buffer in memory to their files; without a server there is nothing.
    Blocks for as long as it takes to link every file; writes continue meanwhile. `between_steps` is called
    before each step and after the last: tests change the home there.
    """
    content = folder / CONTENT_FOLDER
    now_us = clock.now_us()
    created_at = format_time(now_us - now_us % SECOND_US)
    between_steps()
    # 2 to 4: tables, with the positions of the pipelines before and after
    keeps = _copy_tables(home, _lakes(home, content))
    between_steps()
    # 5. checkpoints that fit
    for name, keep in keeps.items():
        copy_checkpoint(home.checkpoints_path / name, content / "checkpoints" / name, keep)
    between_steps()
    # 6. what users wrote
    _copy_small_files(home, content)
    between_steps()
    # 7. streams
    flush_streams()
    lengths_bytes = _copy_streams(home, content)
    between_steps()
    # 8. the engine, last
    engine.sync()
    engine.checkpoint(content / "engine")
    between_steps()
    FreezeNotes(home.home_id, LAYOUT_VERSION, created_at, lengths_bytes).write(folder)


def _lakes(home: Home, content: Path) -> list[LakeCopy]:
    sources = [home.lake_path, *map(home.tenant_lake_path, _tenants(home))]
    return [LakeCopy(source, content / source.relative_to(home.path)) for source in sources]


def _tenants(home: Home) -> list[str]:
    """Return the tenants that have a folder of their own."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(path.name for path in home.tenants_path.iterdir() if path.is_dir())
    return []


def _copy_streams(home: Home, content: Path) -> dict[str, int]:
    """Copy the streams of all tenants; return the length of each file by its path in the content."""
    lengths_bytes: dict[str, int] = {}
    for source in (home.streams_path, *map(home.tenant_streams_path, _tenants(home))):
        lengths = copy_streams(source, content / source.relative_to(home.path))
        lengths_bytes |= {str(path.relative_to(content)): length for path, length in lengths.items()}
    return lengths_bytes


def _copy_tables(home: Home, lakes: list[LakeCopy]) -> dict[str, tuple[int, int]]:
    """Copy the tables, and return for each pipeline the batches to keep that fit them."""
    for _ in range(TRIES_MAX):
        committed, planned = _copy_until_settled(home, lakes)
        tables = [table for lake in lakes for table in lake.tables()]
        keeps = {name: batch_to_keep(committed.get(name), newest, tables) for name, newest in planned.items()}
        apart = [name for name, keep in keeps.items() if keep is None]
        if not apart:
            return {name: keep for name, keep in keeps.items() if keep is not None}
    raise StorageFailed(
        path=str(home.checkpoints_path / apart[0]),
        reason=f"the pipeline {apart[0]} writes several tables, faster than they can be copied.",
        hint="Try again when it has less to do.",
    )


def _copy_until_settled(
    home: Home, lakes: Iterable[LakeCopy]
) -> tuple[dict[str, CheckpointPosition], dict[str, CheckpointPosition]]:
    for _ in range(PASSES_MAX):
        committed = committed_positions(home.checkpoints_path)
        for lake in lakes:
            lake.update()
        planned = planned_positions(home.checkpoints_path)
        moving = [name for name, newest in planned.items() if not is_settled(committed.get(name), newest)]
        if not moving:
            break
    else:
        log.info(
            "pipelines still running, checkpoint cut at the batch of their tables pipelines=%s",
            ",".join(moving),
        )
    return committed, planned


def _copy_small_files(home: Home, content: Path) -> None:
    (content / "pipelines").mkdir(exist_ok=True, mode=0o700)
    files = list_pipeline_files(home.pipelines_path)
    for name in (*files.installed, *files.stopped):
        paths = (installed_path(home.pipelines_path, name), stopped_path(home.pipelines_path, name))
        # Whoever stops or starts it now renames its file: it has one of its two names at every moment.
        for inside in (path.relative_to(home.path) for path in (*paths, paths[0])):
            if _copy_if_there(home.path / inside, content / inside):
                break
    for inside in map(Path, (SETTINGS_FILE, TOKEN_FILE, ID_FILE, LAYOUT_FILE)):
        _copy_if_there(home.path / inside, content / inside)  # settings are optional


def _copy_if_there(source: Path, target: Path) -> bool:
    """Copy a small file; True if it was there."""
    try:
        copy_file(source, target, sync=False)
    except FileNotFoundError:
        return False
    return True
