"""`tidegate backup` and `tidegate restore` as people call them: beside a server, without one, and killed."""

from __future__ import annotations

import json
import os
import secrets
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.calls import tidegate
from tests.upkeep.backup.homes import (
    ACTOR,
    TOKEN,
    make_home,
    make_layout_1,
    opened_catalog,
    opened_topics,
    table_rows,
    write_table,
)
from tests.upkeep.backup.kills import kill_backups, kill_restores
from tidegate.cli.hints import running_holder
from tidegate.errors import HomeLocked
from tidegate.model.access import Role
from tidegate.storage.home.home import Home
from tidegate.testing.server import RunningServer, running_server
from tidegate.upkeep.backup.encryption import make_key
from tidegate.upkeep.backup.restore import read_manifest

KILLS = 5
TOPIC = "app.events"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path / "home") as running:
        write_table(running.home / "lake" / "readings", 30)
        yield running


def _http(server: RunningServer) -> httpx.Client:
    headers = {"Authorization": f"Bearer {server.token}"}
    return httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=30)


def _publish(http: httpx.Client, numbers: range) -> None:
    body = {"messages": [{"payload": number} for number in numbers]}
    http.post(f"/api/v1/topics/{TOPIC}/publish", json=body).raise_for_status()


def _numbers(home: Path) -> list[int]:
    with opened_topics(home / "engine") as topics:
        return topics.numbers()


def _said(answer: subprocess.CompletedProcess[str]) -> Any:
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def _sql(http: httpx.Client, sql: str, params: list[Any] | None = None) -> list[list[Any]]:
    answer = http.post("/api/v1/sql", json={"sql": sql, "params": params or []})
    assert answer.status_code == 200, answer.text
    rows: list[list[Any]] = answer.json().get("rows", [])
    return rows


def test_rows_of_every_kind_of_table_are_in_the_backup_of_a_running_home(tmp_path: Path) -> None:
    # Rows of the stream wait in memory until the backup itself brings them to their files.
    environ = {"TIDEGATE_STREAMS_FLUSH_INTERVAL_SECONDS": "60"}
    file, other = tmp_path / "b.tar", tmp_path / "other"
    kinds = {
        "USER": "(n BIGINT PRIMARY KEY)",
        "SHARED": "(n BIGINT PRIMARY KEY)",
        "STREAM": "(n BIGINT) WITH (ttl_seconds = 86400)",
    }
    with running_server(tmp_path / "home", environ=environ) as server, _http(server) as http:
        _sql(http, "CREATE NAMESPACE app")
        for kind, shape in kinds.items():
            _sql(http, f"CREATE {kind} TABLE app.{kind.lower()}_rows {shape}")
            _sql(http, f"INSERT INTO app.{kind.lower()}_rows (n) VALUES (1), (2), (3)")
        assert not sum(log.stat().st_size for log in (server.home / "streams").rglob("*.log"))
        _said(tidegate("backup", str(file), "--json", home=server.home))
        for kind in kinds:
            _sql(http, f"INSERT INTO app.{kind.lower()}_rows (n) VALUES (4)")
    _said(tidegate("restore", str(file), "--json", home=other))
    with running_server(other) as server, _http(server) as http:
        for kind in kinds:
            table = f"app.{kind.lower()}_rows"
            assert _sql(http, f"SELECT n FROM {table} ORDER BY n") == [[1], [2], [3]], kind
            _sql(http, f"INSERT INTO {table} (n) VALUES (5)")
            assert _sql(http, f"SELECT count(*) FROM {table}") == [[4]], kind


def test_a_running_home_is_backed_up_and_started_elsewhere(server: RunningServer, tmp_path: Path) -> None:
    file, other = tmp_path / "b.tar", tmp_path / "other" / "home"
    with _http(server) as http:
        http.post("/api/v1/topics", json={"name": TOPIC}).raise_for_status()
        _publish(http, range(500))
        said = _said(tidegate("backup", str(file), "--json", home=server.home))
        assert (said["file"], said["bytes"]) == (str(file), file.stat().st_size)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        (job,) = http.get("/api/v1/jobs", params={"kind": "backup"}).json()["jobs"]
        assert (job["state"], job["result"]) == ("done", {"file": str(file), "bytes": said["bytes"]})
        (event,) = http.get("/api/v1/audit", params={"action": "backup.create"}).json()["events"]
        assert (event["user"], event["outcome"]) == ("admin", "done")
    assert list((server.home / "run" / "backups").iterdir()) == []

    restored = _said(tidegate("restore", str(file), "--json", home=other))
    assert restored["files"] == said["files"]
    with running_server(other) as again:
        assert again.token == server.token
        with _http(again) as http:
            rows = http.post("/api/v1/sql", json={"sql": "SELECT count(*) FROM lake.readings"}).json()["rows"]
            assert rows == [[30]]
            _publish(http, range(500, 510))
    assert _numbers(other) == list(range(510))


