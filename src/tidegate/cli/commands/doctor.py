"""`tidegate doctor`: what is wrong on this machine and in this home, and the command that mends it."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tidegate.cli.invocation import Invocation, command
from tidegate.cli.output.format import plural

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tidegate.cli.checks.finding import Finding
    from tidegate.settings import Settings

EXIT_WRONG = 1
MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "bold red")}
MOUNTS_FILE = Path("/proc/self/mountinfo")


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(app, "doctor")(doctor)


def doctor(call: Invocation) -> None:
    """Look at this machine and this home, and say what is wrong and what mends it; changes nothing."""
    findings = list(examine(call.home_path, os.environ, elsewhere=call.elsewhere))
    wrong = [finding for finding in findings if finding.state == "fail"]
    wire = {"checks": [finding.to_wire() for finding in findings], "ok": not wrong}
    call.answer(wire, lambda: findings_page(findings))
    if wrong:
        raise typer.Exit(EXIT_WRONG)


def examine(home: Path, environ: Mapping[str, str], *, elsewhere: bool = False) -> Iterator[Finding]:
    """Yield every finding, the machine first, then the home, then what runs."""
    settings = _usable_settings(home, environ)
    for name, look in [
        *_machine_checks(home, environ, settings),
        *_home_checks(home, environ, settings, elsewhere),
    ]:
        yield from _looked(name, look)


Look = tuple[str, "Callable[[], Finding | None]"]


def _machine_checks(home: Path, environ: Mapping[str, str], settings: Settings) -> Iterator[Look]:
    import importlib.util
    import resource

    from tidegate.cli.checks import machine, programs
    from tidegate.pipeline.java import SYSTEM_JAVAS

    package = importlib.util.find_spec("pyspark")
    jars = Path(package.origin).parent / "jars" if package is not None and package.origin else None
    pyproject = Path(__file__).resolve().parents[4] / "pyproject.toml"
    version = (sys.version_info.major, sys.version_info.minor, sys.version_info.micro)
    there = machine.existing_parent(home)

    yield "python", lambda: programs.check_python(version, sys.executable)
    yield (
        "packages",
        lambda: programs.check_packages(
            programs.requirements_of_package(pyproject), programs.installed_version
        ),
    )
    yield "java", lambda: programs.check_java(environ, SYSTEM_JAVAS)
    yield "spark", lambda: programs.check_spark(programs.installed_version("pyspark"), jars, environ)
    yield "jars", lambda: programs.check_jars(environ)
    yield "python of spark", lambda: programs.check_python_of_spark(environ, sys.executable)
    yield "memory", lambda: machine.check_memory(machine.memory_limit_bytes(), settings)
    yield "open files", lambda: machine.check_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield (
        "disk room",
        lambda: machine.check_disk_room(_free_bytes(there), settings.storage.free_bytes_min, there),
    )
    yield "file system", lambda: machine.check_file_system(there, machine.read_mounts(MOUNTS_FILE))
    yield "clock sync", machine.check_clock_sync


def _home_checks(
    home: Path, environ: Mapping[str, str], settings: Settings, elsewhere: bool
) -> Iterator[Look]:
    from datetime import UTC, datetime

    from tidegate.cli.checks import home as place
    from tidegate.cli.checks import machine, network, stores

    own_catalog = not settings.catalog.url
    lost, catalog = functools.partial(place.lost_parts, home), home / "catalog" / "catalog.db"
    yield "home", lambda: place.check_home(home, own_catalog=own_catalog)
    yield "settings", lambda: place.check_settings(home, environ)
    runs = _running(home)
    if machine.is_seen(home / "layout.json"):
        yield from _inner_checks(home, runs)
    yield "catalog", lambda: stores.check_catalog(settings.catalog, catalog, lost="catalog" in lost())
    yield "tls", lambda: network.check_tls(settings.server, datetime.now(UTC))
    # A server that was given another port on its command line leaves this one free.
    yield "port", lambda: network.check_port(settings.server.host, settings.server.port, runs.server_pid)
    if runs.url or elsewhere:
        yield "server", lambda: _asked_server(runs, environ if elsewhere else {})
        yield from _work_checks(home, elsewhere)


def _work_checks(home: Path, elsewhere: bool) -> Iterator[Look]:
    import tidegate
    from tidegate.cli.checks import worker
    from tidegate.cli.installed_pipelines import installed_names
    from tidegate.errors import TidegateError

    try:
        with tidegate.connect(home=None if elsewhere else home, retry_seconds=0) as client:
            status = client.status()
    except TidegateError:
        return  # what does not answer is told by the check of the server; a token may not be ours to have
    installed = [] if elsewhere else installed_names(home)
    yield "worker", lambda: worker.check_worker(status, installed)
    yield "pipelines", lambda: worker.check_pipelines(status)


def _inner_checks(home: Path, runs: Running) -> Iterator[Look]:
    import time

    from tidegate.cli.checks import home as place
    from tidegate.cli.checks import machine, stores
    from tidegate.cli.checks import stores as streams

    running = runs.server_pid is not None
    lost, engine = functools.partial(place.lost_parts, home), home / "engine"
    yield "rights", lambda: place.check_rights(home, os.getuid())
    yield "admin token", lambda: place.check_token(home)
    yield "hard links", lambda: machine.check_hard_links(home / "run")
    yield "clock", lambda: machine.check_clock(time.time(), *machine.newest_time(_dated_files(home)))
    yield "server address", lambda: place.check_address(home, runs.server_pid)
    yield "engine", lambda: stores.check_engine(engine, server_runs=running, lost="engine" in lost())
    yield "lake", lambda: stores.check_lake([home / "lake", *sorted((home / "tenants").glob("*/lake"))])
    tenant_streams = sorted((home / "tenants").glob("*/streams"))
    yield "streams", lambda: streams.check_streams([home / "streams", *tenant_streams])
    yield "kept copies", lambda: place.check_kept(home)
    yield "backups", lambda: place.check_backups(home, server_runs=running)
    for name in ("server", "worker"):
        yield f"log of the {name}", functools.partial(place.check_log, home / "logs" / f"{name}.log")


@dataclass(frozen=True, slots=True)
class Running:
    """What runs in the home: the holder of the server's lock, and the address that it wrote."""

    server_pid: int | None = None
    url: str = ""
    ca_file: str | None = None


