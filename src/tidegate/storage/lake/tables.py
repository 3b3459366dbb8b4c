"""The lake: the Delta tables of a tenant, one folder each, at their newest versions.

Any program may write these tables: Spark's Delta sink, delta-rs, other writers. The lake only reads. It
caches, for each table, the file list of the version it saw last (`TableView`). `view` first updates the list
by reading the JSON of the commits since then: some tens of microseconds when nothing changed, and well under
a millisecond for a small commit, however many files the table has. Where commits do more than add and remove
files (another schema, another protocol, a table that was dropped and created again), the table is listed
again with delta-rs.

Threads: every method may be called from any thread; one lock for each table. A `TableView` never changes.
Damage: a log that cannot be read raises StorageCorrupt with the file's name; other tables stay readable.
"""

from __future__ import annotations

import json
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.errors import SqlUnsupported, StorageCorrupt, TableNotFound
from tidegate.storage.lake.file_index import (
    FileChanges,
    LakeColumn,
    apply_changes,
    from_listing,
    parse_commit,
    read_columns,
    read_commit,
)

LOG_FOLDER = "_delta_log"
# Reader features that change nothing about which rows a file holds, or that are checked file by file.
FEATURES_READ = frozenset(
    {"timestampNtz", "vacuumProtocolCheck", "v2Checkpoint", "deletionVectors", "columnMapping"}
)
READER_VERSION_MAX = 3
# Attempts for a table that is dropped and created again while it is listed.
LISTING_ATTEMPTS_MAX = 3

_COMMIT = re.compile(r"\d{20}\.(json|checkpoint\..*parquet|checkpoint\.parquet)")
_CommitMark = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class TableView:
    """One version of a table: its columns and its data files, a table as `file_index` describes it."""

    name: str
    folder: Path
    table_id: str
    version: int
    schema: pa.Schema
    columns: tuple[LakeColumn, ...]
    files: pa.Table

    @property
    def file_count(self) -> int:
        return int(self.files.num_rows)

    @property
    def size_bytes(self) -> int:
        return int(pc.sum(self.files["size_bytes"]).as_py() or 0)


class Lake:
    """The tables under one folder, which may not exist yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._tables: dict[str, _OpenTable] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Return the names of the tables, sorted; a folder without a commit is not a table."""
        try:
            folders = [entry.name for entry in os.scandir(self.root) if not entry.name.startswith(".")]
        except FileNotFoundError:
            return []
        return sorted(name for name in folders if _has_commit(self.root / name))

    def find(self, name: str) -> str:
        """Return the table's name as its folder spells it, ignoring case as SQL does; else TableNotFound."""
        plain = name not in {"", ".", ".."} and not set(name) & {"/", "\\", "\0"}
        if plain and not name.startswith(".") and _has_commit(self.root / name):
            return name
        known = self.names()
        same = [other for other in known if other.lower() == name.lower()]
        if len(same) == 1:
            return same[0]
        raise TableNotFound(table=f"lake.{name}", known=", ".join(f"lake.{k}" for k in known) or "none yet")

    def view(self, name: str) -> TableView:
        """Return the newest version of a table; raise TableNotFound, StorageCorrupt or SqlUnsupported."""
        exact = self.find(name)
        with self._lock:
            table = self._tables.setdefault(exact, _OpenTable(exact, self.root / exact))
        try:
            return table.refresh()
        except (StorageCorrupt, FileNotFoundError):
            if _has_commit(self.root / exact):
                raise
            with self._lock:  # dropped meanwhile
                self._tables.pop(exact, None)
            self.find(exact)
            raise


