"""Dumps of a catalog: files with every row of one snapshot, which either kind of database can load.

<table>.jsonl   one row on each line: {"column": value}; bytes are {"base64": "…"}
catalog.json    format, revision, and the rows and SHA-256 of every file; written last
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
from sqlalchemy import ColumnElement, Connection, MetaData, Table, func, insert, inspect, select, update

from tidegate.catalog.audit import Actor, Audit
from tidegate.catalog.connections import Connections, sync_folder
from tidegate.catalog.migrations.upgrade import REVISION_TABLE, check_known, lock, newest_revision, upgrade_to
from tidegate.catalog.tables import ALL_TABLES, AUDIT, LEASES
from tidegate.errors import BackupUnusable, CatalogUnusable
from tidegate.model.clock import Clock

FORMAT = 1
INDEX_FILE = "catalog.json"
LOAD_ACTION = "backup.restore"
_ROWS_AT_ONCE = 1_000
_COUNTERS = {"audit": "id", "jobs": "number", "job_events": "number"}


class _DumpedTable(msgspec.Struct, frozen=True):
    rows: int
    sha256: str


class _Index(msgspec.Struct, frozen=True):
    format: int
    revision: str
    tables: dict[str, _DumpedTable]


def dump(connections: Connections, folder: Path) -> None:
    """Write every row of one snapshot into a folder, durably; writes are not blocked."""
    folder.mkdir(parents=True, exist_ok=True)
    tables: dict[str, _DumpedTable] = {}
    with connections.snapshot() as connection:
        for table in ALL_TABLES:
            tables[table.name] = _dump_table(connection, table, folder / f"{table.name}.jsonl")
    index = msgspec.json.encode(_Index(FORMAT, newest_revision(), tables))
    with (folder / INDEX_FILE).open("wb") as file:
        file.write(index)
        _sync(file)
    sync_folder(folder)


@dataclass(frozen=True, slots=True)
class LoadMark:
    """Identifies a load that is part of a larger operation, such as a restore.

    The audit trail has it: `started` with the rows, `done` when the whole operation is done. Where `started`
    is the newest event, the operation was cut off, and the rows may be loaded again.
    """

    name: str
    clock: Clock
    actor: Actor
    details: Mapping[str, str]


def load(
    connections: Connections,
    folder: Path,
    mark: LoadMark | None = None,
    amend: Callable[[Connection], None] = lambda _connection: None,
) -> None:
    """Load a dump into an empty database and upgrade it to the newest revision, in one transaction.

    A database that has nothing but a load of the same mark, which was cut off, counts as empty. `amend`
    changes the loaded rows in that transaction: without its changes, the rows are never visible.
    """
    index = _read_index(folder)
    check_known(index.revision, connections)
    for name, dumped in index.tables.items():
        _check_file(folder / f"{name}.jsonl", dumped)
    with connections.rebuild() as connection:
        lock(connection)
        _make_room(connection, connections, mark)
        upgrade_to(index.revision, connection, connections)
        found = MetaData()
        found.reflect(connection, only=sorted(index.tables))
        for table in found.sorted_tables:
            _load_table(connection, table, folder / f"{table.name}.jsonl")
        _move_counters(connection, found)
        upgrade_to("head", connection, connections)
        # The holders of leases are not here; the fences stay, so that those of the next holders are higher.
        connection.execute(update(LEASES).values(holder="", expires_us=0))
        amend(connection)
        if mark is not None:
            audit = Audit(connections, mark.clock)
            audit.write(connection, mark.actor, LOAD_ACTION, mark.name, mark.details, outcome="started")


def keep_load(connections: Connections, mark: LoadMark) -> None:
    """Record that the operation of a load is done: its rows are in use from now on."""
    with connections.write() as connection:
        connection.execute(update(AUDIT).where(*_begun(mark)).values(outcome="done"))


def undo_load(connections: Connections, mark: LoadMark) -> None:
    """Remove the rows of a load, unless they are in use."""
    with connections.rebuild() as connection:
        lock(connection)
        if _is_cut_off(connection, mark):
            _make_room(connection, connections, mark)


def _begun(mark: LoadMark) -> tuple[ColumnElement[bool], ...]:
    return AUDIT.c.action == LOAD_ACTION, AUDIT.c.subject == mark.name, AUDIT.c.outcome == "started"


def _is_cut_off(connection: Connection, mark: LoadMark) -> bool:
    """True if the newest event is the beginning of this load."""
    if not inspect(connection).has_table(AUDIT.name):
        return False
    newest = select(func.max(AUDIT.c.id)).scalar_subquery()
    return (
        connection.execute(select(AUDIT.c.id).where(AUDIT.c.id == newest, *_begun(mark))).first() is not None
    )


def _dump_table(connection: Connection, table: Table, file: Path) -> _DumpedTable:
    digest, count = hashlib.sha256(), 0
    found = connection.execution_options(yield_per=_ROWS_AT_ONCE).execute(select(table))
    with file.open("wb") as out:
        for row in found.mappings():
            values = {name: _to_json(value) for name, value in row.items()}
            line = json.dumps(values, separators=(",", ":")).encode() + b"\n"
            digest.update(line)
            out.write(line)
            count += 1
        _sync(out)
    return _DumpedTable(count, digest.hexdigest())


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _to_json(value: Any) -> Any:
    return {"base64": base64.b64encode(value).decode("ascii")} if isinstance(value, bytes) else value


def _from_json(value: Any) -> Any:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else value


def _read_index(folder: Path) -> _Index:
    file = folder / INDEX_FILE
    try:
        index = msgspec.json.decode(file.read_bytes(), type=_Index)
    except (OSError, msgspec.DecodeError) as problem:
        raise BackupUnusable(file=str(file), reason=str(problem)) from problem
    if index.format != FORMAT:
        raise BackupUnusable(file=str(file), reason=f"its format {index.format} is not known here")
    if not all(name.isidentifier() for name in index.tables):
        raise BackupUnusable(file=str(file), reason="it names something that is no table")
    return index


def _check_file(file: Path, dumped: _DumpedTable) -> None:
    try:
        with file.open("rb") as dump_file:
            digest = hashlib.file_digest(dump_file, "sha256").hexdigest()
    except OSError as problem:
        raise BackupUnusable(file=str(file), reason=str(problem.strerror)) from problem
    if digest != dumped.sha256:
        raise BackupUnusable(file=str(file), reason="its checksum is another than when it was made")


def _make_room(connection: Connection, connections: Connections, mark: LoadMark | None) -> None:
    """Remove empty tables, or those of a load that was cut off; raise CatalogUnusable where rows exist."""
    cut_off = mark is not None and _is_cut_off(connection, mark)
    ours = {table.name for table in ALL_TABLES} | {REVISION_TABLE}
    there = sorted(ours & set(inspect(connection).get_table_names()))
    found = MetaData()
    found.reflect(connection, only=there)
    for table in () if cut_off else found.sorted_tables:
        if table.name != REVISION_TABLE and connection.execute(select(table).limit(1)).first() is not None:
            raise CatalogUnusable(
                catalog=connections.address.shown,
                reason="it is not empty",
                hint="Name an empty database: what is in this one is not overwritten.",
            )
    found.drop_all(connection)


def _load_table(connection: Connection, table: Table, file: Path) -> None:
    for rows in _batches(file):
        connection.execute(insert(table), rows)


def _batches(file: Path) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    with file.open("rb") as lines:
        for line in lines:
            rows.append({name: _from_json(value) for name, value in json.loads(line).items()})
            if len(rows) == _ROWS_AT_ONCE:
                yield rows
                rows = []
    if rows:
        yield rows


def _move_counters(connection: Connection, found: MetaData) -> None:
    """Set PostgreSQL's sequences to the newest rows; SQLite does so by itself."""
    if connection.dialect.name != "postgresql":
        return
    for name, column in _COUNTERS.items():
        if name in found.tables:
            newest = connection.execute(select(func.max(found.tables[name].c[column]))).scalar_one()
            if newest is not None:
                connection.execute(select(func.setval(func.pg_get_serial_sequence(name, column), newest)))
