"""`tidegate subscribe` as a user calls it: rows for people and for machines, and how it ends."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.cli.calls import CALL_SECONDS_MAX, tidegate_here
from tests.cli.terminals import terminal
from tidegate import connect
from tidegate.cli.commands.subscribe import ChangePrinter
from tidegate.cli.invocation import Invocation
from tidegate.sdk.live import RowChange
from tidegate.testing.server import RunningServer, running_server

TABLE = "chat.messages"
SELECT = f"SELECT id, text FROM {TABLE}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("subscribe") / "home") as running:
        make = f"CREATE NAMESPACE chat; CREATE SHARED TABLE {TABLE} (id BIGINT PRIMARY KEY, text TEXT)"
        run(running.home, make)
        yield running


@pytest.fixture
def home(server: RunningServer) -> Path:
    run(server.home, f"DELETE FROM {TABLE}; INSERT INTO {TABLE} VALUES (1, 'hello'), (2, NULL)")
    return server.home


def run(home: Path, statements: str) -> None:
    with connect(home=home) as client:
        client.sql(statements)


@contextmanager
def subscribed(home: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("TIDEGATE_")}
    child = subprocess.Popen(
        [sys.executable, "-m", "tidegate", "subscribe", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**clean, "TIDEGATE_HOME": str(home)},
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def lines(child: subprocess.Popen[str], count: int) -> list[Any]:
    assert child.stdout is not None
    return [json.loads(child.stdout.readline()) for _ in range(count)]


def test_machines_get_one_change_a_line_and_may_go_on_later(home: Path) -> None:
    with subscribed(home, SELECT, "--json") as child:
        first = lines(child, 2)
        run(home, f"UPDATE {TABLE} SET text = 'hi' WHERE id = 1; DELETE FROM {TABLE} WHERE id = 2")
        changes = lines(child, 2)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=CALL_SECONDS_MAX)
        assert (child.returncode, errors) == (0, "")
    assert [line["row"] for line in first] == [{"id": 1, "text": "hello"}, {"id": 2, "text": None}]
    assert ["seq" in line for line in first] == [False, True]
    assert [line["kind"] for line in changes] == ["update", "delete"]
    assert changes[0]["old"] == {"id": 1, "text": "hello"}
    with subscribed(home, SELECT, "--json", "--from-seq", str(changes[0]["seq"])) as child:
        assert lines(child, 1) == changes[1:]


def test_people_see_marks_and_what_was_before(home: Path) -> None:
    with terminal("subscribe", f"{SELECT} WHERE id < ?", "-p", "100", home=home) as screen:
        screen.wait_for("NULL")
        run(
            home,
            f"INSERT INTO {TABLE} VALUES (3, 'new'), (300, 'far'); UPDATE {TABLE} SET text='hi' WHERE id=1",
        )
        shown = screen.wait_for("→ hi")
        run(home, f"DELETE FROM {TABLE} WHERE id = 3")
        shown += screen.wait_for("\n-")
        screen.child.send_signal(signal.SIGINT)
        code, _ = screen.wait_for_end()
    assert code == 0
    assert "+       3  new" in shown
    assert "~       1  hello → hi" in shown
    assert "far" not in shown


def drawn(*changes: RowChange, width: int = 50, snapshot: bool = True) -> list[str]:
    out = io.StringIO()
    columns = [
        {"name": "id", "type": "BIGINT"},
        {"name": "text", "type": "TEXT"},
        {"name": "n", "type": "INT"},
    ]
    call = Invocation(None, as_json=False)
    printer = ChangePrinter(call, snapshot=snapshot, out=Console(file=out, width=width))
    for change in changes:
        printer.show(change, columns)
    return out.getvalue().splitlines()


def row(text: str) -> dict[str, Any]:
    return {"id": 1, "text": text, "n": 5}


def test_a_long_value_is_cut_and_widens_no_line_but_its_own() -> None:
    found = drawn(
        RowChange("insert", row("short")),
        RowChange("insert", row("x" * 100)),
        RowChange("update", row("y" * 100), row("z" * 100)),
        RowChange("insert", row("short")),
    )
    assert found[1] == found[4] == "+       1  short              5"
    assert found[2] == f"+       1  {'x' * 30}…       5"
    assert found[3] == f"~       1  {'z' * 13}… → {'y' * 13}…       5"
    assert all(len(line) <= 50 for line in found)
    assert "x" * 100 in drawn(RowChange("insert", row("x" * 100)), width=10_000)[1]


@pytest.mark.parametrize("snapshot", [True, False])
def test_missed_changes_are_said_and_no_rows_are_promised_where_none_come(
    snapshot: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn(RowChange("lagged"), snapshot=snapshot)
    said = capsys.readouterr().err
    assert "The table changed or changes were missed" in said
    assert ("what it holds now" in said) is snapshot


def test_rows_that_are_there_can_be_left_out(home: Path) -> None:
    with terminal("subscribe", SELECT, "--no-snapshot", home=home) as screen:
        screen.wait_for("Waiting for changes")
        run(home, f"INSERT INTO {TABLE} VALUES (7, 'seven')")
        assert "hello" not in screen.wait_for("seven")


def test_a_reader_that_leaves_ends_it_quietly(home: Path) -> None:
    with subscribed(home, SELECT, "--json") as child:
        lines(child, 2)
        assert child.stdout is not None
        child.stdout.close()
        run(home, f"INSERT INTO {TABLE} VALUES (8, 'eight')")
        assert child.wait(CALL_SECONDS_MAX) == 0
        assert child.stderr is not None
        assert child.stderr.read() == ""


def test_what_cannot_be_followed_is_refused(home: Path) -> None:
    for statement, code in (
        ("SELECT * FROM chat.nowhere", "TABLE_NOT_FOUND"),
        ("SELEC * FROM chat.messages", "SQL_INVALID"),
        (f"SELECT count(*) FROM {TABLE}", "SQL_UNSUPPORTED"),
    ):
        answer = tidegate_here("subscribe", statement, "--json", home=home)
        assert (answer.returncode, answer.stdout) == (1, "")
        assert json.loads(answer.stderr)["error"]["code"] == code