def _running(home: Path) -> Running:
    from tidegate.cli.checks.machine import is_seen
    from tidegate.cli.hints import running_holder
    from tidegate.errors import TidegateError
    from tidegate.storage.home.home import Home

    if not is_seen(home / "locks"):
        return Running()
    try:
        holder = running_holder(Home(home), "server")
        pid = int(holder.values["pid"]) if holder is not None else None
        address = Home(home).server_address() if pid is not None else None
    except (TidegateError, OSError):
        return Running()  # said by the checks of the home
    return Running(pid, address.url, address.ca_file) if address is not None else Running(pid)


def _asked_server(runs: Running, environ: Mapping[str, str]) -> Finding:
    from tidegate.cli.checks.network import check_server
    from tidegate.storage.home.address import Found

    url = environ.get("TIDEGATE_URL") or runs.url
    ca_file = environ.get("TIDEGATE_CA_FILE") if environ else runs.ca_file
    return check_server(Found(url, "", ca_file or None))


def _usable_settings(home: Path, environ: Mapping[str, str]) -> Settings:
    from tidegate.errors import SettingInvalid
    from tidegate.settings import Settings, load_settings

    try:
        return load_settings(home, environ)
    except SettingInvalid:
        return Settings()  # each wrong one is named by a check of its own


def _looked(name: str, look: Callable[[], Finding | None]) -> Iterator[Finding]:
    """Do one check; one that the machine does not let us do is a finding too."""
    from tidegate.cli.checks.finding import fail
    from tidegate.errors import TidegateError

    try:
        found = look()
    except TidegateError as problem:
        found = fail(name, str(problem), problem.hint)
    except OSError as problem:
        place = problem.filename or "it"
        found = fail(
            name,
            f"{place} cannot be looked at: {problem.strerror or problem}",
            "Run this as the owner of the home, or look at the rights: ls -ld.",
        )
    if found is not None:
        yield found


def _free_bytes(place: Path) -> int:
    disk = os.statvfs(place)
    return disk.f_bavail * disk.f_frsize


def _dated_files(home: Path) -> list[Path]:
    """List what is written as time goes on: logs of the engine, the catalog, commits of the lake."""
    newest_commits = [max(log.glob("*.json"), default=None) for log in home.glob("lake/*/_delta_log")]
    return [
        *home.glob("engine/*"),
        *home.glob("catalog/*"),
        *home.glob("logs/*.log"),
        *(commit for commit in newest_commits if commit is not None),
    ]


def findings_page(findings: Sequence[Finding]) -> RenderableType:
    """Draw findings for people: a line each, what mends it below, and a last line that counts."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    lines = Table.grid(padding=(0, 2, 0, 0))
    for _ in ("mark", "name", "found"):
        lines.add_column(overflow="fold")
    for finding in findings:
        mark, style = MARKS[finding.state]
        lines.add_row(Text(mark, style), Text(finding.name, "bold"), Text(finding.found))
        if finding.fix:
            lines.add_row("", "", Text(f"→ {finding.fix}", style))
    failed = sum(finding.state == "fail" for finding in findings)
    warned = sum(finding.state == "warn" for finding in findings)
    if failed:
        last = Text(f"{plural(failed, 'thing')} to mend, {plural(warned, 'warning')}.", style="bold red")
    elif warned:
        last = Text(f"Nothing is broken; {plural(warned, 'warning')}.", style="yellow")
    else:
        last = Text("All is well.", style="green")
    return Group(lines, Text(""), last)
