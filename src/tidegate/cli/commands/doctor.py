"""`tidegate doctor`: what is wrong on this machine and in this home, and the command that fixes it."""

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
    """Check this machine and this home, and say what is wrong and what fixes it; changes nothing."""
    findings = list(examine(call.home_path, os.environ, elsewhere=call.elsewhere))
    wrong = [finding for finding in findings if finding.state == "fail"]
    wire = {"checks": [finding.to_wire() for finding in findings], "ok": not wrong}
    call.answer(wire, lambda: findings_page(findings))
    if wrong:
        raise typer.Exit(EXIT_WRONG)


def examine(home: Path, environ: Mapping[str, str], *, elsewhere: bool = False) -> Iterator[Finding]:
    """Yield every finding, the machine first, then the home, then what runs."""
    settings = _usable_settings(home, environ)
    for name, check in [
        *_machine_checks(home, environ, settings),
        *_home_checks(home, environ, settings, elsewhere),
    ]:
        yield from _run_check(name, check)


Check = tuple[str, "Callable[[], Finding | None]"]


def _machine_checks(home: Path, environ: Mapping[str, str], settings: Settings) -> Iterator[Check]:
    import importlib.util
    import resource

    from tidegate.cli.checks import machine, programs
    from tidegate.pipeline.java import SYSTEM_JAVAS
    from tidegate.storage.files import disk_free_bytes

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
        lambda: machine.check_disk_room(disk_free_bytes(there), settings.storage.free_bytes_min, there),
    )
    yield "file system", lambda: machine.check_file_system(there, machine.read_mounts(MOUNTS_FILE))
    yield "clock sync", machine.check_clock_sync


def _home_checks(
    home: Path, environ: Mapping[str, str], settings: Settings, elsewhere: bool
) -> Iterator[Check]:
    from datetime import UTC, datetime

    from tidegate.cli.checks import home as home_checks
    from tidegate.cli.checks import machine, network, stores

    own_catalog = not settings.catalog.url
    lost, catalog = functools.partial(home_checks.lost_parts, home), home / "catalog" / "catalog.db"
    yield "home", lambda: home_checks.check_home(home, own_catalog=own_catalog)
    yield "settings", lambda: home_checks.check_settings(home, environ)
    server = _server_of(home)
    if machine.is_seen(home / "layout.json"):
        yield from _inner_checks(home, server)
    yield "catalog", lambda: stores.check_catalog(settings.catalog, catalog, lost="catalog" in lost())
    yield "tls", lambda: network.check_tls(settings.server, datetime.now(UTC))
    # A server with another port on its command line leaves this one free.
    yield "port", lambda: network.check_port(settings.server.host, settings.server.port, server.pid)
    if server.url or elsewhere:
        yield "server", lambda: _check_server(server, environ if elsewhere else {})
        yield from _worker_checks(home, elsewhere)


def _worker_checks(home: Path, elsewhere: bool) -> Iterator[Check]:
    import tidegate
    from tidegate.cli.checks import worker
    from tidegate.cli.installed_pipelines import installed_names
    from tidegate.errors import TidegateError

    try:
        with tidegate.connect(home=None if elsewhere else home, retry_seconds=0) as client:
            status = client.status()
    except TidegateError:
        return  # that is a finding of the check of the server; or there is no token
    installed = [] if elsewhere else installed_names(home)
    yield "worker", lambda: worker.check_worker(status, installed)
    yield "pipelines", lambda: worker.check_pipelines(status)


def _inner_checks(home: Path, server: HomeServer) -> Iterator[Check]:
    import time

    from tidegate.cli.checks import home as home_checks
    from tidegate.cli.checks import machine, stores

    running = server.pid is not None
    lost, engine = functools.partial(home_checks.lost_parts, home), home / "engine"
    yield "rights", lambda: home_checks.check_rights(home, os.getuid())
    yield "admin token", lambda: home_checks.check_token(home)
    yield "hard links", lambda: machine.check_hard_links(home / "run")
    yield "clock", lambda: machine.check_clock(time.time(), *machine.newest_time(_dated_files(home)))
    yield "server address", lambda: home_checks.check_address(home, server.pid)
    yield "engine", lambda: stores.check_engine(engine, server_runs=running, lost="engine" in lost())
    yield "lake", lambda: stores.check_lake([home / "lake", *sorted((home / "tenants").glob("*/lake"))])
    tenant_streams = sorted((home / "tenants").glob("*/streams"))
    yield "streams", lambda: stores.check_streams([home / "streams", *tenant_streams])
    yield "kept copies", lambda: home_checks.check_upgrade_copies(home)
    yield "backups", lambda: home_checks.check_backups(home, server_runs=running)
    for name in ("server", "worker"):
        yield f"log of the {name}", functools.partial(home_checks.check_log, home / "logs" / f"{name}.log")


@dataclass(frozen=True, slots=True)
class HomeServer:
    """The server that runs in the home: the holder of its lock, and the address that it wrote."""

    pid: int | None = None
    url: str = ""
    ca_file: str | None = None


def _server_of(home: Path) -> HomeServer:
    from tidegate.cli.checks.machine import is_seen
    from tidegate.cli.hints import running_holder
    from tidegate.errors import TidegateError
    from tidegate.storage.home.home import Home

    if not is_seen(home / "locks"):
        return HomeServer()
    try:
        holder = running_holder(Home(home), "server")
        pid = int(holder.values["pid"]) if holder is not None else None
        address = Home(home).server_address() if pid is not None else None
    except (TidegateError, OSError):
        return HomeServer()  # a finding of the checks of the home
    return HomeServer(pid, address.url, address.ca_file) if address is not None else HomeServer(pid)


def _check_server(server: HomeServer, environ: Mapping[str, str]) -> Finding:
    from tidegate.cli.checks.network import check_server
    from tidegate.storage.home.address import ServerEndpoint

    url = environ.get("TIDEGATE_URL") or server.url
    ca_file = environ.get("TIDEGATE_CA_FILE") if environ else server.ca_file
    return check_server(ServerEndpoint(url, "", ca_file or None))


def _usable_settings(home: Path, environ: Mapping[str, str]) -> Settings:
    from tidegate.errors import SettingInvalid
    from tidegate.settings import Settings, load_settings

    try:
        return load_settings(home, environ)
    except SettingInvalid:
        return Settings()  # each wrong one is a finding of another check


def _run_check(name: str, check: Callable[[], Finding | None]) -> Iterator[Finding]:
    """Run one check; one that the machine does not allow is a finding too."""
    from tidegate.cli.checks.finding import fail
    from tidegate.errors import TidegateError

    try:
        found = check()
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


def _dated_files(home: Path) -> list[Path]:
    """Return the files that change all the time: the engine, the catalog, logs, commits of the lake."""
    newest_commits = [max(log.glob("*.json"), default=None) for log in home.glob("lake/*/_delta_log")]
    return [
        *home.glob("engine/*"),
        *home.glob("catalog/*"),
        *home.glob("logs/*.log"),
        *(commit for commit in newest_commits if commit is not None),
    ]


def findings_page(findings: Sequence[Finding]) -> RenderableType:
    """Return findings for people: a line each, what fixes it below, and a last line that counts."""
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
        last = Text(f"{plural(failed, 'thing')} to fix, {plural(warned, 'warning')}.", style="bold red")
    elif warned:
        last = Text(f"Nothing is broken; {plural(warned, 'warning')}.", style="yellow")
    else:
        last = Text("All is well.", style="green")
    return Group(lines, Text(""), last)
