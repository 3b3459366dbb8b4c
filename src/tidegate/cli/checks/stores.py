"""The checks of stored data: catalog, engine, lake, and stream logs. They only read; a server may run."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterable
from contextlib import closing
from itertools import islice
from pathlib import Path

from tidegate.cli.checks.finding import RESTORE_FIX, Finding, fail, ok, warn
from tidegate.cli.output.format import bytes_text, plural
from tidegate.errors import SqlUnsupported, StorageCorrupt, TidegateError
from tidegate.settings import CatalogSettings
from tidegate.streams.corruption import scan_damage
from tidegate.streams.disk import StreamDisk
from tidegate.streams.trash import TRASH

# A power cut leaves whole sectors of zeros at the end of the newest log.
SECTOR_BYTES = 512
TABLES_NAMED_MAX = 5
SQLITE_WAIT_SECONDS = 5.0


def check_catalog(settings: CatalogSettings, file: Path, *, lost: bool = False) -> Finding:
    """Check that the catalog answers, is undamaged, and has a revision that this version knows.

    With `lost` there was one in the home.
    """
    return _check_postgresql(settings) if settings.url else _check_sqlite(file, lost=lost)


def _check_sqlite(file: Path, *, lost: bool) -> Finding:
    if not file.exists():
        if lost:
            return fail("catalog", f"{file} is gone", RESTORE_FIX)
        return ok("catalog", "not made yet; the first start makes it")
    try:
        with closing(
            sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=SQLITE_WAIT_SECONDS)
        ) as database:
            damage = [row[0] for row in database.execute("PRAGMA quick_check(5)") if row[0] != "ok"]
            row = database.execute("SELECT version_num FROM catalog_revision").fetchone()
    except sqlite3.OperationalError as problem:
        if "no such table" in str(problem):
            return warn("catalog", f"{file} has no tables yet", "tidegate up makes them.")
        return fail("catalog", f"{file} does not open: {problem}", "Look at its rights and at the disk.")
    except sqlite3.DatabaseError as problem:
        return fail("catalog", f"{file} is damaged: {problem}", RESTORE_FIX)
    if damage:
        return fail("catalog", f"{file} is damaged: {'; '.join(damage)}", RESTORE_FIX)
    return _judge_revision(str(file), row[0] if row else None)


def _check_postgresql(settings: CatalogSettings) -> Finding:
    from tidegate.catalog.connections import Connections
    from tidegate.catalog.database_url import DatabaseAddress
    from tidegate.model.clock import SystemClock

    fix = "Start the database, or set catalog.url right: postgresql://user:password@host/database."
    try:
        address = DatabaseAddress(settings.url, connections_max=1, timeout_seconds=settings.timeout_seconds)
        connections = Connections(address, SystemClock())
        try:
            with connections.read() as connection:
                there = connection.exec_driver_sql("SELECT to_regclass('catalog_revision')").scalar()
                row = (
                    connection.exec_driver_sql("SELECT version_num FROM catalog_revision").first()
                    if there
                    else None
                )
        finally:
            connections.close()
    except TidegateError as problem:
        return fail("catalog", str(problem), fix)
    if not there:
        return ok("catalog", f"{address.shown} has no tables yet; the first start makes them")
    return _judge_revision(address.shown, row[0] if row else None)


def _judge_revision(address: str, revision: str | None) -> Finding:
    from tidegate.catalog.migrations.upgrade import known_revisions

    known = known_revisions()
    if revision == known[-1]:
        return ok("catalog", f"{address}, revision {revision}")
    if revision in known:
        found = f"{address} has revision {revision}, this version works with {known[-1]}"
        return warn("catalog", found, "The next start upgrades it; make a backup first.")
    found = f"{address} has revision {revision}, which this version does not know"
    return fail("catalog", found, "Install a newer Tidegate, or restore a backup from before the upgrade.")


def check_engine(folder: Path, *, server_runs: bool, lost: bool = False) -> Finding:
    """Check that the engine's files can be read; without a server also every record of its logs.

    With `lost` something was stored in it.
    """
    current = folder / "CURRENT"
    if not current.exists():
        strays = sorted(folder.glob("*.sst")) if folder.is_dir() else []
        if strays:
            return fail("engine", f"{current} is gone, and {strays[0].name} is there", RESTORE_FIX)
        if lost:
            return fail("engine", f"{current} is gone", RESTORE_FIX)
        return ok("engine", "nothing is stored yet")
    try:
        manifest = folder / current.read_text(encoding="ascii").strip()
        for file in (manifest, *folder.glob("*.log"), *folder.glob("*.sst")):
            with file.open("rb") as stored_file:
                stored_file.read(1)
    except FileNotFoundError as problem:
        if server_runs and problem.filename and not Path(problem.filename).name.startswith("MANIFEST"):
            return ok("engine", f"{folder}; the server has it open")  # compacted away meanwhile
        return fail("engine", f"{problem.filename} is gone", RESTORE_FIX)
    except (OSError, UnicodeDecodeError) as problem:
        return fail(
            "engine", f"a file in {folder} cannot be read: {problem}", "Look at its rights and at the disk."
        )
    if server_runs:
        return ok("engine", f"{folder}; the server has it open")
    return _check_records(folder)


def _check_records(folder: Path) -> Finding:
    """Check the chain of the logs, then the checksum of every record."""
    from tidegate.storage.rocksdb.wal import check_logs, locate_damage, log_files

    try:
        check_logs(folder)
        damage = locate_damage(folder)
    except StorageCorrupt as problem:
        return fail("engine", f"{problem.values['place']}: {problem.values['reason']}", RESTORE_FIX)
    logs = log_files(folder)
    if damage is None:
        lost = _lost_table(folder)
        if lost is not None:
            return fail("engine", lost, RESTORE_FIX)
        size = sum(file.stat().st_size for file in logs)
        return ok("engine", f"{folder}; {plural(len(logs), 'log')}, {bytes_text(size)}, whole")
    file, at = damage
    if _never_written(file, at):
        found = f"{file}: the last write, at byte {at}, never reached the disk"
        return warn("engine", found, "The next start drops it: it was not acknowledged.")
    return fail("engine", f"{file}: the record at byte {at} does not fit its checksum", RESTORE_FIX)


def _lost_table(folder: Path) -> str | None:
    """Open the store to read, and return which of its files is missing or cut; None where it opens.

    RocksDB gets links to the files in another folder, so that nothing is written beside them.
    """
    from rocksdict import AccessType, Rdict

    from tidegate.storage.rocksdb.options import EngineOptions, options_of

    options = options_of(EngineOptions())
    with tempfile.TemporaryDirectory(prefix="tidegate-doctor-") as scratch:
        for file in folder.iterdir():
            if file.name not in ("LOCK", "LOG", "rocksdict-config.json"):
                (Path(scratch) / file.name).symlink_to(file.absolute())
        try:
            database = Rdict(
                scratch, options, column_families={"default": options}, access_type=AccessType.read_only()
            )
            database.close()
        except Exception as fault:  # noqa: BLE001 - rocksdict has no narrower type
            return str(fault).replace(scratch, str(folder)).replace("\n", " ")
    return None


def _never_written(file: Path, at: int) -> bool:
    """True if the bytes after a record's start end with sectors of zeros, as after a power cut."""
    with file.open("rb") as log:
        log.seek(at)
        rest = log.read()
    return len(rest) - len(rest.rstrip(b"\x00")) >= SECTOR_BYTES


