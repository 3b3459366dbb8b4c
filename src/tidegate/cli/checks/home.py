"""The checks of a home: layout, rights, settings, address, logs, and leftovers of upgrades and backups."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from tidegate.cli.checks.finding import RESTORE_FIX, Finding, fail, ok, warn
from tidegate.cli.output.format import bytes_text, plural
from tidegate.errors import SettingInvalid, TidegateError
from tidegate.settings import ENVIRONMENT_OTHERS, ENVIRONMENT_PREFIX, SETTINGS_FILE, load_settings
from tidegate.storage.home.home import FOLDERS, LATER_FOLDERS, LAYOUT_FILE, LAYOUT_VERSION, TOKEN_FILE, Home

OTHERS_READ_OR_WRITE = 0o077
OTHERS_WRITE = 0o022
# Errors are searched in this much of the end of a log.
LOG_TAIL_BYTES_MAX = 256_000
LOG_LINE_CHARS_MAX = 200
# The first line of a run, in each log.
LOG_STARTS = re.compile(r"\bserving \S.* (?:at |url=)http|\bworker starting\b")
# user:password@host in an address, as catalog.url may have it.
PASSWORD = re.compile(r"://[^\s/:@\"']*:[^\s/@\"']+@")
LOG_ERROR = re.compile(r'^\S+ (ERROR|CRITICAL) |"level": "(error|critical)"|^\{"error"')


def check_home(path: Path, *, own_catalog: bool = True) -> Finding:
    """Check that the folder is a home of this version's layout, with everything in it."""
    if not path.exists():
        return warn(
            "home", f"there is none at {path} yet", "tidegate up makes it, or name another: --home DIR."
        )
    if not (path / LAYOUT_FILE).exists():
        return _without_layout(path)
    try:
        Home.existing(path)
    except TidegateError as refusal:
        return _refused_layout(path, refusal)
    missing = [name for name in FOLDERS if name not in LATER_FOLDERS and not (path / name).is_dir()]
    lost = lost_parts(path, own_catalog=own_catalog)
    if lost:
        # An empty folder in its place would look like a home in which nothing was ever stored.
        return fail("home", f"{path} has lost what was in {', '.join(lost)}", RESTORE_FIX)
    if missing:
        places = " ".join(str(path / name) for name in missing)
        return fail(
            "home", f"{path} lacks {', '.join(missing)}", f"mkdir -m 700 {places}, or restore a backup."
        )
    return ok("home", f"{path}, layout {LAYOUT_VERSION}")


def lost_parts(path: Path, *, own_catalog: bool = True) -> list[str]:
    """Return the parts of a used home that are missing.

    Without `own_catalog` the catalog is in a database elsewhere, whatever the home had before.
    """
    try:
        recorded = Home(path).lost_parts()
    except (OSError, ValueError, TypeError, AttributeError):
        recorded = []  # without a layout it is no home yet; a damaged one is another finding
    traces = (path / "engine" / "CURRENT", path / "catalog" / "catalog.db", path / "logs" / "server.log")
    is_used = any(trace.exists() for trace in traces)
    missing = [name for name in ("engine", "lake") if is_used and not (path / name).is_dir()]
    return sorted({name for name in (*recorded, *missing) if name != "catalog" or own_catalog})


def _without_layout(path: Path) -> Finding:
    if not path.is_dir():
        return fail("home", f"{path} is a file, no folder", "Name a folder: --home DIR.")
    inside = sorted(entry.name for entry in path.iterdir())
    foreign = [name for name in inside if name not in {*FOLDERS, SETTINGS_FILE, TOKEN_FILE, "lost+found"}]
    if foreign:
        found = f"{path} is no home, and holds other things ({', '.join(foreign[:3])})"
        return fail("home", found, "Name an empty folder, or the right home: --home DIR.")
    return warn("home", f"{path} is not made yet, or only half", "tidegate up makes it.")


def _refused_layout(path: Path, refusal: TidegateError) -> Finding:
    try:
        older = int(json.loads((path / LAYOUT_FILE).read_bytes())["layout"]) < LAYOUT_VERSION
    except (OSError, ValueError, KeyError, TypeError):
        older = False
    if older:
        return warn("home", str(refusal), refusal.hint)
    return fail("home", str(refusal), refusal.hint)


def check_rights(path: Path, uid: int) -> Finding:
    """Check that the user owns the home, and that others can neither change it nor read its secrets."""
    owned = [path / name for name in ("", *FOLDERS, TOKEN_FILE) if (path / name).exists()]
    foreign = [place for place in owned if place.stat().st_uid != uid]
    if foreign and uid != 0:
        found = f"{foreign[0]} belongs to user {foreign[0].stat().st_uid}, this is user {uid}"
        return fail("rights", found, f"sudo chown -R {uid} {path}, or run Tidegate as its owner.")
    tokens = (path / TOKEN_FILE, Home(path).pipeline_token_path)
    for secret in (*tokens, *sorted((path / "catalog").glob("*"))):
        if secret.exists() and secret.stat().st_mode & OTHERS_READ_OR_WRITE:
            return fail("rights", f"others may read {secret}", f"chmod 600 {secret}")
    settings = path / SETTINGS_FILE
    if settings.exists() and settings.stat().st_mode & OTHERS_READ_OR_WRITE and _holds_password(settings):
        found = f"others may read {settings}, which holds a password"
        return fail("rights", found, f"chmod 600 {settings}")
    if path.stat().st_mode & OTHERS_WRITE:
        return fail("rights", f"others may change {path}", f"chmod go-w {path}")
    open_folders = [
        place for place in owned if place.is_dir() and place.stat().st_mode & OTHERS_READ_OR_WRITE
    ]
    if open_folders and path.stat().st_mode & OTHERS_READ_OR_WRITE:
        places = " ".join(map(str, open_folders))
        return warn("rights", f"others may read {open_folders[0]}", f"chmod go-rwx {places}")
    return ok("rights", "the home is readable by its owner alone")


