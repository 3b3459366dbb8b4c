"""Statements over real HTTP: tables, rows, users, scripts, arrays, keys and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.server.sql_client import Client
from tidegate.testing.server import RunningServer, running_server

ARROW = "application/vnd.apache.arrow.stream"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("statements") / "home") as running:
        yield running


@pytest.fixture(scope="module")
def admin(server: RunningServer) -> Client:
    client = Client(server)
    client.run("CREATE NAMESPACE shop")
    return client


def test_every_type_comes_back_as_it_went_in(admin: Client) -> None:
    admin.run(
        "CREATE SHARED TABLE shop.types (id INT PRIMARY KEY, b BOOLEAN, n BIGINT, d DOUBLE, m DECIMAL(12,3),"
        " t TEXT, y BYTES, j JSON, u UUID, day DATE, at TIMESTAMP)"
    )
    row = [
        *(1, True, 2**62, 0.1, "12345.678", "é'\n", "AP8=", '{"a":[1]}'),
        *("0190a0a0-0000-7000-8000-000000000001", "2026-02-28", "2026-02-28T12:34:56.789012Z"),
    ]
    admin.run("INSERT INTO shop.types VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    admin.run("INSERT INTO shop.types (id) VALUES (2)")
    # by primary key, without DuckDB; and through it
    assert admin.rows("SELECT * FROM shop.types WHERE id = 1") == [row]
    assert admin.rows("SELECT * FROM shop.types WHERE id < 2 AND t IS NOT NULL") == [row]
    assert admin.rows("SELECT * FROM shop.types WHERE id = 2") == [[2, *[None] * 10]]


def test_a_statement_is_all_or_nothing(admin: Client) -> None:
    """Case 10, and case 9: an INSERT of a key that is there is an error."""
    admin.run("CREATE SHARED TABLE shop.whole (id INT PRIMARY KEY, v TEXT NOT NULL)")
    admin.run("INSERT INTO shop.whole VALUES (1, 'a'), (2, 'b')")
    error = admin.refused("INSERT INTO shop.whole VALUES (3, 'c'), (2, 'x'), (4, 'd')")
    assert error["code"] == "ROW_EXISTS"
    assert "2" in error["message"]
    assert admin.refused("INSERT INTO shop.whole VALUES (5, 'a'), (5, 'b')")["code"] == "ROW_EXISTS"
    assert admin.refused("INSERT INTO shop.whole VALUES (6, 'a'), (7, NULL)")["code"] == "VALUE_INVALID"
    # a key that moves onto another row's key
    assert admin.refused("UPDATE shop.whole SET id = id + 1 WHERE id = 1")["code"] == "ROW_EXISTS"
    assert admin.rows("SELECT * FROM shop.whole ORDER BY id") == [[1, "a"], [2, "b"]]
    assert admin.run("UPDATE shop.whole SET id = id + 1")["rowCount"] == 2
    assert admin.rows("SELECT * FROM shop.whole ORDER BY id") == [[2, "a"], [3, "b"]]
    assert admin.run("UPSERT INTO shop.whole VALUES (3, 'new'), (4, 'd')")["rowCount"] == 2
    assert admin.rows("SELECT * FROM shop.whole ORDER BY id") == [[2, "a"], [3, "new"], [4, "d"]]


def test_update_and_delete_with_and_without_where(admin: Client) -> None:
    """Case 9."""
    admin.run("CREATE SHARED TABLE shop.changes (a INT, b TEXT, n INT, PRIMARY KEY (a, b))")
    admin.run("INSERT INTO shop.changes VALUES (1, 'x', 1), (1, 'y', 2), (2, 'x', 3)")
    assert admin.run("UPDATE shop.changes SET n = 10 WHERE a = 1 AND b = 'y'")["rowCount"] == 1
    assert admin.run("UPDATE shop.changes SET n = n + ? WHERE b = ?", [5, "x"])["rowCount"] == 2
    assert admin.run("UPDATE shop.changes SET n = 0 WHERE a = 9 AND b = 'x'")["rowCount"] == 0
    assert admin.rows("SELECT * FROM shop.changes ORDER BY a, b") == [[1, "x", 6], [1, "y", 10], [2, "x", 8]]
    assert admin.run("DELETE FROM shop.changes WHERE n = (SELECT max(n) FROM shop.changes)")["rowCount"] == 1
    assert admin.run("DELETE FROM shop.changes WHERE a = 2 AND b = 'x'")["rowCount"] == 1
    assert admin.run("UPDATE shop.changes SET n = NULL")["rowCount"] == 1
    assert admin.run("DELETE FROM shop.changes")["rowCount"] == 1
    assert admin.rows("SELECT * FROM shop.changes") == []


def test_defaults_fill_what_an_insert_leaves_out(admin: Client) -> None:
    """Case 9."""
    admin.run(
        "CREATE SHARED TABLE shop.filled (id BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID(),"
        " u UUID DEFAULT UUID_V7(), at TIMESTAMP DEFAULT NOW(), n INT DEFAULT 7, t TEXT DEFAULT 'it''s')"
    )
    admin.run("INSERT INTO shop.filled (n) VALUES (1), (DEFAULT), (NULL)")
    rows = admin.rows("SELECT id, u, at, n, t FROM shop.filled ORDER BY id")
    assert [row[3] for row in rows] == [1, 7, None]
    assert {row[4] for row in rows} == {"it's"}
    assert len({row[2] for row in rows}) == 1, "NOW() is one moment in a statement"
    assert [row[1] for row in rows] == sorted({row[1] for row in rows})
    assert len({row[0] for row in rows}) == 3


def test_expressions_and_calls_are_worked_out_where_values_may_stand(admin: Client) -> None:
    admin.run(
        'CREATE SHARED TABLE shop.worked ("Id" INT PRIMARY KEY, t TEXT, u UUID, s BIGINT, at TIMESTAMP)'
    )
    admin.run("INSERT INTO shop.worked (id, t) VALUES (?, upper(?)), (1 + 1, DEFAULT), (3, 'c')", [1, "a"])
    assert admin.rows("SELECT id, t FROM shop.worked ORDER BY id") == [[1, "A"], [2, None], [3, "c"]]
    assert (
        admin.run("UPDATE shop.worked SET u = UUID_V7(), s = SNOWFLAKE_ID(), t = t || ?", ["!"])["rowCount"]
        == 3
    )
    rows = admin.rows("SELECT t, u, s FROM shop.worked")
    assert len({row[1] for row in rows}) == len({row[2] for row in rows}) == 3
    assert {row[0] for row in rows} == {"A!", None, "c!"}
    assert (
        admin.run("UPDATE shop.worked SET at = NOW(), t = lower(?) WHERE ID = ?", ["X", 1])["rowCount"] == 1
    )
    assert admin.rows("SELECT T FROM shop.worked WHERE ID = 1") == [["x"]]
    assert admin.refused("UPDATE shop.worked SET s = 1.5 WHERE id = 1")["code"] == "VALUE_INVALID"
    assert admin.refused("UPDATE shop.worked SET s = 1.5 WHERE t = 'x'")["code"] == "VALUE_INVALID"
    assert admin.refused("UPDATE shop.worked SET s = s / 0 + 'x' WHERE id = 1")["code"] in ("SQL_INVALID",)
    assert admin.rows("EXPLAIN UPDATE shop.worked SET s = s + ? WHERE id = ?", [1, 2])[0][2].startswith(
        "point read"
    )


def test_arrays_of_parameters_are_many_rows_of_one_statement(admin: Client) -> None:
    admin.run("CREATE SHARED TABLE shop.many (id INT PRIMARY KEY, name TEXT, kind TEXT, at TIMESTAMP)")
    sql = "INSERT INTO shop.many VALUES (?, ?, 'k', NOW())"
    assert admin.run(sql, [[n, f"row {n}"] for n in range(700)])["rowCount"] == 700
    assert admin.run(sql, [[700, 701, 702], ["x", "y", "z"]])["rowCount"] == 3, "columns are taken too"
    assert admin.rows("SELECT count(*), min(kind), max(name) FROM shop.many") == [[703, "k", "z"]]
    error = admin.refused(sql, [[800, "a"], [801]])
    assert error["code"] == "SQL_INVALID"
    assert "row 2" in error["message"]
    assert "row 2" in admin.refused(sql, [[800, "a"], ["no number", "b"]])["message"]
    assert admin.rows("SELECT count(*) FROM shop.many WHERE id >= 800") == [[0]]


def test_rows_go_in_and_come_out_as_arrow(admin: Client) -> None:
    admin.run("CREATE SHARED TABLE shop.arrows (id BIGINT PRIMARY KEY, t TEXT, at TIMESTAMP DEFAULT NOW())")
    table = pa.table({"t": ["a", None], "id": pa.array([1, 2], pa.int32())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    sent = admin.http.post(
        "/sql",
        params={"sql": "INSERT INTO shop.arrows"},
        content=sink.getvalue().to_pybytes(),
        headers={"Content-Type": ARROW},
    )
    assert (sent.status_code, sent.json()["rowCount"]) == (200, 2), sent.text
    for sql in ("SELECT id, t FROM shop.arrows ORDER BY id", "SELECT id, t FROM shop.arrows WHERE id = 1"):
        answer = admin.send(sql, headers={"Accept": ARROW})
        assert answer.headers["content-type"] == ARROW
        found = pa.ipc.open_stream(answer.content).read_all()
        assert found.column("id").to_pylist() == ([1, 2] if "ORDER" in sql else [1])
    wrong = admin.http.post("/sql", params={"sql": "SELECT 1"}, content=b"x", headers={"Content-Type": ARROW})
    assert wrong.status_code >= 400


def test_no_rows_and_no_reader_for_them_are_no_trouble(admin: Client) -> None:
    admin.run("CREATE SHARED TABLE shop.empty (id BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID(), t TEXT)")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("t", pa.string())])):
        pass
    body, headers = sink.getvalue().to_pybytes(), {"Content-Type": ARROW}
    sent = admin.http.post("/sql", params={"sql": "INSERT INTO shop.empty"}, content=body, headers=headers)
    assert (sent.status_code, sent.json()["rowCount"]) == (200, 0), sent.text
    nothing = pa.record_batch([pa.nulls(1_000_001)], names=["t"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, nothing.schema) as writer:
        writer.write_batch(nothing)
    body = sink.getvalue().to_pybytes()
    sent = admin.http.post("/sql", params={"sql": "INSERT INTO shop.empty"}, content=body, headers=headers)
    assert (len(body) < 1000, sent.status_code) == (True, 422), "few bytes cannot claim many rows"
    only_arrow = admin.send("INSERT INTO shop.empty (t) VALUES ('x')", headers={"Accept": ARROW})
    assert only_arrow.json()["error"]["code"] == "REQUEST_INVALID"
    assert admin.rows("SELECT count(*) FROM shop.empty") == [[0]], "nothing is written for nobody"


def test_several_statements_run_in_order_until_one_fails(admin: Client) -> None:
    done = admin.run(
        "CREATE SHARED TABLE shop.script (id INT PRIMARY KEY);\n"
        "INSERT INTO shop.script VALUES (1); -- a comment; with a semicolon\n"
        "SELECT id FROM shop.script;"
    )
    assert done["rows"] == [[1]]
    assert [result["rowCount"] for result in done["results"]] == [0, 1, 1]
    error = admin.refused(
        "INSERT INTO shop.script VALUES (2);\nINSERT INTO shop.script VALUES (1);\nDELETE FROM shop.script"
    )
    assert error["code"] == "ROW_EXISTS"
    assert error["details"]["statement"] == 2
    assert "Statement 1 was run" in error["hint"]
    assert admin.rows("SELECT id FROM shop.script ORDER BY id") == [[1], [2]]


def test_an_error_says_where_in_the_whole_text(admin: Client) -> None:
    error = admin.refused("SELECT 1;\nSELECT nosuch FROM shop.script")
    assert (error["details"]["statement"], error["details"]["line"]) == (2, 2)
    error = admin.refused("SELECT 1;\n  CREATE TABEL x")
    assert error["details"]["line"] == 2
    assert error["details"]["column"] == 10
    assert admin.refused("")["code"] == "SQL_INVALID"
    assert admin.refused("SELECT ?; SELECT ?", [1, 2])["code"] == "SQL_INVALID"
    assert admin.refused("SELECT 1", [1])["code"] == "SQL_INVALID"


def test_added_columns_read_old_rows(admin: Client) -> None:
    admin.run("CREATE SHARED TABLE shop.grows (id INT PRIMARY KEY)")
    admin.run("INSERT INTO shop.grows VALUES (1)")
    admin.run(
        "ALTER TABLE shop.grows ADD COLUMN n INT NOT NULL DEFAULT 5; ALTER TABLE shop.grows ADD COLUMN t TEXT"
    )
    admin.run("INSERT INTO shop.grows VALUES (2, 6, 'x')")
    assert admin.rows("SELECT * FROM shop.grows ORDER BY id") == [[1, 5, None], [2, 6, "x"]]
    assert admin.rows("SELECT n FROM shop.grows WHERE id = 1") == [[5]]
    assert admin.refused("ALTER TABLE shop.grows ADD COLUMN n INT")["code"] == "COLUMN_EXISTS"
    assert admin.refused("ALTER TABLE shop.grows ADD COLUMN x INT NOT NULL")["code"] == "SCHEMA_INVALID"


def test_an_index_finds_the_rows_that_were_there_and_those_that_come(admin: Client) -> None:
    admin.run("CREATE SHARED TABLE shop.indexed (id INT PRIMARY KEY, room TEXT, n INT)")
    rows = [[n, f"room {n % 7}", n] for n in range(5000)]
    admin.run("INSERT INTO shop.indexed VALUES (?, ?, ?)", rows)
    admin.run("CREATE INDEX by_room ON shop.indexed (room)")
    admin.run("INSERT INTO shop.indexed VALUES (9999, 'room 3', 1)")
    admin.run("UPDATE shop.indexed SET room = 'room 3' WHERE id = 0")
    explained = admin.rows("EXPLAIN SELECT count(*) FROM shop.indexed WHERE room = 'room 3'")
    assert "by_room" in str(explained)
    wanted = sum(n % 7 == 3 for n in range(5000)) + 2
    assert admin.rows("SELECT count(*) FROM shop.indexed WHERE room = 'room 3'") == [[wanted]]
    assert admin.refused("CREATE INDEX by_room ON shop.indexed (n)")["code"] == "INDEX_EXISTS"
    admin.run("DROP INDEX by_room ON shop.indexed")
    assert admin.rows("SELECT count(*) FROM shop.indexed WHERE room = 'room 3'") == [[wanted]]


def test_many_writers_of_one_row_all_count(server: RunningServer, admin: Client) -> None:
    admin.run("CREATE SHARED TABLE shop.counters (id INT PRIMARY KEY, n INT, m INT)")
    admin.run("INSERT INTO shop.counters VALUES (1, 0, 0)")
    problems: list[str] = []

    def raise_it(sql: str) -> None:
        client = Client(server)
        for _ in range(15):
            answer = client.send(sql)
            if answer.status_code != 200 or answer.json()["rowCount"] != 1:
                problems.append(answer.text)

    by_key, by_other = "SET n = n + 1 WHERE id = 1", "SET m = m + 1 WHERE id + 0 = 1"
    statements = [f"UPDATE shop.counters {change}" for change in (by_key, by_other) for _ in range(4)]
    threads = [threading.Thread(target=raise_it, args=(sql,)) for sql in statements]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert admin.rows("SELECT n, m FROM shop.counters") == [[60, 60]]


def test_a_write_with_a_key_is_done_once(admin: Client) -> None:
    admin.run("CREATE SHARED TABLE shop.once (id INT PRIMARY KEY, n INT)")
    admin.run("INSERT INTO shop.once VALUES (1, 0)")
    key = {"Idempotency-Key": "raise-1"}
    first = admin.send("UPDATE shop.once SET n = n + 1 WHERE id = 1", headers=key)
    again = admin.send("UPDATE shop.once SET n = n + 1 WHERE id = 1", headers=key)
    assert first.status_code == 200
    assert first.content == again.content
    assert admin.rows("SELECT n FROM shop.once") == [[1]]
    other = admin.send("UPDATE shop.once SET n = n + 2 WHERE id = 1", headers=key)
    assert other.json()["error"]["code"] == "IDEMPOTENCY_KEY_REUSED"
    for sql in ("CREATE NAMESPACE keyed", "SELECT 1; SELECT 2", "UPDATE shop.once SET n = 3"):
        assert admin.send(sql, headers={"Idempotency-Key": "another"}).status_code == 422, sql


def test_what_there_is_can_be_asked_for(admin: Client) -> None:
    admin.run(
        "CREATE SHARED TABLE shop.shown (id INT PRIMARY KEY, at TIMESTAMP DEFAULT NOW(), n INT DEFAULT 3)"
    )
    assert ["shop", "shown", "SHARED"] in admin.rows("SHOW TABLES IN shop")
    assert [row[0] for row in admin.rows("SHOW NAMESPACES")] == ["shop"]
    assert admin.refused("SHOW TABLES IN nowhere")["code"] == "NAMESPACE_NOT_FOUND"
    described = admin.rows("DESCRIBE TABLE shop.shown")
    assert [row[:5] for row in described] == [
        ["id", "INT", True, None, True],
        ["at", "TIMESTAMP", False, "NOW()", False],
        ["n", "INT", False, "3", False],
    ]
    assert [row[0] for row in admin.rows("DESCRIBE system.namespaces")] == ["name", "tables"]
    assert admin.refused("DESCRIBE system.nothing")["code"] == "TABLE_NOT_FOUND"
    admin.run("INSERT INTO shop.shown (id) VALUES (1)")
    assert admin.rows("SELECT count(at) FROM shop.shown WHERE at <= NOW()") == [[1]], (
        "DuckDB reserves the word"
    )
    assert admin.rows("SELECT name FROM system.columns WHERE \"table\" = 'shown' AND \"default\" = '3'") == [
        ["n"]
    ]
    assert admin.rows("SELECT action, subject FROM system.audit WHERE subject = 'table/shop.shown'") == [
        ["table.create", "table/shop.shown"]
    ]


def test_dropped_tables_leave_nothing(admin: Client) -> None:
    admin.run("CREATE SHARED TABLE shop.gone (id INT PRIMARY KEY)")
    admin.run("INSERT INTO shop.gone VALUES (1)")
    assert admin.refused("DROP NAMESPACE shop")["code"] == "NAMESPACE_NOT_EMPTY"
    admin.run("DROP TABLE shop.gone; CREATE SHARED TABLE shop.gone (id INT PRIMARY KEY, x TEXT)")
    assert admin.rows("SELECT * FROM shop.gone") == []
    admin.run("DROP TABLE shop.gone; DROP TABLE IF EXISTS shop.gone")
    assert admin.refused("SELECT * FROM shop.gone")["code"] == "TABLE_NOT_FOUND"
    assert admin.refused("INSERT INTO shop.gone VALUES (1)")["code"] == "TABLE_NOT_FOUND"
    assert admin.refused("INSERT INTO nowhere.gone VALUES (1)")["code"] == "NAMESPACE_NOT_FOUND"


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("CREATE SHARED TABLE shop.bad (a INT)", "SCHEMA_INVALID"),
        ("CREATE SHARED TABLE shop.bad (a JSON PRIMARY KEY)", "SCHEMA_INVALID"),
        ("CREATE SHARED TABLE shop.bad (a FILE PRIMARY KEY)", "SQL_UNSUPPORTED"),
        ("CREATE SHARED TABLE lake.bad (a INT PRIMARY KEY)", "NAME_INVALID"),
        ("CREATE NAMESPACE system", "NAME_INVALID"),
        ("CREATE SHARED TABLE shop.bad (a INT PRIMARY KEY DEFAULT (1 + 1))", "SQL_UNSUPPORTED"),
        ("CREATE SHARED TABLE shop.bad (a INT PRIMARY KEY DEFAULT 'x')", "VALUE_INVALID"),
        ("CREATE SHARED TABLE shop.bad (a INT PRIMARY KEY) WITH (ttl_seconds = 5)", "SQL_INVALID"),
        ("INSERT INTO lake.x VALUES (1)", "SQL_UNSUPPORTED"),
        ("INSERT INTO system.tables VALUES (1)", "SQL_UNSUPPORTED"),
        ("DROP TABLE lake.x", "SQL_UNSUPPORTED"),
        ("CREATE INDEX i ON lake.x (a)", "SQL_UNSUPPORTED"),
        ("SELECT * FROM system.tables LAST 3", "SQL_UNSUPPORTED"),
        ("SELECT * FROM shop.types LAST", "SQL_INVALID"),
        ("SELECT * FROM system.nothing", "TABLE_NOT_FOUND"),
        ("SELECT * FROM read_csv('/etc/passwd')", "SQL_UNSUPPORTED"),
        ("COPY shop.x TO '/tmp/x'", "SQL_UNSUPPORTED"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(admin: Client, sql: str, code: str) -> None:
    error = admin.refused(sql)
    assert error["code"] == code, error
    assert error["message"]


def test_rows_and_definitions_are_there_after_a_kill(tmp_path: Path) -> None:
    with running_server(tmp_path / "home") as server:
        client = Client(server)
        client.run("CREATE NAMESPACE s; CREATE SHARED TABLE s.t (id INT PRIMARY KEY, v TEXT)")
        client.run("INSERT INTO s.t VALUES (1, 'a'); UPDATE s.t SET v = 'b' WHERE id = 1")
        server.kill()
    with running_server(tmp_path / "home") as server:
        client = Client(server)
        assert client.rows("SELECT * FROM s.t") == [[1, "b"]]
        assert client.rows("SELECT rows FROM system.tables") == [[1]]
