"""Hints for the command line: what to type next after an error, and the nearest name after a wrong one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tidegate.errors import (
    CatalogUnusable,
    HomeLocked,
    HomeUnusable,
    PipelineNotFound,
    PortInUse,
    ServerNotRunning,
    TenantNotFound,
    TidegateError,
    TopicNotFound,
    UserNotFound,
)
from tidegate.model.names import DEAD_SUFFIX

if TYPE_CHECKING:
    from tidegate.cli.invocation import Invocation
    from tidegate.sdk.client import Client
    from tidegate.storage.home.home import Home
    from tidegate.storage.home.locks import LockKind

EXIT_USAGE = 2
LAYOUT_FILE = "layout.json"


class UsageRefused(typer.TyperException):
    """A usage error that the parser does not see."""

    exit_code = EXIT_USAGE
    ctx: typer.Context | None = None  # for the hint to its --help; set by the command that runs


def advised(error: TidegateError, home_path: Path, *, elsewhere: bool) -> TidegateError:
    """Return the error with a hint that names commands and flags, or as it is."""
    if isinstance(error, HomeLocked):
        return _with_hint(error, _locked_hint(int(error.values.get("pid") or 0)) or error.hint)
    if isinstance(error, ServerNotRunning) and error.hint == ServerNotRunning.default_hint:
        return _with_hint(error, _not_running_hint(home_path, elsewhere=elsewhere))
    if isinstance(error, PortInUse) and "MAKELEVEL" in os.environ and "--demo" in sys.argv:
        # That is 'make run': a recipe takes no flags.
        other = error.values.get("other")
        return _with_hint(
            error, f"Stop what uses it, or take another: TIDEGATE_SERVER_PORT={other} make run."
        )
    if isinstance(error, HomeUnusable) and f"{LAYOUT_FILE} is damaged" in error.message:
        return _with_hint(error, _damaged_hint(home_path))
    if isinstance(error, CatalogUnusable) and "damaged" in error.message:
        return _with_hint(error, _damaged_hint(home_path))
    return error


def running_holder(home: Home, kind: LockKind) -> HomeLocked | None:
    """Return the error that a second server or worker would get in this home; None where none runs.

    The lock is tried only where its file names a living process: a free lock is never taken, not even for a
    moment, since a supervisor may be about to start its child.
    """
    from tidegate.storage.home.locks import lock_path, running_pid

    if running_pid(lock_path(home.path, kind)) is None:
        return None  # none runs, or one that is stopping
    try:
        home.lock(kind, wait_seconds=0).release()
    except HomeLocked as refusal:
        return refusal
    return None


def leave_stdout() -> None:
    """Discard further output to a pipe that nobody reads, also that of the interpreter's exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _with_hint(error: TidegateError, hint: str) -> TidegateError:
    return type(error)(hint=hint, **error.values)


def _damaged_hint(home_path: Path) -> str:
    hint = "Restore the newest backup into an empty home: tidegate restore FILE --home DIR."
    copies = home_path / "kept"
    if copies.is_dir() and any(copies.iterdir()):
        hint += (
            f" Or go back to a copy from before an upgrade, in {copies}: docs/operate/upgrade.md shows how."
        )
    return hint


def _not_running_hint(home_path: Path, *, elsewhere: bool) -> str:
    if elsewhere:
        return (
            "TIDEGATE_URL names this server. Unset it, or give --home DIR, to ask the one of a home folder."
        )
    return (
        f"Asked for the home {home_path}. Start a server there with 'tidegate up', or name another home "
        "(--home DIR or TIDEGATE_HOME) or another server (TIDEGATE_URL and TIDEGATE_TOKEN)."
    )


def _locked_hint(pid: int) -> str:
    """Return the hint to stop the `tidegate up` above a child: a child that is killed is started again."""
    import psutil

    try:
        parent = psutil.Process(pid).parent()
        words = parent.cmdline() if parent is not None else []
    except (psutil.Error, ValueError):
        return ""  # gone meanwhile, or another user's: the default hint is used
    if parent is None or "up" not in words or not any("tidegate" in word for word in words):
        return ""
    return (
        f"Stop the 'tidegate up' that runs it (Ctrl-C in its terminal, or kill {parent.pid}), "
        "or give this one another home: --home DIR."
    )


# For each error: the value with the name, and the list of existing names.
Lister = Callable[["Client"], Iterable[Mapping[str, Any]]]
LISTERS: Mapping[type[TidegateError], tuple[str, Lister]] = {
    TopicNotFound: ("topic", lambda client: client.topics.list()),
    PipelineNotFound: ("pipeline", lambda client: client.pipelines.list()),
    UserNotFound: ("user", lambda client: client.users.list()),
    TenantNotFound: ("tenant", lambda client: client.tenants.list()),
}


def with_near_name(error: TidegateError, call: Invocation) -> TidegateError:
    """Return the error with the nearest name in its hint, or as it is where none is near or visible."""
    kind = type(error)
    if kind not in LISTERS:
        return error
    value, lister = LISTERS[kind]
    name = str(error.values.get(value, ""))
    # The list cannot be read in a tenant that does not exist.
    context = call.without_tenant() if kind is TenantNotFound else call
    try:
        with context.client() as client:
            names = [str(entry["name"]) for entry in lister(client)]
    except TidegateError:
        names = []  # no permission to list them, or no server: the error is returned as it is
    if kind is PipelineNotFound and not call.elsewhere:
        from tidegate.cli.installed_pipelines import pipeline_names

        names += pipeline_names(call.home_path)
    origin = name.removesuffix(DEAD_SUFFIX)
    if kind is TopicNotFound and origin != name and origin in names:
        return kind(hint=f"No message of {origin} has failed for good yet.", **error.values)
    near = get_close_matches(name, names, n=1)
    if not near:
        return error
    return kind(hint=f"Did you mean '{near[0]}'? {error.hint}", **error.values)
