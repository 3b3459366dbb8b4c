"""The home folder: its layout, the paths in it, its id and its token.

layout.json     the layout version; written last: a folder without it is incomplete, and is completed
home.id         16 hexadecimal digits that identify this home; a restored one has the same
tidegate.toml   settings, the user's own
admin.token     the admin's bearer token, mode 0600
locks/          server.lock and worker.lock: an flock, and the pid of its holder for messages
run/            server.json: address of the running server; backups/: snapshots while they are packed;
                pipelines.token: the token that the worker gives to pipelines, mode 0600
engine/         RocksDB
catalog/        catalog.db: tenants, users, tokens, audit, leases, jobs (unless PostgreSQL has them)
lake/           Delta tables of the tenant `default`
streams/        logs of the STREAM tables of the tenant `default`; what is being removed is in .trash
tenants/        <tenant>/lake and <tenant>/streams: those of the other tenants
checkpoints/    Spark's, one folder for each pipeline
pipelines/      one Python file for each pipeline; that of a stopped one ends in .py.stopped
kept/           complete copies from before an upgrade
logs/
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidegate.errors import HomeTooNew, HomeUnusable
from tidegate.model.access import DEFAULT_TENANT
from tidegate.model.clock import Clock, SystemClock
from tidegate.storage.files import home_error, write_file_atomically
from tidegate.storage.home.locks import (
    LEAVING_HOLDER_WAIT_SECONDS,
    HomeLock,
    LockKind,
    flocked_folder,
    take_lock,
)
from tidegate.storage.home.upgrade import upgrade_home

# 1: the first. 2: a catalog, tenants and copies in `kept`. 3: record batches and counters of topics of
# version 2, which an earlier program would take for damage; no file moves.
LAYOUT_VERSION = 4
LAYOUT_FILE = "layout.json"
ID_FILE = "home.id"
ENGINE_PART, CATALOG_PART = "engine", "catalog"
TOKEN_FILE = "admin.token"  # noqa: S105 - the name of a file
FOLDERS = (
    *("locks", "run", "engine", "catalog", "lake", "tenants"),
    *("checkpoints", "pipelines", "kept", "logs", "streams"),
)
# Homes from before streams have no folder for them, and are of the same layout: no other file moves or
# changes, so that the next start only has to create an empty folder.
LATER_FOLDERS = frozenset({"streams"})
LOST_AND_FOUND = "lost+found"  # in the root of some file systems
RESTORING = ".restoring-"  # prefix of the files of an unfinished restore
# What may be in a folder before it becomes a home: the user's settings, and what an interrupted start left.
ALLOWED_BEFORE = frozenset({*FOLDERS, "tidegate.toml", TOKEN_FILE, ID_FILE, LOST_AND_FOUND})
# Shorter ones can be guessed; our own have 43.
TOKEN_CHARS_MIN = 16
TOKEN_HINT = "Put a long random text into admin.token in the home folder, with mode 0600."  # noqa: S105
ID_CHARS = 16


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of the server of a home."""

    url: str
    pid: int
    # The file of the server's certificate, where it speaks TLS with one of its own.
    ca_file: str | None = None


