"""`tidegate backup` and `tidegate restore`: the whole home into one file while it runs, and back."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from tidegate.cli.hints import UsageRefused, running_holder
from tidegate.cli.invocation import TOKEN_BYTES, Invocation, command, console
from tidegate.cli.output.format import bytes_text, path_text, plural, program_name, seconds_text
from tidegate.errors import (
    BackupNotFound,
    Conflict,
    LeaseHeld,
    ServerNotRunning,
    TidegateError,
    from_wire,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from tidegate.catalog.connections import Connections
    from tidegate.catalog.dumps import LoadMark
    from tidegate.catalog.restored_access import ValidAccess
    from tidegate.storage.home.home import Home
    from tidegate.upkeep.backup.encryption import EncryptingWriter
    from tidegate.upkeep.backup.pack import BackupFile, Report
    from tidegate.upkeep.backup.restore import RestoreResult

# The packer has a low priority: it is in no hurry, and a server on the same machine is.
PACKER_NICENESS = 10
REPORT_SECONDS = 0.2
# Beside a server the packer pauses this many times as long as it works: a disk that is never idle makes every
# sync of the server wait. The limit keeps a busy machine from making it slower still: all pauses of a
# gigabyte take less than eight seconds.
PAUSE_FACTOR = 2.0
PAUSE_SECONDS_MAX = 0.015
TOKEN_FILE, PIPELINES_FOLDER = "admin.token", "pipelines"  # of the home, which is not imported for a --help
# A snapshot is quick where files can be linked; where they must be copied it takes as long as a copy.
FREEZE_SECONDS_MAX = 3600.0


def register(app: typer.Typer) -> None:
    """Add the commands to the root."""
    command(app, "backup")(backup)
    command(app, "restore")(restore)


def backup(
    call: Invocation,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The file to write, like home.tar.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="KEYFILE", help="Encrypt the file with this key.")
    ] = None,
    new_key: Annotated[
        Path | None, typer.Option("--make-key", metavar="KEYFILE", help="Write a new key, and nothing else.")
    ] = None,
) -> None:
    """Write the whole home into one file while it runs: topics, tables, pipelines, users, tokens."""
    if new_key is not None:
        if file is not None or key is not None:
            raise UsageRefused("--make-key writes a key and nothing else: leave FILE and --key away.")
        _make_key(call, new_key)
    elif file is None:
        raise UsageRefused("Name the file to write: tidegate backup FILE.")
    else:
        _back_up(call, file, force, key)


def _make_key(call: Invocation, file: Path) -> None:
    from tidegate.upkeep.backup.encryption import KEY_BYTES, make_key

    made = make_key(file, secrets.token_bytes(KEY_BYTES))
    call.answer(
        {"file": str(file.absolute()), "keyId": made.id.hex()},
        lambda: (
            f"{file}: a new key, id {made.id.hex()}.\n"
            f"Keep a copy elsewhere: without it, no backup made with it can be restored.\n"
            f"Use it: {program_name()} backup FILE --key {file}"
        ),
    )


def _back_up(call: Invocation, file: Path, force: bool, key_file: Path | None) -> None:
    from tidegate.upkeep.backup.pack import check_target

    if call.elsewhere:
        raise UsageRefused("Make it on the machine of the home: unset TIDEGATE_URL, or give --home DIR.")
    home = call.existing_home()
    check_target(file, force=force)
    encrypt = _encryption(key_file)
    begun = time.monotonic()
    try:
        pack_home = _pack_beside_server if running_holder(home, "server") else _pack_alone
        made = pack_home(call, home, _Target(file, force, encrypt))
    except LeaseHeld as refusal:
        hint = "Wait for it, or look how far it is: tidegate job list --kind backup."
        raise Conflict(reason="A backup of this home is being made already.", hint=hint) from refusal
    seconds = time.monotonic() - begun
    answer = {
        "file": str(file.absolute()),
        "bytes": made.size_bytes,
        "files": made.file_count,
        "seconds": round(seconds, 3),
        "createdAt": made.created_at,
        "encrypted": encrypt is not None,
    }
    key_words = "" if key_file is None else f" --key {key_file}"
    call.answer(
        answer,
        lambda: (
            f"{file}: {bytes_text(made.size_bytes)}, {plural(made.file_count, 'file')}, "
            f"the home as of {made.created_at} ({seconds_text(seconds)}).\n"
            f"Try it: {program_name()} restore {file} --home DIR{key_words}"
        ),
    )


@dataclass(frozen=True, slots=True)
class _Target:
    """The file that a backup becomes."""

    file: Path
    force: bool
    encrypt: Callable[[BinaryIO], EncryptingWriter] | None


def _encryption(key_file: Path | None) -> Callable[[BinaryIO], EncryptingWriter] | None:
    """Return what encrypts a file with the key in another; None without one."""
    if key_file is None:
        return None
    from tidegate.upkeep.backup.encryption import SALT_BYTES, EncryptingWriter, read_key

    key = read_key(key_file)
    return lambda out: EncryptingWriter(out, key, secrets.token_bytes(SALT_BYTES))


def restore(
    call: Invocation,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that 'tidegate backup' wrote.")],
    key: Annotated[
        Path | None,
        typer.Option("--key", metavar="KEYFILE", help="The key of the backup; a plain file is refused."),
    ] = None,
    new_tokens: Annotated[
        bool, typer.Option("--new-tokens", help="End all tokens and links; admin.token gets a new one.")
    ] = False,
) -> None:
    """Make a home from a backup; the folder must not be there yet, or be empty."""
    from tidegate.upkeep.backup.encryption import read_key
    from tidegate.upkeep.backup.restore import RestoreOptions
    from tidegate.upkeep.backup.restore import restore as restore_home

    options = RestoreOptions(
        None if key is None else read_key(key), secrets.token_urlsafe(TOKEN_BYTES) if new_tokens else None
    )
    begun = time.monotonic()
    with _progress(call, "restoring") as report:
        made = restore_home(file, call.home_path, HomeCatalog(call.home_path), report, options=options)
    seconds = time.monotonic() - begun
    answer = {
        "home": str(made.home),
        "bytes": made.size_bytes,
        "files": made.file_count,
        "seconds": round(seconds, 3),
        "createdAt": made.created_at,
        "homeId": made.home_id,
        "tokens": made.access.tokens,
        "sessions": made.access.sessions,
        "links": made.access.links,
        "pipelines": list(made.pipelines),
    }
    call.answer(
        answer,
        lambda: (
            f"{path_text(made.home)}: {bytes_text(made.size_bytes)}, {plural(made.file_count, 'file')}, "
            f"the home as of {made.created_at} ({seconds_text(seconds)}).\n"
            f"{_access_text(made, new_tokens=new_tokens)}\n{_pipelines_text(made)}\n"
            f"Start it: {program_name()} up --home {made.home}"
        ),
    )


def _access_text(made: RestoreResult, *, new_tokens: bool) -> str:
    """Return who is let into a restored home."""
    if new_tokens:
        return f"Valid: the new token in {path_text(made.home / TOKEN_FILE)} and no other."
    access = made.access
    counts = [plural(access.tokens, "token")]
    counts += [plural(access.sessions, "browser session")] if access.sessions else []
    counts += [plural(access.links, "one-time link")] if access.links else []
    return f"Valid again: {', '.join(counts)}. To end them, restore with --new-tokens."


def _pipelines_text(made: RestoreResult) -> str:
    """Return which pipelines run as soon as a worker does."""
    if not made.pipelines:
        return "No pipeline starts with it."
    names = ", ".join(made.pipelines)
    folder = path_text(made.home / PIPELINES_FOLDER)
    return f"Starts with it: {names}. What must not run twice, remove from {folder} first."


def _pack_beside_server(call: Invocation, home: Home, target: _Target) -> BackupFile:
    """Let the server take the snapshot of its home, and pack that here."""
    from tidegate.upkeep.backup.coordinator import remove_frozen
    from tidegate.upkeep.backup.pack import packing

    started = _request(home, "POST", "/api/v1/backups", {})
    folder, path = Path(started["path"]), f"/api/v1/backups/{started['id']}"
    try:
        with packing(folder) as write_progress:
            made = _pack(call, folder, target, write_progress, _Pause())
            body = {"file": str(target.file.absolute()), "bytes": made.size_bytes}
            try:
                _request(home, "POST", f"{path}/finish", body)
            except (BackupNotFound, ServerNotRunning):
                remove_frozen(folder)  # the server was restarted meanwhile; the file is complete all the same
    except BaseException:
        _give_up(home, path)
        raise
    return made


def _pack_alone(call: Invocation, home: Home, target: _Target) -> BackupFile:
    """Take the snapshot of a home that no server has open, and pack it."""
    from tidegate.catalog.audit import system_actor
    from tidegate.catalog.database import Catalog
    from tidegate.catalog.database_url import address_of
    from tidegate.model.clock import SystemClock
    from tidegate.storage.rocksdb.engine import RocksEngine
    from tidegate.upkeep.backup.coordinator import BackupCoordinator, remove_stale_backups
    from tidegate.upkeep.backup.pack import packing

    clock, settings = SystemClock(), call.settings()
    lock = home.lock("server")
    lock.mark_brief("backup")
    with ExitStack() as closing:
        closing.callback(lock.release)
        remove_stale_backups(home)
        address = address_of(settings.catalog, home.catalog_path)
        catalog = Catalog.open(address, clock, random_bytes=secrets.token_bytes)
        closing.callback(catalog.close)
        engine = RocksEngine(home.engine_path)
        closing.callback(engine.close)
        coordinator = BackupCoordinator(home, engine, catalog, clock)
        closing.callback(coordinator.close)
        started = coordinator.start(system_actor("backup"))
        with packing(started.folder) as write_progress:
            # The snapshot is complete, and a server that starts now sees that it is being packed.
            engine.close()
            lock.release()
            made = _pack(call, started.folder, target, write_progress, lambda: None)
            coordinator.finish(started.id, str(target.file.absolute()), made.size_bytes)
    return made


class _Pause:
    """Sleeps in proportion to the work since the last pause, within a limit."""

    def __init__(self) -> None:
        self._ended_seconds = time.monotonic()

    def __call__(self) -> None:
        """Sleep."""
        busy_seconds = time.monotonic() - self._ended_seconds
        time.sleep(min(busy_seconds * PAUSE_FACTOR, PAUSE_SECONDS_MAX))
        self._ended_seconds = time.monotonic()


def _pack(
    call: Invocation,
    folder: Path,
    target: _Target,
    write_progress: Callable[[float], None],
    after_sync: Callable[[], None],
) -> BackupFile:
    import tidegate
    from tidegate.upkeep.backup.pack import pack

    _lower_priority()
    due = 0.0

    with _progress(call, "packing") as show:

        def report(done: int, total: int) -> None:
            nonlocal due
            if time.monotonic() >= due:
                due = time.monotonic() + REPORT_SECONDS
                write_progress(done / max(total, 1))
                show(done, total)

        return pack(
            folder,
            target.file,
            tidegate_version=tidegate.__version__,
            force=target.force,
            report=report,
            after_sync=after_sync,
            encrypt=target.encrypt,
        )


def _lower_priority() -> None:
    import psutil

    os.nice(PACKER_NICENESS)
    psutil.Process().ionice(psutil.IOPRIO_CLASS_BE, value=7)  # the lowest priority that is never starved


def _request(home: Home, method: str, path: str, body: object = None) -> dict[str, Any]:
    """Send one request to the server of the home, with the home's own token."""
    import msgspec

    from tidegate.cli.http_request import REQUEST_ERRORS, send_request
    from tidegate.storage.home.address import find_server

    server = find_server(None, None, home.path, {})
    try:
        status, answer = send_request(
            method,
            f"{server.url.rstrip('/')}{path}",
            timeout_seconds=FREEZE_SECONDS_MAX,
            tls_context=server.tls_context(),
            headers={"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"},
            body=None if body is None else msgspec.json.encode(body),
        )
    except REQUEST_ERRORS as problem:
        raise ServerNotRunning(url=server.url, reason=str(problem) or type(problem).__name__) from problem
    content: dict[str, Any] = msgspec.json.decode(answer)
    if status >= HTTPStatus.BAD_REQUEST:
        raise from_wire(content)
    return content