class _OpenTable:
    """A table whose newest known version is cached between calls."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = folder
        self._log = folder / LOG_FOLDER
        self._lock = threading.Lock()
        self._view: TableView | None = None
        self._mark: _CommitMark | None = None

    def refresh(self) -> TableView:
        with self._lock:
            view = self._view
            if view is None or self._mark is None or self._mark != self._commit_mark(view.version):
                return self._list()
            try:
                return self._follow(view)
            except FileNotFoundError:
                return self._list()  # a commit was removed after it was seen: the table is another one now

    def _follow(self, view: TableView) -> TableView:
        """Apply the commits after the view's version; anything unusual leads to a new listing."""
        changes, version, mark = FileChanges(), view.version, self._mark
        while (next_mark := self._commit_mark(version + 1)) is not None:
            read_commit(self._commit_path(version + 1), changes, view.columns)
            if changes.relist:
                return self._list()
            version, mark = version + 1, next_mark
        if version == view.version:
            return view
        files = apply_changes(view.files, changes)
        if files is None:
            return self._list()
        self._view = TableView(
            view.name, view.folder, view.table_id, version, view.schema, view.columns, files
        )
        self._mark = mark
        return self._view

    def _list(self) -> TableView:
        """Read the whole table state with delta-rs."""
        self._view = self._mark = None
        for _ in range(LISTING_ATTEMPTS_MAX):
            first = self._first_mark()
            view = self._load()
            mark = self._commit_mark(view.version)
            if first == self._first_mark():
                self._view, self._mark = view, mark
                return view
        raise StorageCorrupt(place=str(self._log), reason="the table is being replaced over and over")

    def _load(self) -> TableView:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            table = DeltaTable(self._folder.absolute().as_uri())
            metadata, version = table.metadata(), table.version()
            _check_readable(self._name, table)
            columns = read_columns(table.schema().to_json(), metadata.partition_columns)
            schema = pa.schema(table.schema().to_arrow())
            files = from_listing(pa.table(table.get_add_actions(flatten=False)), columns)
        except (DeltaError, OSError, ValueError) as error:
            if "Unsupported:" in str(error):
                hint = "Rewrite it without this feature, or read it with Spark."
                raise _unsupported(self._name, f"cannot be opened ({error})", hint) from error
            raise _damage(self._log, error) from error
        _refuse_empty_commits(self._log)
        return TableView(self._name, self._folder, metadata.id, version, schema, columns, files)

    def _commit_path(self, version: int) -> Path:
        return self._log / f"{version:020}.json"

    def _commit_mark(self, version: int) -> _CommitMark | None:
        """Return what distinguishes a commit file from another one of the same name, or None."""
        try:
            stat = os.stat(self._commit_path(version))  # noqa: PTH116 - twice as fast as Path.stat
        except FileNotFoundError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    def _first_mark(self) -> _CommitMark | None:
        return self._commit_mark(0)


def _check_readable(name: str, table: Any) -> None:
    """Raise SqlUnsupported for features that change which rows files have; wrong rows are worse than none."""
    protocol = table.protocol()
    features = set(protocol.reader_features or ())
    unknown = sorted(features - FEATURES_READ)
    if protocol.min_reader_version > READER_VERSION_MAX or unknown:
        missing = ", ".join(unknown) or f"reader version {protocol.min_reader_version}"
        raise _unsupported(
            name, f"needs {missing}", "Rewrite it without this feature, or read it with Spark."
        )
    mode = (table.metadata().configuration or {}).get("delta.columnMapping.mode") or "none"
    if mode != "none":
        raise _unsupported(
            name, "maps column names", "Rewrite it without column mapping, or read it with Spark."
        )
    if "deletionVectors" in features and any(batch.num_rows for batch in table.deletion_vectors()):
        hint = f"Rewrite its files in Spark: REORG TABLE delta.`…/{name}` APPLY (PURGE)."
        raise _unsupported(name, "has deletion vectors", hint)


def _unsupported(name: str, what: str, hint: str) -> SqlUnsupported:
    return SqlUnsupported(reason=f"Table 'lake.{name}' {what}, which this version does not read.", hint=hint)


def _refuse_empty_commits(log: Path) -> None:
    """Raise StorageCorrupt for commits that a power cut emptied; delta-rs takes them for empty commits."""
    with os.scandir(log) as entries:
        for entry in entries:
            if entry.name.endswith(".json") and _COMMIT.fullmatch(entry.name) and not entry.stat().st_size:
                raise StorageCorrupt(place=entry.path, reason="the commit is empty")


def _has_commit(folder: Path) -> bool:
    if (folder / LOG_FOLDER / f"{0:020}.json").exists():
        return True  # without listing a log of thousands; only a log that was cleaned up lacks this one
    try:
        with os.scandir(folder / LOG_FOLDER) as entries:
            return any(_COMMIT.fullmatch(entry.name) for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _damage(log: Path, error: Exception) -> StorageCorrupt:
    """Return the error for a log that cannot be read, with the name of the damaged file."""
    for path in sorted(log.glob("*.json")):
        try:
            parse_commit(path)
        except StorageCorrupt as torn:
            return torn
        except FileNotFoundError:
            continue  # cleaned up meanwhile
    for path in [log / "_last_checkpoint", *sorted(log.glob("*.checkpoint*.parquet"))]:
        try:
            if path.suffix == ".parquet":
                pq.read_metadata(path)
            elif path.exists():
                json.loads(path.read_bytes())
        except (pa.ArrowException, OSError, ValueError) as reason:
            return StorageCorrupt(place=str(path), reason=str(reason))
    return StorageCorrupt(place=str(log), reason=str(error))
