"""STREAM tables over real HTTP: layout, time to live, LAST, deletes, durability, damage and drop."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.sql_client import Client
from tidegate.testing.server import RunningServer, running_server

WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    quick = {
        "TIDEGATE_STREAMS_EVICTION_INTERVAL_SECONDS": "0.2",
        "TIDEGATE_STREAMS_FLUSH_INTERVAL_SECONDS": "0.1",
    }
    with running_server(tmp_path_factory.mktemp("streams") / "home", environ=quick) as running:
        yield running


@pytest.fixture(scope="module")
def admin(server: RunningServer) -> Client:
    client = Client(server)
    client.run("CREATE NAMESPACE chat")
    return client


def logs_of(server: RunningServer, table: str) -> list[Path]:
    return sorted((server.home / "streams" / "chat" / table).rglob("*.log"))


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def test_rows_lie_in_windows_shards_and_files_of_users(server: RunningServer, admin: Client) -> None:
    """Case 1, and 4: what was answered reaches the file by itself."""
    admin.run("CREATE STREAM TABLE chat.laid (t TEXT) WITH (ttl_seconds = 3600)")
    for user in ("alice", "Bob.x@y"):
        admin.run(f"EXECUTE AS '{user}' (INSERT INTO chat.laid VALUES ('hi'))")
    wait_until(
        lambda: len(logs_of(server, "laid")) == 2 and all(p.stat().st_size for p in logs_of(server, "laid"))
    )
    for path in logs_of(server, "laid"):
        window, shard, name = path.relative_to(server.home / "streams" / "chat" / "laid").parts
        assert re.fullmatch(r"w\d+-3600000", window)
        assert re.fullmatch(r"shard-([0-9]|[12][0-9]|3[01])", shard)
        assert name in ("alice.log", "Bob.x@y.log")


def test_the_last_rows_come_newest_first(admin: Client) -> None:
    """Case 5."""
    admin.run("CREATE STREAM TABLE chat.lasts (n INT, room TEXT) WITH (ttl_seconds = 3600)")
    for n in range(20):
        admin.run("INSERT INTO chat.lasts VALUES (?, ?)", [n, "even" if n % 2 == 0 else "odd"])
    assert admin.rows("SELECT n FROM chat.lasts LAST 3") == [[19], [18], [17]]
    assert admin.rows("SELECT n FROM chat.lasts WHERE room = 'even' LAST 2") == [[18], [16]]
    assert admin.rows("SELECT n FROM chat.lasts LAST ?", [1]) == [[19]]
    assert admin.rows("SELECT max(n) FROM (SELECT n FROM chat.lasts LAST 5) x WHERE n < 17") == [[16]]
    rows = admin.rows("SELECT * FROM chat.lasts ORDER BY _time, _seq")
    assert [row[0] for row in rows] == list(range(20))
    assert [row[2] for row in rows] == sorted({row[2] for row in rows})
    middle = rows[10][3]
    assert admin.rows("SELECT count(*) FROM chat.lasts WHERE _time >= ?", [middle]) == [[10]]
    assert admin.refused("SELECT * FROM chat.lasts LAST 0")["code"] == "SQL_INVALID"
    admin.run("CREATE SHARED TABLE chat.plain (id INT PRIMARY KEY)")
    assert admin.refused("SELECT * FROM chat.plain LAST 3")["code"] == "SQL_UNSUPPORTED"


def test_rows_belong_to_their_user(server: RunningServer, admin: Client) -> None:
    admin.run("CREATE STREAM TABLE chat.owned (t TEXT) WITH (ttl_seconds = 3600)")
    admin.run(
        "EXECUTE AS 'a' (INSERT INTO chat.owned VALUES ('of a'));"
        "EXECUTE AS 'A' (INSERT INTO chat.owned VALUES ('of A'))"
    )
    assert admin.rows("SELECT t FROM chat.owned") == []
    assert admin.rows("EXECUTE AS 'a' (SELECT t FROM chat.owned)") == [["of a"]]
    assert admin.rows("EXECUTE AS 'A' (SELECT t FROM chat.owned LAST 5)") == [["of A"]]


def test_a_row_goes_after_its_time_and_so_does_its_file(server: RunningServer, admin: Client) -> None:
    """Cases 5 and 6."""
    admin.run("CREATE STREAM TABLE chat.short (n INT) WITH (ttl_seconds = 3)")
    # In one request: it is there for three seconds only.
    assert admin.rows("INSERT INTO chat.short VALUES (1); SELECT n FROM chat.short LAST 5") == [[1]]
    wait_until(lambda: admin.rows("SELECT n FROM chat.short LAST 5") == [])
    assert admin.rows("SELECT count(*) FROM chat.short") == [[0]]


def test_deletes_win_and_a_later_row_of_the_key_is_there_again(admin: Client) -> None:
    """Cases 5 and 7."""
    admin.run("CREATE STREAM TABLE chat.keyed (id INT PRIMARY KEY, v TEXT) WITH (ttl_seconds = 3600)")
    admin.run("INSERT INTO chat.keyed VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    assert admin.run("DELETE FROM chat.keyed WHERE v = 'b'")["rowCount"] == 1
    assert admin.rows("SELECT id FROM chat.keyed LAST 2") == [[3], [1]]
    admin.run("INSERT INTO chat.keyed VALUES (1, 'newer'), (2, 'again')")
    assert admin.rows("SELECT id, v FROM chat.keyed ORDER BY id") == [[1, "newer"], [2, "again"], [3, "c"]]
    assert admin.run("DELETE FROM chat.keyed")["rowCount"] == 3
    assert admin.rows("SELECT * FROM chat.keyed") == []


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("CREATE STREAM TABLE chat.bad (a INT)", "REQUEST_INVALID"),
        ("CREATE STREAM TABLE chat.bad (a INT) WITH (ttl_seconds = 0)", "SQL_INVALID"),
        ("CREATE STREAM TABLE chat.bad (a INT) WITH (ttl_seconds = -5)", "SQL_INVALID"),
        ("CREATE STREAM TABLE chat.bad (a INT) WITH (ttl_seconds = 5, durability = 'maybe')", "SQL_INVALID"),
        ("CREATE STREAM TABLE chat.bad (a INT) WITH (ttl_seconds = 5, colour = 'red')", "SQL_INVALID"),
        ("CREATE STREAM TABLE chat.bad (_seq INT) WITH (ttl_seconds = 5)", "NAME_INVALID"),
        ("UPDATE chat.lasts SET n = 1", "SQL_UNSUPPORTED"),
        ("DELETE FROM chat.lasts", "SQL_UNSUPPORTED"),
        ("INSERT INTO chat.lasts (_time, n) VALUES (NOW(), 1)", "COLUMN_NOT_FOUND"),
        ("CREATE INDEX i ON chat.lasts (n)", "REQUEST_INVALID"),
    ],
)
def test_what_a_stream_is_not_is_refused_with_a_reason(admin: Client, sql: str, code: str) -> None:
    """Case 7."""
    assert admin.refused(sql)["code"] == code


def _files_in(folder: Path) -> list[str]:
    """List logs below a folder whose content is being removed meanwhile."""
    return [name for _, _, names in os.walk(folder) for name in names if name.endswith(".log")]


def test_a_dropped_stream_leaves_no_files_and_comes_back_empty(server: RunningServer, admin: Client) -> None:
    """Case 7."""
    admin.run(
        "CREATE STREAM TABLE chat.gone (t TEXT NOT NULL) WITH (ttl_seconds = 3600, durability = 'fsync')"
    )
    admin.run("INSERT INTO chat.gone VALUES ('old')")
    assert len(logs_of(server, "gone")) == 1
    assert admin.refused("INSERT INTO chat.gone VALUES (NULL)")["code"] == "VALUE_INVALID"
    admin.run("DROP TABLE chat.gone")
    assert logs_of(server, "gone") == []
    admin.run("CREATE STREAM TABLE chat.gone (t TEXT) WITH (ttl_seconds = 60)")
    assert logs_of(server, "gone") == []
    assert admin.rows("SELECT * FROM chat.gone") == []
    admin.run("INSERT INTO chat.gone VALUES ('new')")
    assert admin.rows("SELECT t FROM chat.gone LAST 9") == [["new"]]
    wait_until(lambda: not any(_files_in(server.home / "streams" / ".trash")))


def test_damage_is_named_and_the_rest_is_read(server: RunningServer, admin: Client) -> None:
    """Case 2: in the answer's warnings, in the metrics, by file and position."""
    admin.run("CREATE STREAM TABLE chat.hurt (n INT) WITH (ttl_seconds = 3600, durability = 'fsync')")
    for n in range(5):
        admin.run("INSERT INTO chat.hurt VALUES (?)", [n])
    path = logs_of(server, "hurt")[0]  # one of two where the hour, and so the window, changed meanwhile
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(content)
    answer = admin.run("SELECT n FROM chat.hurt ORDER BY n")
    assert len(answer["rows"]) == 4
    assert len(answer["warnings"]) == 1
    assert "admin.log" in answer["warnings"][0]
    admin.run("INSERT INTO chat.hurt VALUES (9)")
    assert admin.rows("SELECT n FROM chat.hurt LAST 1") == [[9]]
    assert len(admin.rows("SELECT n FROM chat.hurt")) == 5
    shown = admin.http.get(f"{server.url}/metrics").text
    assert re.search(r"^tidegate_corrupt_frames_total [1-9]", shown, re.MULTILINE)