@dataclass(frozen=True, slots=True)
class Home:
    """A complete home folder of the layout of this version."""

    path: Path

    @classmethod
    def open(cls, path: Path, make_token: Callable[[], str], clock: Clock | None = None) -> Home:
        """Open a home, or create one where the folder is absent or empty; never leave one half created.

        One of an older layout is copied and upgraded first; HomeLocked while it is in use. `make_token`
        returns a new random text at every call.
        """
        path = path.expanduser().absolute()
        try:
            found = _layout_of(path)
            if found is None:
                _make(path, make_token)
            elif found > LAYOUT_VERSION:
                raise HomeTooNew(home=str(path), found=found, known=LAYOUT_VERSION)
            elif found < LAYOUT_VERSION:
                _upgrade(path, make_token, clock or SystemClock())
            for name in LATER_FOLDERS:
                (path / name).mkdir(mode=0o700, exist_ok=True)
        except OSError as problem:
            raise home_error(path, problem) from problem
        return cls(path)

    @classmethod
    def existing(cls, path: Path) -> Home:
        """Open an existing home; raise HomeUnusable where there is none, or one of an older layout.

        Upgrading is left to the start of a server, which has the locks; a command of this version beside a
        server of an older one would look for files that do not exist yet.
        """
        path = path.expanduser().absolute()
        found = _layout_of(path)
        if found is None:
            raise HomeUnusable(
                home=str(path),
                reason="there is no home there",
                hint="Make one with 'tidegate up --home DIR'.",
            )
        if found > LAYOUT_VERSION:
            raise HomeTooNew(home=str(path), found=found, known=LAYOUT_VERSION)
        if found < LAYOUT_VERSION:
            raise HomeUnusable(
                home=str(path),
                reason=f"it has layout {found}, of an earlier version",
                hint="Stop what runs there, then start 'tidegate up' once: it upgrades and keeps a copy.",
            )
        return cls(path)

    def note_parts(self, names: frozenset[str]) -> None:
        """Record the parts that have data from now on, so that a lost one is noticed."""
        noted = _parts_of(self.path)
        if not names <= noted:
            _write_layout(self.path, noted | names)

    def lost_parts(self) -> list[str]:
        """Return the names of parts that had data and are missing: an empty one must not replace them."""
        marks = {ENGINE_PART: self.engine_path / "CURRENT", CATALOG_PART: self.catalog_path}
        return [name for name in sorted(_parts_of(self.path)) if name in marks and not marks[name].exists()]

    @property
    def engine_path(self) -> Path:
        return self.path / "engine"

    @property
    def lake_path(self) -> Path:
        return self.path / "lake"

    @property
    def tenants_path(self) -> Path:
        return self.path / "tenants"

    def tenant_lake_path(self, tenant: str) -> Path:
        """Return the folder of a tenant's Delta tables."""
        return self.lake_path if tenant == DEFAULT_TENANT else self.tenants_path / tenant / "lake"

    @property
    def streams_path(self) -> Path:
        return self.path / "streams"

    def tenant_streams_path(self, tenant: str) -> Path:
        """Return the folder of a tenant's stream logs."""
        return self.streams_path if tenant == DEFAULT_TENANT else self.tenants_path / tenant / "streams"

    def stream_tenants(self) -> list[str]:
        """Return the tenants that have a folder of stream logs; the default tenant is always first."""
        if not self.tenants_path.is_dir():
            return [DEFAULT_TENANT]
        others = (folder.name for folder in self.tenants_path.iterdir() if (folder / "streams").is_dir())
        return [DEFAULT_TENANT, *sorted(others)]

    @property
    def catalog_path(self) -> Path:
        return self.path / "catalog" / "catalog.db"

    @property
    def checkpoints_path(self) -> Path:
        return self.path / "checkpoints"

    @property
    def pipelines_path(self) -> Path:
        return self.path / "pipelines"

    @property
    def logs_path(self) -> Path:
        return self.path / "logs"

    @property
    def run_path(self) -> Path:
        return self.path / "run"

    @property
    def pipeline_token_path(self) -> Path:
        return self.run_path / "pipelines.token"

    @property
    def backups_path(self) -> Path:
        return self.run_path / "backups"

    @property
    def home_id(self) -> str:
        """The digits that identify this home."""
        try:
            text = (self.path / ID_FILE).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as problem:
            reason = f"{ID_FILE} cannot be read ({problem})"
            raise HomeUnusable(home=str(self.path), reason=reason) from problem
        if len(text) != ID_CHARS or set(text) - set("0123456789abcdef"):
            raise HomeUnusable(home=str(self.path), reason=f"{ID_FILE} is damaged")
        return text

    @property
    def token_path(self) -> Path:
        return self.path / TOKEN_FILE

    def read_token(self) -> str:
        """Return the admin's token; raise HomeUnusable for one that could be guessed."""
        try:
            token = self.token_path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as problem:
            reason = f"{TOKEN_FILE} cannot be read ({problem})"
            raise HomeUnusable(home=str(self.path), reason=reason, hint=TOKEN_HINT) from problem
        if len(token) < TOKEN_CHARS_MIN:
            reason = f"the token in {TOKEN_FILE} has fewer than {TOKEN_CHARS_MIN} characters"
            raise HomeUnusable(home=str(self.path), reason=reason, hint=TOKEN_HINT)
        return token

    def lock(self, kind: LockKind, *, wait_seconds: float = LEAVING_HOLDER_WAIT_SECONDS) -> HomeLock:
        """Take the lock for a kind of process; HomeLocked names the pid of a living holder.

        A holder that is stopping, whose supervisor is gone, or that is dead while a child of it still has the
        lock, is waited for.
        """
        return take_lock(self.path, kind, wait_seconds)

    def write_address(self, url: str, pid: int, ca_file: str | None = None) -> None:
        """Write the address of the server, and the file of its certificate."""
        trusted = {"caFile": ca_file} if ca_file else {}
        try:
            self.run_path.mkdir(exist_ok=True, mode=0o700)
            content = json.dumps({"url": url, "pid": pid, **trusted}).encode()
            write_file_atomically(self.run_path / "server.json", content)
        except OSError as problem:
            raise home_error(self.path, problem) from problem

    def clear_address(self) -> None:
        """Remove the address of the server."""
        (self.run_path / "server.json").unlink(missing_ok=True)

    def server_address(self) -> ServerAddress | None:
        """Return the address that the last server wrote, or None; the server may have died since."""
        try:
            text = (self.run_path / "server.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            address = json.loads(text)
            return ServerAddress(address["url"], address["pid"], address.get("caFile"))
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            reason = f"run/server.json is damaged ({problem})"
            raise HomeUnusable(
                home=str(self.path), reason=reason, hint="Start the server again."
            ) from problem


def _parts_of(path: Path) -> frozenset[str]:
    return frozenset(json.loads((path / LAYOUT_FILE).read_text(encoding="utf-8")).get("parts", ()))


def _layout_of(path: Path) -> int | None:
    try:
        text = (path / LAYOUT_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (NotADirectoryError, PermissionError) as problem:
        raise HomeUnusable(home=str(path), reason=problem.strerror or "not readable") from problem
    except UnicodeDecodeError as problem:
        raise HomeUnusable(home=str(path), reason=f"{LAYOUT_FILE} is damaged") from problem
    try:
        return int(json.loads(text)["layout"])
    except (ValueError, KeyError, TypeError) as problem:
        raise HomeUnusable(home=str(path), reason=f"{LAYOUT_FILE} is damaged") from problem


def _make(path: Path, make_token: Callable[[], str]) -> None:
    """Create a home, one start at a time: a concurrent start finds it complete."""
    while True:
        existed = not _make_folder(path)
        with flocked_folder(path) as ours:
            if not ours:
                continue  # another start failed to create it and removed it
            if _layout_of(path) is None:
                _fill(path, make_token, remove_root=not existed)
            return


def _make_folder(path: Path) -> bool:
    """Create the folder; return False where it exists."""
    try:
        path.mkdir(parents=True, mode=0o700)
    except FileExistsError:
        return False
    return True


def _fill(path: Path, make_token: Callable[[], str], *, remove_root: bool) -> None:
    foreign = sorted(entry.name for entry in path.iterdir() if not _ours(entry.name))
    if any(name.startswith(RESTORING) for name in foreign):
        hint = "Restore the backup again: that removes what is left of the first attempt."
        raise HomeUnusable(home=str(path), reason="a restore of it was cut off", hint=hint)
    if foreign:
        raise HomeUnusable(home=str(path), reason=f"it holds other things ({', '.join(foreign[:3])})")
    made: list[Path] = []
    try:
        _add_what_is_missing(path, make_token, made)
        _write_layout(path)
    except OSError:
        _unmake(path, made, remove_root=remove_root)
        raise


def _upgrade(path: Path, make_token: Callable[[], str], clock: Clock) -> None:
    def finish() -> None:
        _add_what_is_missing(path, make_token, [])
        _write_layout(path, _parts_of(path))

    upgrade_home(path, LAYOUT_VERSION, clock, lambda: _layout_of(path) or 0, finish)


def _add_what_is_missing(path: Path, make_token: Callable[[], str], made: list[Path]) -> None:
    """Create every folder and file of the layout that is missing, and add each to `made`."""
    for name in FOLDERS:
        if not (path / name).exists():
            (path / name).mkdir(mode=0o700)
            made.append(path / name)
    if not (path / TOKEN_FILE).exists():
        write_file_atomically(path / TOKEN_FILE, f"{make_token()}\n".encode("ascii"), mode=0o600)
        made.append(path / TOKEN_FILE)
    if not (path / ID_FILE).exists():
        digits = hashlib.sha256(make_token().encode()).hexdigest()[:ID_CHARS]
        write_file_atomically(path / ID_FILE, f"{digits}\n".encode("ascii"))
        made.append(path / ID_FILE)


def _write_layout(path: Path, parts: frozenset[str] = frozenset()) -> None:
    noted = {"parts": sorted(parts)} if parts else {}
    write_file_atomically(path / LAYOUT_FILE, json.dumps({"layout": LAYOUT_VERSION, **noted}).encode())


def _ours(name: str) -> bool:
    return name in ALLOWED_BEFORE or (
        name.startswith((TOKEN_FILE, LAYOUT_FILE, ID_FILE)) and name.endswith(".new")
    )


def _unmake(path: Path, made: list[Path], *, remove_root: bool) -> None:
    """Remove what this start created; a folder that is not empty any more stays."""
    for place in [*reversed(made), *([path] if remove_root else [])]:
        with contextlib.suppress(OSError):
            place.rmdir() if place.is_dir() else place.unlink()