def _give_up(home: Home, path: str) -> None:
    try:
        _request(home, "DELETE", path)
    except TidegateError:
        return  # the server notices by itself that the packer is gone


class HomeCatalog:
    """Loads a catalog into the database that the settings of a home name."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def load(self, home: Path, dump: Path, mark: str, *, end_tokens: bool) -> ValidAccess:
        """Load a dump into the catalog; return what lets somebody in."""
        from tidegate.catalog.dumps import load
        from tidegate.catalog.restored_access import end_access, valid_access
        from tidegate.model.clock import SystemClock
        from tidegate.storage.home.home import Home

        now_us, admin_token = SystemClock().now_us(), Home(home).read_token()
        counted: list[ValidAccess] = []

        def amend(connection: Connection) -> None:
            if end_tokens:
                end_access(connection, now_us)
            counted.append(valid_access(connection, admin_token, now_us))

        with self._connect(home) as connections:
            load(connections, dump, self._mark(mark, "ended" if end_tokens else "unchanged"), amend)
        return counted[-1]

    def confirm(self, home: Path, mark: str) -> None:
        """Note that the home is there."""
        from tidegate.catalog.dumps import keep_load

        with self._connect(home) as connections:
            keep_load(connections, self._mark(mark))

    def undo(self, home: Path, mark: str) -> None:
        """Empty the catalog again."""
        from tidegate.catalog.dumps import undo_load

        with self._connect(home) as connections:
            undo_load(connections, self._mark(mark))

    def _mark(self, name: str, tokens: str = "") -> LoadMark:
        from tidegate.catalog.audit import system_actor
        from tidegate.catalog.dumps import LoadMark
        from tidegate.model.clock import SystemClock

        details = {"home": str(self._target.absolute()), "tokens": tokens}
        return LoadMark(name, SystemClock(), system_actor("restore"), details)

    @contextmanager
    def _connect(self, home: Path) -> Iterator[Connections]:
        from tidegate.catalog.connections import Connections
        from tidegate.catalog.database_url import address_of
        from tidegate.model.clock import SystemClock
        from tidegate.settings import load_settings
        from tidegate.storage.home.home import Home

        address = address_of(load_settings(home, os.environ).catalog, Home(home).catalog_path)
        connections = Connections(address, SystemClock())
        try:
            yield connections
        finally:
            connections.close()


@contextmanager
def _progress(call: Invocation, verb: str) -> Iterator[Report]:
    """Show a bar on a terminal, and nothing elsewhere."""
    out = console(stderr=True)
    if call.as_json or not out.is_terminal:
        yield lambda _done, _total: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task(verb, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