def test_added_columns_and_another_time_to_live_read_old_rows(admin: Client) -> None:
    """Case 1."""
    admin.run("CREATE STREAM TABLE chat.grows (n INT) WITH (ttl_seconds = 600)")
    admin.run("INSERT INTO chat.grows VALUES (1)")
    admin.run(
        "ALTER TABLE chat.grows ADD COLUMN t TEXT DEFAULT 'none';"
        "ALTER TABLE chat.grows SET (ttl_seconds = 7200)"
    )
    admin.run("INSERT INTO chat.grows VALUES (2, 'x')")
    assert admin.rows("SELECT n, t FROM chat.grows LAST 9") == [[2, "x"], [1, "none"]]
    windows = admin.rows(
        "SELECT DISTINCT split_part(\"window\", '-', 2) FROM system.streams WHERE \"table\" = 'grows'"
    )
    assert sorted(windows) == [["3600000"], ["60000"]]


def test_rows_of_a_stopped_server_are_all_there(tmp_path: Path) -> None:
    with running_server(tmp_path / "home") as server:
        client = Client(server)
        client.run("CREATE NAMESPACE s; CREATE STREAM TABLE s.t (n INT) WITH (ttl_seconds = 3600)")
        client.run("INSERT INTO s.t VALUES (?)", [[n] for n in range(100)])
    with running_server(tmp_path / "home") as server:
        assert Client(server).rows("SELECT count(*), max(n) FROM s.t") == [[100, 99]]