def check_lake(roots: list[Path]) -> Finding:
    """Check that every table opens, and that its files have the size that the log names."""
    from tidegate.storage.lake.tables import Lake

    damaged, unread, versions = [], [], []
    for root in roots:
        lake = Lake(root)
        for name in lake.names():
            try:
                view = lake.view(name)
            except StorageCorrupt as problem:
                damaged.append(f"{problem.values['place']}: {problem.values['reason']}")
                continue
            except (SqlUnsupported, TidegateError) as problem:
                unread.append(f"{root / name}: {problem}")
                continue
            damaged += _wrong_files(view.folder, view.files)
            versions.append(f"{name} at version {view.version}")
    if damaged:
        return fail("lake", _some(damaged), RESTORE_FIX)
    if unread:
        return warn("lake", _some(unread), "Read it with Spark, or rewrite it without that feature.")
    return ok(
        "lake", f"{plural(len(versions), 'table')} open" + (f": {_some(versions, ', ')}" if versions else "")
    )


def _wrong_files(folder: Path, files: object) -> list[str]:
    wrong = []
    columns = files.to_pydict()  # type: ignore[attr-defined]
    for path, size_bytes in zip(columns["path"], columns["size_bytes"], strict=True):
        try:
            found_bytes = (folder / path).stat().st_size
        except FileNotFoundError:
            wrong.append(f"{folder / path} is gone")
            continue
        if size_bytes is not None and found_bytes != size_bytes:
            wrong.append(f"{folder / path} has {found_bytes} bytes, the log says {size_bytes}")
    return wrong


