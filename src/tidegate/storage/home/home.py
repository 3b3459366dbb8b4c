"""The home folder: takes a path, gives the places inside it, keeps the layout version, a token and two locks.

layout.json     the layout version; written last: a folder without it is not finished, and is finished
home.id         16 hexadecimal digits that tell this home from others; a restored one has the same
tidegate.toml   settings, the user's own
admin.token     the admin's bearer token, mode 0600
locks/          server.lock and worker.lock: an flock, and the pid of its holder for messages
run/            server.json: address of the running server; backups/: frozen copies while they are packed
engine/         RocksDB
catalog/        catalog.db: tenants, users, tokens, audit, leases, jobs (unless PostgreSQL has them)
lake/           Delta tables of the tenant `default`
streams/        logs of the STREAM tables of the tenant `default`; what is being removed is in .trash
tenants/        <tenant>/lake and <tenant>/streams: those of the others
checkpoints/    Spark's, one folder a pipeline
pipelines/      one Python file a pipeline; that of a stopped one ends in .py.stopped
kept/           whole copies from before an upgrade
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

# 1: the first. 2: a catalogue, tenants and kept copies. 3: record batches and counters of topics of version
# 2, which an earlier program would take for damage; nothing moves.
LAYOUT_VERSION = 3
LAYOUT_FILE = "layout.json"
ID_FILE = "home.id"
ENGINE_PART, CATALOG_PART = "engine", "catalog"
TOKEN_FILE = "admin.token"  # noqa: S105 - the name of a file
FOLDERS = (
    *("locks", "run", "engine", "catalog", "lake", "tenants"),
    *("checkpoints", "pipelines", "kept", "logs", "streams"),
)
# Homes that were made before streams have no folder for them, and are of the same layout: nothing that was
# there moves or reads otherwise, so an empty folder is all there is to an upgrade. The next start makes it.
LATER_FOLDERS = frozenset({"streams"})
LOST_AND_FOUND = "lost+found"  # what some disks of their own have
RESTORING = ".restoring-"  # begins the name of what a restore has not finished
# What may stand in a folder before it becomes a home: the user's settings, and what an interrupted start
# left.
ALLOWED_BEFORE = frozenset({*FOLDERS, "tidegate.toml", TOKEN_FILE, ID_FILE, LOST_AND_FOUND})
# Shorter ones can be guessed; our own have 43.
TOKEN_CHARS_MIN = 16
TOKEN_HINT = "Put a long random text into admin.token in the home folder, with mode 0600."  # noqa: S105
ID_CHARS = 16


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where the server of a home answers."""

    url: str
    pid: int
    # The certificates that the server is trusted by, where it speaks TLS with one of its own.
    ca_file: str | None = None


@dataclass(frozen=True, slots=True)
class Home:
    """A home folder that is complete and of a layout that this version knows."""

    path: Path

    @classmethod
    def open(cls, path: Path, make_token: Callable[[], str], clock: Clock | None = None) -> Home:
        """Open a home, or make one where the folder is absent or empty; never leave one half made.

        One of an older layout is upgraded first, with a whole copy kept; HomeLocked while it is in use.
        `make_token` gives a new random text at every call.
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
        """Open a home that is there; refuse to make one, and one of an older layout.

        Upgrading is for the start of a server, which has the locks; a command of this version beside a
        server of an older one would look for places that are not there yet.
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
        """Write down which parts hold something from now on, so that one that vanishes is missed."""
        noted = _parts_of(self.path)
        if not names <= noted:
            kept = {"layout": LAYOUT_VERSION, "parts": sorted(noted | names)}
            write_file_atomically(self.path / LAYOUT_FILE, json.dumps(kept).encode())

    def lost_parts(self) -> list[str]:
        """Name the parts that held something and are not there: an empty one must not take their place."""
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
        """Name the tenants that have a folder of stream logs, and the first one in any case."""
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
    def backups_path(self) -> Path:
        return self.run_path / "backups"

    @property
    def kept_path(self) -> Path:
        return self.path / "kept"

    @property
    def home_id(self) -> str:
        """The digits that tell this home from others."""
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
        """Return the admin's token; one that could be guessed is refused."""
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
        """Take the lock for a kind of process; refuse with the pid of a living holder.

        A holder that stops, whose supervisor is gone, or that is dead and whose child has the lock still, is
        waited for.
        """
        return take_lock(self.path, kind, wait_seconds)

    def write_address(self, url: str, pid: int, ca_file: str | None = None) -> None:
        """Say where the server answers, and by which certificates it is trusted."""
        trusted = {"caFile": ca_file} if ca_file else {}
        try:
            self.run_path.mkdir(exist_ok=True, mode=0o700)
            content = json.dumps({"url": url, "pid": pid, **trusted}).encode()
            write_file_atomically(self.run_path / "server.json", content)
        except OSError as problem:
            raise home_error(self.path, problem) from problem

    def clear_address(self) -> None:
        """Say that no server answers."""
        (self.run_path / "server.json").unlink(missing_ok=True)

    def server_address(self) -> ServerAddress | None:
        """Return the address that the last server wrote, or None; it may have died since."""
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
    """Make a home, one start at a time: whoever comes second finds it made."""
    while True:
        existed = not _make_folder(path)
        with flocked_folder(path) as ours:
            if not ours:
                continue  # another start could not make it and took it away
            if _layout_of(path) is None:
                _fill(path, make_token, remove_root=not existed)
            return


def _make_folder(path: Path) -> bool:
    """Make the folder unless it is there; say whether it is ours."""
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
    """Make every folder and file of the layout that is not there, and note each in `made`."""
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
    """Remove what this start made; a folder into which someone put something meanwhile stays."""
    for place in [*reversed(made), *([path] if remove_root else [])]:
        with contextlib.suppress(OSError):
            place.rmdir() if place.is_dir() else place.unlink()
