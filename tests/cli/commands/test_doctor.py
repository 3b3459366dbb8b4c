"""`tidegate doctor` as a whole: with nothing, with a home, with a server, and with one thing broken."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.calls import tidegate
from tests.streams.factories import make_store, make_table
from tidegate.model.clock import SystemClock
from tidegate.testing.server import RunningServer, running_server

Findings = dict[str, dict[str, str]]


def examined(home: Path, **environ: str) -> Findings:
    """Run the command and give its findings by name."""
    answer = tidegate("doctor", "--json", home=home, environ={"TIDEGATE_SERVER_PORT": "0", **environ})
    wire: dict[str, Any] = json.loads(answer.stdout)
    assert set(wire) == {"checks", "ok"}
    for check in wire["checks"]:
        assert set(check) == {"name", "state", "found", "fix"}
        assert check["state"] in ("ok", "warn", "fail")
        assert bool(check["fix"]) == (check["state"] != "ok"), check
    failed = [check["name"] for check in wire["checks"] if check["state"] == "fail"]
    assert wire["ok"] is (not failed)
    assert answer.returncode == (1 if failed else 0)
    return {check["name"]: check for check in wire["checks"]}


def failures(found: Findings) -> set[str]:
    return {name for name, check in found.items() if check["state"] == "fail"}


@pytest.fixture(scope="module")
def already(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Name what is wrong with this machine, whatever the home: a test breaks one thing more."""
    return failures(examined(tmp_path_factory.mktemp("machine") / "none"))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home that a server has used and left."""
    home = tmp_path_factory.mktemp("doctor") / "home"
    with running_server(home):
        assert tidegate("topic", "create", "app.events", home=home).returncode == 0
        assert tidegate("topic", "publish", "app.events", "1", "2", home=home).returncode == 0
    return home


@pytest.fixture
def home(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "home"))


def test_without_a_home_the_machine_is_looked_at_and_nothing_is_made(tmp_path: Path) -> None:
    found = examined(tmp_path / "none")
    assert found["home"]["state"] == "warn"
    assert {"python", "packages", "java", "spark", "jars", "memory", "port", "settings"} <= set(found)
    assert not (tmp_path / "none").exists()


def test_a_home_that_was_left_in_order_is_in_order(home: Path, already: set[str]) -> None:
    found = examined(home)
    assert failures(found) == already
    for name in ("home", "rights", "engine", "catalog", "lake", "server address", "settings"):
        assert found[name]["state"] == "ok", found[name]
    assert "server" not in found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("doctor") / "home") as running:
        yield running


def test_a_server_that_runs_is_asked_and_goes_on(server: RunningServer, already: set[str]) -> None:
    found = examined(server.home)
    assert failures(found) == already
    assert found["server"]["state"] == "ok"
    assert str(server.child.pid) in found["server address"]["found"]
    assert tidegate("topic", "list", home=server.home).returncode == 0


def test_a_port_that_the_server_of_this_home_has_is_fine(server: RunningServer) -> None:
    port = server.url.rpartition(":")[2]
    assert examined(server.home, TIDEGATE_SERVER_PORT=port)["port"]["state"] == "ok"


def test_a_named_server_elsewhere_is_asked(server: RunningServer, tmp_path: Path) -> None:
    found = examined(tmp_path / "none", TIDEGATE_URL=server.url)
    assert (found["server"]["state"], server.url in found["server"]["found"]) == ("ok", True)
    found = examined(tmp_path / "none", TIDEGATE_URL="http://127.0.0.1:1")
    assert found["server"]["state"] == "fail"


def test_a_killed_server_leaves_a_warning_and_no_failure(tmp_path: Path, already: set[str]) -> None:
    home = tmp_path / "home"
    with running_server(home) as running:
        assert tidegate("topic", "create", "app.events", home=home).returncode == 0
        running.kill()
    found = examined(home)
    assert failures(found) == already
    assert found["server address"]["state"] == "warn"
    assert found["engine"]["state"] == "ok"


@pytest.mark.parametrize("name", ["admin.token", "catalog/catalog.db"])
def test_a_secret_that_others_can_read_fails(name: str, home: Path, already: set[str]) -> None:
    (home / name).chmod(0o644)
    found = examined(home)
    assert failures(found) == {*already, "rights"}
    assert found["rights"]["fix"] == f"chmod 600 {home / name}"


def test_wrong_settings_are_all_named_and_the_rest_is_looked_at_still(home: Path, already: set[str]) -> None:
    (home / "tidegate.toml").write_text("[server]\nprot = 1\n[query]\nthreads = 0\n", encoding="utf-8")
    found = examined(home)
    assert failures(found) == {*already, "settings"}
    assert "server.prot" in found["settings"]["found"]
    assert "query.threads" in found["settings"]["found"]
    assert found["engine"]["state"] == "ok"


def test_a_damaged_engine_and_a_damaged_catalog_are_both_told(home: Path, already: set[str]) -> None:
    (home / "catalog" / "catalog.db").write_bytes(b"x" * 20_000)
    (home / "catalog" / "catalog.db").chmod(0o600)
    (home / "engine" / "CURRENT").write_text("MANIFEST-999999\n", encoding="ascii")
    found = examined(home)
    assert failures(found) == {*already, "catalog", "engine"}
    assert "MANIFEST-999999" in found["engine"]["found"]


def test_a_damaged_stream_of_any_tenant_is_told_with_file_and_byte(home: Path, already: set[str]) -> None:
    store = make_store(home, SystemClock())
    table = make_table(tenant="acme")
    store.append(table, "ann", [(1, "one")])
    store.append(table, "ann", [(2, "two")])
    store.close()
    assert examined(home)["streams"]["state"] == "ok"
    (log,) = (home / "tenants" / "acme" / "streams").rglob("ann.log")
    content = bytearray(log.read_bytes())
    content[len(content) // 2 - 1] ^= 0xFF  # the last byte of the first frame
    log.write_bytes(content)
    found = examined(home)
    assert failures(found) == {*already, "streams"}
    assert str(log) in found["streams"]["found"]
    assert "at byte 0" in found["streams"]["found"]


def test_a_port_of_another_program_is_told(home: Path, already: set[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        found = examined(home, TIDEGATE_SERVER_PORT=str(taken.getsockname()[1]))
    assert failures(found) == already
    assert found["port"]["state"] == "warn"
    assert f"process {os.getpid()}" in found["port"]["found"]


def test_a_home_that_lost_a_part_is_told_to_restore_and_nothing_else(home: Path, already: set[str]) -> None:
    shutil.rmtree(home / "engine")
    (home / "catalog" / "catalog.db").unlink()
    found = examined(home)
    assert failures(found) == {*already, "home", "engine", "catalog"}
    for name in ("home", "engine", "catalog"):
        assert found[name]["fix"].startswith("Restore the newest backup"), found[name]
        assert "mkdir" not in found[name]["fix"]


def test_a_settings_file_with_a_password_is_for_its_owner_alone(home: Path, already: set[str]) -> None:
    file = home / "tidegate.toml"
    file.write_text('[catalog]\nurl = "postgresql://tide:secret@127.0.0.1:1/tide"\n', encoding="utf-8")
    file.chmod(0o644)
    found = examined(home)
    assert failures(found) == {*already, "rights", "catalog"}
    assert found["rights"]["fix"] == f"chmod 600 {file}"
    file.chmod(0o600)
    assert failures(examined(home)) == {*already, "catalog"}
    file.write_text("[server]\nport = 8787\n", encoding="utf-8")
    file.chmod(0o644)
    assert examined(home)["rights"]["state"] == "ok"


def test_a_wrong_variable_is_not_looked_for_in_a_file(home: Path) -> None:
    fix = examined(home, TIDEGATE_QUERY_THREADS="0")["settings"]["fix"]
    assert "variable" in fix
    assert "tidegate.toml" not in fix


def test_a_pipeline_without_a_worker_and_one_that_failed_are_told(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running_server(home) as running:
        (home / "pipelines" / "idle.py.stopped").write_text("", encoding="utf-8")
        found_all = examined(home)  # a stopped one waits for no worker
        assert found_all["worker"]["state"] == "ok"
        assert found_all["pipelines"]["found"] == "idle is stopped"
        (home / "pipelines" / "readings.py").write_text("", encoding="utf-8")
        found = examined(home)["worker"]
        assert (found["state"] == "ok", "readings" in found["found"]) == (False, True)
        assert "idle" not in found["found"]
        line = {"name": "readings", "state": "failed", "error": "no such column: wind\n\nTraceback"}
        answer = httpx.post(
            f"{running.url}/api/v1/worker/report",
            json={"pid": 1, "state": "running", "pipelines": [line]},
            headers={"Authorization": f"Bearer {running.token}"},
        )
        assert answer.is_success, answer.text
        found_all = examined(home)
        assert found_all["pipelines"]["state"] == "fail"
        assert found_all["pipelines"]["found"] == "readings failed: no such column: wind"
        assert "tidegate pipeline show readings" in found_all["pipelines"]["fix"]


def test_without_java_the_rest_is_looked_at(home: Path, tmp_path: Path) -> None:
    found = examined(home, JAVA_HOME=str(tmp_path / "no-java"), PATH="")
    if found["java"]["state"] == "fail":  # a machine may have others beside the one that is named
        assert "openjdk" in found["java"]["fix"]
    assert found["engine"]["state"] == "ok"


def test_people_get_marks_and_what_mends_it(home: Path, already: set[str]) -> None:
    (home / "admin.token").chmod(0o644)
    answer = tidegate("doctor", home=home, environ={"TIDEGATE_SERVER_PORT": "0"})
    assert answer.returncode == 1
    assert "✓" in answer.stdout
    assert f"→ chmod 600 {home / 'admin.token'}" in answer.stdout
    assert f"{len(already) + 1} thing" in answer.stdout


def test_a_home_that_the_disk_does_not_let_us_look_at_is_told(tmp_path: Path, already: set[str]) -> None:
    found = examined(tmp_path / ("x" * 300))  # longer than a name can be
    assert failures(found) - already >= {"home"}
    assert "File name too long" in found["home"]["found"]
    assert found["python"]["state"] == "ok"