def _some(lines: list[str], between: str = "; ") -> str:
    rest = len(lines) - TABLES_NAMED_MAX
    return between.join(lines[:TABLES_NAMED_MAX]) + (f" and {rest} more" if rest > 0 else "")


# A second or two of reading. More is not checked here, and the finding says so.
LOGS_BYTES_MAX = 1 << 30
DAMAGES_NAMED_MAX = 5
DAMAGE_FIX = (
    "Answers leave these rows out and have the others. To get them back, restore the newest backup into an "
    "empty home: tidegate restore FILE --home DIR. Else leave the file: it is removed when it expires."
)


def check_streams(roots: Iterable[Path], bytes_max: int = LOGS_BYTES_MAX) -> Finding:
    """Check every frame of every log against its checksums; damage is named by file and byte."""
    disk = _BoundedDisk(bytes_max)
    places = list(roots)
    damages = (damage for root in places for damage in scan_damage(root, disk))
    # One more than is named, to know that there are more; the rest of a badly damaged disk is not read.
    found = list(islice(damages, DAMAGES_NAMED_MAX + 1))
    if found:
        text = "; ".join(
            f"{damage.file}: {damage.reason}, at byte {damage.position}"
            for damage in found[:DAMAGES_NAMED_MAX]
        )
        more = "; and more" if len(found) > DAMAGES_NAMED_MAX else ""
        return fail("streams", text + more, DAMAGE_FIX)
    if not disk.read_count and not disk.skipped_count:
        return ok("streams", "no rows are stored")
    text = f"{plural(disk.read_count, 'log')}, {bytes_text(disk.read_bytes)}, whole"
    if disk.skipped_count:
        text += f"; {plural(disk.skipped_count, 'log')} beyond {bytes_text(bytes_max)} not looked at"
    waiting = sum(len(disk.entries(str(root / TRASH))) for root in places)
    if waiting:
        text += f"; {plural(waiting, 'expired folder')} still to be removed"
    return ok("streams", text)


class _BoundedDisk(StreamDisk):
    """A disk that opens so many bytes of logs; for the caller, the others do not exist."""

    def __init__(self, bytes_max: int) -> None:
        self.read_bytes = 0
        self.read_count = 0
        self.skipped_count = 0
        self._bytes_max = bytes_max

    def open_read(self, path: str) -> int:
        """Open a log; raise FileNotFoundError where the limit is reached."""
        fd = super().open_read(path)
        size_bytes = self.size(fd)
        if self.read_bytes + size_bytes > self._bytes_max:
            self.close(fd)
            self.skipped_count += 1
            raise FileNotFoundError(path)
        self.read_bytes += size_bytes
        self.read_count += 1
        return fd
