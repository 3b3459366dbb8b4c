"""Statements that are nearly right: what they may not tell, change or break, over real HTTP."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest

from tests.server.sql_client import Client, person
from tidegate.testing.server import RunningServer, running_server

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("edges") / "home") as running:
        yield running


@pytest.fixture(scope="module")
def admin(server: RunningServer) -> Client:
    client = Client(server)
    client.run("CREATE NAMESPACE z; CREATE SHARED TABLE z.un (id INT PRIMARY KEY, v INT, w INT, s TEXT)")
    client.run("INSERT INTO z.un VALUES (1, 10, 2, 'secret')")
    return client


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE z.un SET v = error((SELECT string_agg(s, ',') FROM z.un))",
        "UPDATE z.un SET v = CAST(s AS INT) WHERE id = 1",
        "UPDATE z.un SET v = 1 WHERE s LIKE 's%'",
        "DELETE FROM z.un WHERE error(s)",
        "DELETE FROM z.un WHERE s LIKE 'x%'",
    ],
)
def test_a_writer_learns_nothing_of_rows_that_it_may_not_read(
    server: RunningServer, admin: Client, sql: str
) -> None:
    error = person(server, admin, f"writer-{next(_numbers)}", "writer").refused(sql)
    assert error["code"] == "FORBIDDEN"
    assert "secret" not in str(error)


def test_a_writer_writes_shared_rows_by_their_key(server: RunningServer, admin: Client) -> None:
    writer = person(server, admin, "by-key", "writer")
    assert writer.run("UPSERT INTO z.un VALUES (7, 1, 1, 'mine')")["rowCount"] == 1
    assert writer.run("UPDATE z.un SET v = 5 WHERE id = 7")["rowCount"] == 1
    assert writer.run("DELETE FROM z.un WHERE id = 7")["rowCount"] == 1


def test_an_expression_is_one_value(admin: Client) -> None:
    before = admin.rows("SELECT * FROM z.un ORDER BY id")
    for sql in (
        "UPDATE z.un SET v = COLUMNS(*) + 1, w = w + 100",
        "UPDATE z.un SET v = unnest([1, 2])",
        "INSERT INTO z.un (id, v) VALUES (9, unnest([10, 20]))",
        "INSERT INTO z.un (id, v) VALUES (9, unnest([]::INT[]))",
    ):
        assert admin.refused(sql)["code"] == "SQL_INVALID", sql
    assert admin.rows("SELECT * FROM z.un ORDER BY id") == before


def test_a_key_is_compared_as_its_column_is(admin: Client) -> None:
    for condition in ("id = 1.5", "id = NULL", "id = '01'", "id = 1.0", "id = 1"):
        by_key = admin.rows(f"SELECT id FROM z.un WHERE {condition}")
        assert by_key == admin.rows(f"SELECT id FROM z.un WHERE {condition} AND 1 = 1"), condition
        wanted = len(by_key)
        assert admin.run(f"UPDATE z.un SET v = 10 WHERE {condition}")["rowCount"] == wanted, condition


def test_an_index_that_cannot_hold_a_row_is_not_kept(admin: Client) -> None:
    admin.run("CREATE SHARED TABLE z.long (id INT PRIMARY KEY, t TEXT)")
    admin.run("INSERT INTO z.long VALUES (1, ?)", ["x" * 5000])
    assert admin.refused("CREATE INDEX by_t ON z.long (t)")["code"] == "VALUE_INVALID"
    assert admin.rows("SELECT indexes FROM system.tables WHERE name = 'long'") == [[None]]
    admin.run("INSERT INTO z.long VALUES (2, ?)", ["y" * 5000])


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("SELECT order FROM z.un", 'order is a word of SQL; as the name of a column it is written "order".'),
        (
            "SELECT max(group) FROM z.un",
            'group is a word of SQL; as the name of a column it is written "group".',
        ),
        (
            'SELECT v FROM z.un WHERE s = "hi"',
            "Text goes into single quotes: 'hi'. Double quotes are for names.",
        ),
    ],
)
def test_a_hint_fits_the_mistake(admin: Client, sql: str, hint: str) -> None:
    assert admin.refused(sql)["hint"] == hint
    assert "word of SQL" not in admin.refused("SELECT v FRM z.un ORDER BY v")["hint"]


def test_now_is_one_moment_in_a_statement(admin: Client) -> None:
    admin.run("CREATE SHARED TABLE z.nw (id INT PRIMARY KEY, a TIMESTAMP, b TIMESTAMP DEFAULT NOW())")
    values = ", ".join(f"({n}, NOW(), {'DEFAULT' if n % 2 else 'NOW()'})" for n in range(200))
    admin.run(f"INSERT INTO z.nw VALUES {values}")
    assert admin.rows("SELECT count(DISTINCT a), count(DISTINCT b), bool_and(a = b) FROM z.nw") == [
        [1, 1, True]
    ]
    admin.run("UPDATE z.nw SET a = NOW(), b = NOW() WHERE id < 100")
    assert admin.rows("SELECT count(DISTINCT a) FROM z.nw WHERE a = b") == [[2]]


def test_a_write_by_key_means_the_same_as_through_duckdb(admin: Client) -> None:
    admin.run("CREATE SHARED TABLE z.f (id INT PRIMARY KEY, x DOUBLE, s TEXT)")
    admin.run("INSERT INTO z.f SELECT 1, 'NaN'::DOUBLE, 'a'")
    for expression in ("TIMESTAMP '2024-01-31 10:00:00'::DATE", "x", "upper(s) || 'b'", "x::TEXT || s"):
        found = []
        for where in ("id = 1", "id = 1 AND 1 = 1"):
            admin.run("UPDATE z.f SET s = 'a' WHERE id = 1")
            admin.run(f"UPDATE z.f SET s = {expression} WHERE {where}")
            found.append(admin.rows("SELECT s FROM z.f"))
        assert found[0] == found[1], expression


def test_a_time_that_no_column_holds_is_not_written(admin: Client) -> None:
    admin.run("CREATE SHARED TABLE z.far (id INT PRIMARY KEY, at TIMESTAMP, day DATE)")
    admin.run("INSERT INTO z.far VALUES (1, '2024-01-31T10:00:00Z', '2024-01-31')")
    before = admin.rows("SELECT * FROM z.far")
    for assignment in ("at = at + INTERVAL 9000 YEAR", "day = day + 5000000"):
        for where in ("id = 1", "id = 1 AND 1 = 1"):
            refused = admin.refused(f"UPDATE z.far SET {assignment} WHERE {where}")
            assert refused["code"] == "VALUE_INVALID", assignment
    assert admin.rows("SELECT * FROM z.far") == before


def test_rows_that_were_over_their_time_stay_gone(admin: Client) -> None:
    admin.run("CREATE STREAM TABLE z.st (n INT) WITH (ttl_seconds = 1)")
    admin.run("INSERT INTO z.st VALUES (1)")
    deadline = time.monotonic() + 60
    while admin.rows("SELECT n FROM z.st"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    admin.run("ALTER TABLE z.st SET (ttl_seconds = 3600); INSERT INTO z.st VALUES (2)")
    assert admin.rows("SELECT n FROM z.st") == [[2]]


@pytest.mark.parametrize(
    ("sql", "codes"),
    [
        ("SELECT v FROM z.un USING SAMPLE 1", {None}),
        ("SELECT v FROM z.un TABLESAMPLE reservoir(2)", {None}),
        ("SELECT " + "+".join(["v"] * 600) + " FROM z.un", {None, "SQL_INVALID"}),
        ("SELECT " + "NOT " * 900 + "true", {None, "SQL_INVALID"}),
        ("INSERT INTO z.nw (id, a) VALUES (999, 'infinity'::TIMESTAMP)", {"SQL_INVALID", "VALUE_INVALID"}),
        ("INSERT INTO z.nw (id, a) VALUES (999, DATE '9999-12-31' + 1)", {"SQL_INVALID", "VALUE_INVALID"}),
        ("SELECT pg_sleep(0)", {"SQL_UNSUPPORTED"}),
        ("SELECT json_serialize_plan('SELECT 1')", {"SQL_UNSUPPORTED"}),
    ],
)
def test_odd_statements_are_answered_or_refused(admin: Client, sql: str, codes: set[str | None]) -> None:
    answer = admin.send(sql)
    code = None if answer.status_code == 200 else answer.json()["error"]["code"]
    assert code in codes, answer.text[:300]