def test_a_home_without_a_server_is_backed_up_too(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    write_table(home.lake_path / "readings", 30)
    with opened_topics(home.engine_path) as topics:
        topics.publish(70)
    answer = tidegate("backup", str(tmp_path / "b.tar"), home=home.path)
    assert answer.returncode == 0, answer.stderr
    assert "b.tar" in answer.stdout
    answer = tidegate("restore", str(tmp_path / "b.tar"), "--home", str(tmp_path / "new"), home=home.path)
    assert answer.returncode == 0, answer.stderr
    assert _numbers(tmp_path / "new") == list(range(70))
    assert table_rows(tmp_path / "new" / "lake" / "readings") == 30
    home.lock("server", wait_seconds=0).release()


@pytest.mark.parametrize("name", ["why?x=1", "100%41", "a#b &c"])
def test_the_catalog_comes_along_whatever_the_path_of_a_home_is(tmp_path: Path, name: str) -> None:
    home = make_home(tmp_path / "old" / name)
    with opened_catalog(home) as catalog:
        catalog.accounts.add_user(ACTOR, "default", "alice", frozenset({Role.READER}))
        token = catalog.tokens.make(ACTOR, "default", "alice", lifetime_seconds=None).text
    _said(tidegate("backup", str(tmp_path / "b.tar"), "--json", home=home.path))
    _said(tidegate("restore", str(tmp_path / "b.tar"), "--json", home=tmp_path / "new" / name))
    with opened_catalog(Home.existing(tmp_path / "new" / name)) as catalog:
        assert catalog.tokens.find(token).user == "alice"
    assert [path.name for path in (tmp_path / "old").iterdir()] == [name]


SERVER_STARTS = """
import sys
from pathlib import Path
from tidegate.cli.main import run
from tidegate.storage.home.home import Home
from tidegate.storage.home.locks import HomeLock
from tidegate.upkeep.backup.coordinator import remove_stale_backups
free = HomeLock.release
def release(lock):
    free(lock)
    home = Home.existing(Path(sys.argv[-1]))
    lock = home.lock("server", wait_seconds=0)  # a server that starts at this very moment
    remove_stale_backups(home)
    free(lock)
HomeLock.release = release
run()
"""


def test_a_server_that_starts_when_the_home_is_frozen_leaves_the_copy_to_its_packer(tmp_path: Path) -> None:
    home, file = make_home(tmp_path / "home"), tmp_path / "b.tar"
    command = [sys.executable, "-c", SERVER_STARTS, "backup", str(file), "--home", str(home.path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert read_manifest(file).home_id == home.home_id


def test_a_command_beside_a_backup_is_told_that_it_is_one(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    lock = home.lock("server")
    lock.mark_brief("backup")
    try:
        with pytest.raises(HomeLocked, match="A backup runs already") as caught:
            home.lock("server", wait_seconds=0)
        assert "kill" not in caught.value.hint
        assert running_holder(home, "server") is None, "a backup is taken for a server"
    finally:
        lock.release()
    home.lock("server", wait_seconds=0).release()


def test_what_cannot_be_done_is_refused_with_what_to_do(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    file = tmp_path / "b.tar"
    file.write_text("precious")
    answer = tidegate("backup", str(file), home=home.path)
    assert answer.returncode == 1
    assert "--force" in answer.stderr
    assert file.read_text() == "precious"
    answer = tidegate("backup", str(tmp_path / "none" / "b.tar"), home=home.path)
    assert (answer.returncode, "no folder" in answer.stderr) == (1, True)
    answer = tidegate("restore", str(file), "--json", home=tmp_path / "new")
    assert json.loads(answer.stderr)["error"]["code"] == "BACKUP_UNUSABLE"
    answer = tidegate("restore", str(file), "--json", home=home.path)
    assert json.loads(answer.stderr)["error"]["code"] == "HOME_UNUSABLE"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar", "home"]


def test_only_one_backup_is_made_at_a_time_and_only_by_administrators(server: RunningServer) -> None:
    with _http(server) as http:
        started = http.post("/api/v1/backups", json={})
        assert started.status_code == 201
        assert Path(started.json()["path"], "content", "layout.json").exists()
        second = http.post("/api/v1/backups", json={})
        assert (second.status_code, second.json()["error"]["code"]) == (409, "LEASE_HELD")
        assert http.delete("/api/v1/backups/20260101T000000Z").status_code == 404
        gone = http.delete(f"/api/v1/backups/{started.json()['id']}")
        assert gone.json() == {"removed": started.json()["id"]}
        assert not Path(started.json()["path"]).exists()
        assert http.post("/api/v1/backups", json={}).status_code == 201


def test_a_server_that_was_killed_leaves_no_frozen_copy_after_the_next_start(tmp_path: Path) -> None:
    with running_server(tmp_path / "home") as server:
        with _http(server) as http:
            path = Path(http.post("/api/v1/backups", json={}).json()["path"])
        server.kill()
    assert path.exists()
    with running_server(tmp_path / "home"):
        assert not path.exists()


@pytest.mark.crash
@pytest.mark.parametrize("encrypted", [False, True])
def test_a_backup_that_is_killed_leaves_no_file_and_the_next_one_works(
    server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, encrypted: bool
) -> None:
    key = make_key(tmp_path / "key", secrets.token_bytes(32)) if encrypted else None
    seed = secrets.randbelow(10**6)
    with capsys.disabled():
        print(f" backup kills with seed {seed} ", end="", flush=True)
    with _http(server) as http:
        http.post("/api/v1/topics", json={"name": TOPIC}).raise_for_status()
        _publish(http, range(1000))
    (server.home / "lake" / "readings" / "big.parquet").write_bytes(os.urandom(30 << 20))
    kill_backups(server.home, tmp_path / "b.tar", KILLS, seed, tmp_path / "key" if encrypted else None)
    assert read_manifest(tmp_path / "b.tar", key=key).home_id == Home.existing(server.home).home_id


@pytest.mark.crash
@pytest.mark.parametrize("encrypted", [False, True])
def test_a_restore_that_is_killed_leaves_no_home_or_a_whole_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, encrypted: bool
) -> None:
    key = tmp_path / "key" if encrypted else None
    if key is not None:
        make_key(key, secrets.token_bytes(32))
    seed = secrets.randbelow(10**6)
    with capsys.disabled():
        print(f" restore kills with seed {seed} ", end="", flush=True)
    home = make_home(tmp_path / "home")
    with opened_topics(home.engine_path) as topics:
        topics.publish(1000)
    for number in range(200):
        (home.lake_path / f"{number}.parquet").write_bytes(os.urandom(1000))
    key_words = [] if key is None else ["--key", str(key)]
    answer = tidegate("backup", str(tmp_path / "b.tar"), *key_words, home=home.path)
    assert answer.returncode == 0, answer.stderr
    kill_restores(tmp_path / "b.tar", tmp_path / "new", KILLS, seed, key)
    assert _numbers(tmp_path / "new") == list(range(1000))
    assert not list(tmp_path.glob("new.restoring-*"))


def test_a_server_upgrades_an_old_home_and_serves_what_was_in_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    make_layout_1(home, 40)
    command = [sys.executable, "-m", "tidegate", "serve", "--home", str(home), "--port", "0"]
    with (tmp_path / "log").open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        while not (home / "run" / "server.json").exists():
            assert child.poll() is None, (tmp_path / "log").read_text()
            threading.Event().wait(0.05)
        address = Home.existing(home).server_address()
        assert address is not None
        with _http(RunningServer(address.url, TOKEN, home, child)) as http:
            while http.get("/ready").status_code != 200:
                threading.Event().wait(0.05)
            _publish(http, range(40, 45))
            rows = http.post("/api/v1/sql", json={"sql": "SELECT count(*) FROM lake.readings"}).json()["rows"]
            assert rows == [[30]]
    finally:
        child.terminate()
        child.wait()
    assert _numbers(home) == list(range(45))
    (kept,) = (home / "kept").glob("layout-1-*")
    assert _numbers(kept) == list(range(40))
