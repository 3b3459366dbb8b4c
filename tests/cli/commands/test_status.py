from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.cli.calls import CALL_SECONDS_MAX, tidegate
from tests.cli.pictures import picture
from tidegate.cli.commands.status import commands_to_try
from tidegate.cli.console.view import render, summary_line
from tidegate.testing.server import RunningServer, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("status") / "home") as running:
        assert tidegate("tenant", "create", "acme", home=running.home).returncode == 0
        for flags in ((), ("--tenant", "acme")):
            name = "acme.own" if flags else "first.own"
            assert tidegate("topic", "create", name, *flags, home=running.home).returncode == 0
        yield running


@pytest.fixture
def home(server: RunningServer) -> Path:
    return server.home


def test_another_tenant_sees_its_own_and_nothing_of_the_machine(home: Path) -> None:
    (home / "pipelines" / "hourly.py").write_text("", encoding="utf-8")
    try:
        drawn = tidegate("status", "--tenant", "acme", home=home)
    finally:
        (home / "pipelines" / "hourly.py").unlink()
    assert drawn.returncode == 0, drawn.stderr
    assert "acme.own" in drawn.stdout
    for word in ("first.own", "process", "hourly", "None"):
        assert word not in drawn.stdout
    seen = json.loads(tidegate("status", "--tenant", "acme", "--json", home=home).stdout)
    assert [seen[part] for part in ("home", "pid", "memoryBytes", "diskFreeBytes", "worker")] == [None] * 5


def test_another_tenant_can_watch(home: Path) -> None:
    words = [sys.executable, "-m", "tidegate", "status", "--watch", "--tenant", "acme", "--home", str(home)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(2)]
        os.kill(child.pid, signal.SIGINT)
        _, said = child.communicate(timeout=CALL_SECONDS_MAX)
    assert (child.returncode, said) == (130, "")
    assert any("tenant acme" in line for line in lines), lines


def test_a_picture_without_the_machine_is_drawn_at_every_size() -> None:
    full = picture()
    assert full.status is not None
    hidden = dict.fromkeys(("home", "pid", "memoryBytes", "diskFreeBytes", "worker"))
    seen = replace(full, status={**full.status, **hidden, "tenant": "acme"})
    for width in (40, 100, 160):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(render(replace(seen, size=(width, 40))))
        assert "acme" in console.export_text()
    assert "tenant acme" in summary_line(seen)


def test_the_commands_to_try_carry_the_tenant(home: Path) -> None:
    for line in commands_to_try(home, {"topics": [], "tables": []}, 200, " --tenant acme"):
        assert line.endswith(" --tenant acme")


def test_a_secret_setting_is_not_shown(tmp_path: Path) -> None:
    url = {"TIDEGATE_CATALOG_URL": "postgresql://u:hidden@h/d"}
    for flags in ((), ("--json",)):
        answer = tidegate("status", "--settings", *flags, home=tmp_path / "none", environ=url)
        assert "catalog.url" in answer.stdout
        assert "hidden" not in answer.stdout