def _holds_password(file: Path) -> bool:
    return bool(PASSWORD.search(file.read_text(encoding="utf-8", errors="replace")))


def check_token(path: Path) -> Finding:
    """Check that the admin's token is there and long enough."""
    try:
        Home(path).read_token()
    except TidegateError as refusal:
        return fail("admin token", str(refusal), refusal.hint)
    return ok("admin token", f"in {path / TOKEN_FILE}")


def check_address(path: Path, server_pid: int | None) -> Finding:
    """Check that run/server.json names a running server; `server_pid` is the holder of the lock."""
    file = path / "run" / "server.json"
    try:
        address = Home(path).server_address()
    except TidegateError as refusal:
        return fail("server address", str(refusal), f"rm {file}, then start the server again.")
    if address is None and server_pid is None:
        return ok("server address", "no server runs in this home")
    if address is None:
        found = f"process {server_pid} has the home and does not answer yet, or stops"
        return warn("server address", found, f"Wait a moment; else look at {path / 'logs' / 'server.log'}.")
    if server_pid is None:
        found = f"{file} names {address.url}, whose server is gone"
        return warn("server address", found, "Start it again with 'tidegate up', which rewrites the file.")
    return ok("server address", f"{address.url}, process {server_pid}")


def check_settings(home: Path, environ: Mapping[str, str]) -> Finding:
    """Check the settings file and the variables, and name every wrong one."""
    wrong = list(setting_problems(home, environ))
    if not wrong:
        file = home / SETTINGS_FILE
        source = file if file.exists() else "defaults"
        return ok("settings", f"{source} and the environment")
    in_file = list(_file_problems(home / SETTINGS_FILE))
    steps = [f"edit {home / SETTINGS_FILE}"] if in_file else []
    steps += ["correct or unset the variable"] if len(wrong) > len(in_file) else []
    fix = f"{', and '.join(steps)}. docs/reference/settings.md lists every setting."
    return fail("settings", "; ".join(wrong), fix[0].upper() + fix[1:])


def setting_problems(home: Path, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for every setting that would stop a start."""
    yield from _file_problems(home / SETTINGS_FILE)
    for variable in sorted(environ):
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in ENVIRONMENT_OTHERS:
            try:
                load_settings(None, {variable: environ[variable]})
            except SettingInvalid as problem:
                yield f"{variable}: {problem.values['reason']}"


def _file_problems(file: Path) -> Iterator[str]:
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as problem:
        yield f"{file} cannot be read: {problem}"
        return
    except tomllib.TOMLDecodeError as problem:
        yield f"{file} is not TOML: {problem}"
        return
    for section, values in tree.items():
        if not isinstance(values, dict):
            yield f"{section} is in no section"
            continue
        for name, value in values.items():
            try:
                # Each as a flag, so that one wrong key does not hide the next.
                load_settings(None, {}, {f"{section}.{name}": value})
            except SettingInvalid as problem:
                yield f"{section}.{name}: {problem.values['reason']}"


def check_upgrade_copies(path: Path) -> Finding:
    """Check the copies that upgrades made of the home before; one that was never finished is of no use."""
    copies = _folders(path / "kept")
    if not copies:
        return ok("kept copies", "none")
    partial = [copy for copy in copies if copy.name.endswith(".partial")]
    if partial:
        return warn("kept copies", f"{partial[0]} was never finished", f"rm -r {partial[0]}")
    size = sum(own_bytes(copy) for copy in copies)
    names = ", ".join(copy.name for copy in copies)
    found = f"{len(copies)} from before upgrades ({names}), {bytes_text(size)} that nothing else shares"
    return ok("kept copies", f"{found}; remove one with rm -r when all is well")


def check_backups(path: Path, *, server_runs: bool) -> Finding:
    """Check that no frozen copy of a backup is left over."""
    left = _folders(path / "run" / "backups")
    if not left:
        return ok("backups", "none in the making")
    if server_runs:
        return ok("backups", f"{len(left)} in the making ({', '.join(copy.name for copy in left)})")
    places = " ".join(map(str, left))
    return warn(
        "backups", f"left behind, unfinished: {', '.join(copy.name for copy in left)}", f"rm -r {places}"
    )


def check_log(file: Path) -> Finding:
    """Check whether the last run logged errors, and show the last of them."""
    name = f"log of the {file.stem}"
    try:
        with file.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES_MAX))
            lines = log.read().decode("utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return ok(name, "nothing was written yet")
    except OSError as problem:
        return warn(name, f"{file} cannot be read: {problem.strerror}", f"chown $USER {file}")
    starts = [number for number, line in enumerate(lines) if LOG_STARTS.search(line)]
    errors = [line for line in lines[starts[-1] if starts else 0 :] if LOG_ERROR.search(line)]
    if not errors:
        return ok(name, "no errors in the last run")
    last = errors[-1] if len(errors[-1]) <= LOG_LINE_CHARS_MAX else errors[-1][: LOG_LINE_CHARS_MAX - 1] + "…"
    return warn(
        name, f"{plural(len(errors), 'error')} in the last run, the last one: {last}", f"less +G {file}"
    )


def own_bytes(folder: Path) -> int:
    """Return the bytes of files without another hard link: what removing the folder frees."""
    total = 0
    for root, _, names in os.walk(folder):
        for entry in names:
            stat = (Path(root) / entry).lstat()
            total += stat.st_size if stat.st_nlink == 1 else 0
    return total


def _folders(place: Path) -> list[Path]:
    return sorted(entry for entry in place.iterdir() if entry.is_dir()) if place.is_dir() else []
