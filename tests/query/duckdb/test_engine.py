"""SELECT over Delta tables: right rows for every shape of table, and clear errors."""

from __future__ import annotations

import shutil
import threading
from contextvars import copy_context
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tidegate.errors import (
    NotReady,
    QueryMemory,
    QueryTimeout,
    RequestInvalid,
    SqlInvalid,
    SqlUnsupported,
    StorageCorrupt,
    TableNotFound,
)
from tidegate.query.duckdb.engine import LakeQuery
from tidegate.query.duckdb.session import LakeDatabase, QueryLimits
from tidegate.query.processes.watch import Stopper
from tidegate.storage.lake.tables import Lake


def rows(query: LakeQuery, sql: str, *params: Any) -> list[list[Any]]:
    return query.run(sql, params).json_rows()


def test_appended_overwritten_and_deleted_rows(query: LakeQuery, root: Path) -> None:
    write_deltalake(root / "t", pa.table({"a": [1, 2]}))
    assert rows(query, "SELECT a FROM lake.t ORDER BY a") == [[1], [2]]
    write_deltalake(root / "t", pa.table({"a": [3]}), mode="append")
    assert rows(query, "SELECT a FROM lake.t ORDER BY a") == [[1], [2], [3]]
    DeltaTable(root / "t").delete("a = 2")
    assert rows(query, "SELECT a FROM lake.t ORDER BY a") == [[1], [3]]
    write_deltalake(root / "t", pa.table({"a": [9]}), mode="overwrite")
    assert rows(query, "SELECT a FROM lake.t WHERE a > 0 ORDER BY a") == [[9]]


def test_an_empty_table_has_its_schema_and_no_rows(query: LakeQuery, root: Path) -> None:
    schema = pa.schema(
        [("a", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("l", pa.list_(pa.string()))]
    )
    DeltaTable.create(root / "t", schema)
    answer = query.run("SELECT * FROM lake.t WHERE a > 1", ())
    assert answer.json_rows() == []
    assert answer.columns == [
        {"name": "a", "type": "BIGINT"},
        {"name": "at", "type": "TIMESTAMP"},
        {"name": "l", "type": "VARCHAR[]"},
    ]
    assert answer.arrow().schema.field("at").type == pa.timestamp("us", tz="UTC")


def test_a_column_that_came_later_is_null_in_older_files(query: LakeQuery, root: Path) -> None:
    write_deltalake(root / "t", pa.table({"a": [1], "s": pa.array([{"x": 1}])}))
    newer = pa.table({"a": [2], "s": pa.array([{"x": 2, "y": "q"}]), "b": ["new"]})
    write_deltalake(root / "t", newer, mode="append", schema_mode="merge")
    assert rows(query, "SELECT a, b, s FROM lake.t ORDER BY a") == [
        [1, None, {"x": 1, "y": None}],
        [2, "new", {"x": 2, "y": "q"}],
    ]
    assert rows(query, "SELECT a FROM lake.t WHERE b IS NULL") == [[1]]


def test_partition_columns_come_from_the_log_with_their_type(query: LakeQuery, root: Path) -> None:
    days = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
    table = pa.table(
        {
            "v": [1, 2, 3],
            "day": pa.array([d.date() for d in days]),
            "moment": pa.array(days, pa.timestamp("us", tz="UTC")),
            "n": pa.array([7, None, 9], pa.int32()),
            "text": pa.array(["a b/c%", "*[1]?", "it's"]),
        }
    )
    write_deltalake(root / "t", table, partition_by=["day", "n", "text", "moment"])
    write_deltalake(root / "t", table, mode="append")
    expected = [
        [1, "2026-01-01", "2026-01-01T00:00:00Z", 7, "a b/c%"],
        [2, "2026-01-02", "2026-01-02T00:00:00Z", None, "*[1]?"],
        [3, "2026-01-03", "2026-01-03T00:00:00Z", 9, "it's"],
    ]
    assert rows(query, "SELECT DISTINCT v, day, moment, n, text FROM lake.t ORDER BY v") == expected
    assert rows(query, "SELECT count(*) FROM lake.t WHERE day = '2026-01-02'") == [[2]]
    assert rows(query, "SELECT v FROM lake.t WHERE text = ? AND n >= 9 LIMIT 1", "it's") == [[3]]
    assert query.run("SELECT n, day FROM lake.t").columns == [
        {"name": "n", "type": "INT"},
        {"name": "day", "type": "DATE"},
    ]


def test_a_lake_whose_path_has_glob_characters(tmp_path: Path) -> None:
    root = tmp_path / "odd [1]* it's" / "lake"
    write_deltalake(tmp_path / "plain" / "lake" / "t", pa.table({"a": [1]}))
    (tmp_path / "plain").rename(root.parent)
    write_deltalake(tmp_path / "odd 1 it's" / "lake" / "t", pa.table({"a": [2]}))
    query = LakeQuery(Lake(root))
    assert rows(query, "SELECT a FROM lake.t") == [[1]]


def test_times_in_the_old_parquet_format_are_utc(
    query: LakeQuery, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = datetime(2026, 1, 1, 12, tzinfo=UTC)
    table = pa.table({"moment": pa.array([moment], pa.timestamp("us", tz="UTC"))})
    write_deltalake(root / "t", table)
    file = root / "t" / Lake(root).view("t").files["path"][0].as_py()
    pq.write_table(table, file, use_deprecated_int96_timestamps=True)
    assert rows(query, "SELECT moment FROM lake.t WHERE moment >= '2026-01-01 12:00'") == [
        ["2026-01-01T12:00:00Z"]
    ]
    assert rows(query, "SELECT moment FROM lake.t WHERE moment > '2026-01-01 12:00'") == []


def test_names_are_case_insensitive_and_may_be_joined_with_themselves(query: LakeQuery, root: Path) -> None:
    write_deltalake(root / "t", pa.table({"a": [1, 2]}))
    write_deltalake(root / "u", pa.table({"a": [2, 3]}))
    assert rows(query, 'SELECT x.a FROM LAKE."T" x JOIN lake.t y ON x.a = y.a WHERE x.a = 1') == [[1]]
    assert rows(query, "WITH q AS (SELECT a FROM lake.t) SELECT q.a FROM q JOIN lake.u USING (a)") == [[2]]
    assert rows(query, "FROM lake.t SELECT sum(a)") == [[3]]
    assert rows(query, "SELECT column_name FROM (DESCRIBE lake.t)") == [["a"]]


@pytest.mark.parametrize(
    ("sql", "params", "said"),
    [
        ("SELEC 1", (), "syntax error"),
        ("SELECT nope FROM lake.t", (), '"nope" not found'),
        ("SELECT 'x'::INT", (), "Could not convert"),
        ("", (), "empty"),
        ("-- nothing", (), "empty"),
        ("SELECT ?", (), "1 wanted, 0 given"),
        ("SELECT 1", (1,), "0 wanted, 1 given"),
        ("SELECT $1, $2", (1, 2, 3), "2 wanted, 3 given"),
        ("SELECT $2", (1, 2), "not $1"),
        ("SELECT $name", (1,), "named parameters"),
        ("SELECT ?", (2**200,), "too large"),
        ("SELECT ?", ("\ud800",), "not Unicode"),
        ("SELECT ?", (object(),), "object"),
        ("SELECT '\ud800'", (), "not Unicode"),
        ("SELECT a FROM lake.t WHERE a = ?", (object(),), "object"),
        ("SELECT a FROM lake.t WHERE a = 'x'", (), "Could not convert"),
        ("SELECT no_such_function(1)", (), "no_such_function"),
    ],
)
def test_what_cannot_run_says_why(
    query: LakeQuery, root: Path, sql: str, params: tuple[Any, ...], said: str
) -> None:
    write_deltalake(root / "t", pa.table({"a": [1]}))
    with pytest.raises(SqlInvalid) as caught:
        query.run(sql, params)
    assert said in caught.value.message
    assert rows(query, "SELECT a FROM lake.t") == [[1]], "the next statement is not touched"


def test_errors_carry_line_and_column(query: LakeQuery, root: Path) -> None:
    write_deltalake(root / "t", pa.table({"a": [1]}))
    with pytest.raises(SqlInvalid) as caught:
        query.run("SELECT a,\n       nope\nFROM lake.t")
    assert (caught.value.values["line"], caught.value.values["column"]) == (2, 8)
    long = "SELECT " + "a, " * 100 + "nope FROM lake.t"
    with pytest.raises(SqlInvalid) as caught:
        query.run(long)
    assert (caught.value.values["line"], caught.value.values["column"]) == (1, long.index("nope") + 1)


def test_an_unknown_table_lists_the_known_ones(query: LakeQuery, root: Path) -> None:
    write_deltalake(root / "known", pa.table({"a": [1]}))
    for sql in ("SELECT * FROM lake.unknown", "SELECT * FROM known", 'SELECT * FROM lake."../x"'):
        with pytest.raises(TableNotFound) as caught:
            query.run(sql)
        assert "lake.known" in caught.value.hint


@pytest.mark.parametrize(
    "sql", ["SELECT 1; SELECT 2", "EXPLAIN SELECT 1", "PIVOT lake.t ON a USING sum(a)", "SHOW TABLES"]
)
def test_only_one_select(query: LakeQuery, root: Path, sql: str) -> None:
    write_deltalake(root / "t", pa.table({"a": [1]}))
    with pytest.raises(SqlUnsupported):
        query.run(sql)


def test_parameters_are_bound_and_never_read_as_sql(query: LakeQuery, root: Path) -> None:
    write_deltalake(root / "t", pa.table({"s": ["' OR 1=1 --", "x$1"]}))
    assert rows(query, "SELECT s FROM lake.t WHERE s = ?", "' OR 1=1 --") == [["' OR 1=1 --"]]
    assert rows(query, "SELECT s FROM lake.t WHERE s = 'x$1' AND s = $1", "x$1") == [["x$1"]]
    values = [None, True, 5, 2**40, 1.5, "é", [1, 2], datetime(2026, 1, 1, tzinfo=UTC)]
    expected = [None, True, 5, 2**40, 1.5, "é", [1, 2], "2026-01-01T00:00:00Z"]
    assert rows(query, f"SELECT {', '.join('?' * len(values))}", *values) == [expected]


def test_a_slow_statement_is_stopped(root: Path) -> None:
    query = LakeQuery(Lake(root), QueryLimits(timeout_seconds=0.3))
    for sql in (
        "SELECT count(*) FROM range(100000000) a, range(100000) b WHERE a.range + b.range = ?",
        "SELECT a.range FROM range(100000000) a, range(100000) b WHERE a.range + b.range = ?",
    ):
        with pytest.raises(QueryTimeout):
            query.run(sql, [-1])
    query._settings = replace(query._settings, timeout_seconds=60)  # even these may be held up for a while
    assert rows(query, "SELECT 1") == [[1]]
    assert rows(query, "SELECT count(*) FROM range(10)") == [[10]]


def test_what_one_caller_runs_is_stopped_and_nothing_else(query: LakeQuery) -> None:
    forever = "SELECT sum(a.range * b.range) FROM range(1000000000) a, range(1000000000) b"
    stopper, gone = Stopper(), NotReady(reason="nobody waits")
    context = copy_context()
    context.run(stopper.enter)
    timer = threading.Timer(0.05, stopper.stop, [gone])
    timer.start()
    with pytest.raises(NotReady) as caught:
        context.run(query.run, forever)
    assert caught.value is gone
    timer.join()
    with pytest.raises(NotReady) as caught:
        context.run(query.run, forever)
    assert caught.value is gone, "what begins later is stopped, too"
    assert rows(query, "SELECT 1") == [[1]], "another caller is not touched"


def test_too_many_rows_are_refused_with_a_hint(query: LakeQuery) -> None:
    assert query.run("SELECT * FROM range(1000)").row_count == 1000
    with pytest.raises(RequestInvalid, match="1,000 rows") as caught:
        query.run("SELECT * FROM range(100000000)")
    assert "LIMIT" in caught.value.hint
    assert rows(query, "SELECT 1") == [[1]]


def test_too_much_memory_is_refused_with_a_hint(root: Path) -> None:
    query = LakeQuery(Lake(root), QueryLimits(memory_mb=64))
    with pytest.raises(QueryMemory) as caught:
        query.run(
            "SELECT count(*) FROM (SELECT DISTINCT hash(range), range::VARCHAR || 'x' FROM range(20000000))"
        )
    assert "query.memory_mb" in caught.value.hint
    assert rows(query, "SELECT 1") == [[1]]


def test_memory_spills_where_a_folder_is_given(root: Path, tmp_path: Path) -> None:
    settings = QueryLimits(memory_mb=64, spill_path=tmp_path / "spill")
    query = LakeQuery(Lake(root), settings)
    sql = "SELECT count(*) FROM (SELECT range r, hash(range) h FROM range(3000000) ORDER BY h) WHERE r >= 0"
    assert rows(query, sql) == [[3_000_000]]


def test_a_missing_and_a_damaged_file_are_named(query: LakeQuery, root: Path) -> None:
    write_deltalake(root / "t", pa.table({"a": [1]}))
    write_deltalake(root / "good", pa.table({"a": [1]}))
    file = root / "t" / Lake(root).view("t").files["path"][0].as_py()
    kept = file.read_bytes()
    for broken in (kept[: len(kept) // 2], b"", b"PAR1" + bytes(50)):
        file.write_bytes(broken)
        with pytest.raises(StorageCorrupt) as caught:
            query.run("SELECT * FROM lake.t")
        assert caught.value.values["place"] == str(file)
    file.unlink()
    with pytest.raises(StorageCorrupt) as caught:
        query.run("SELECT * FROM lake.t")
    assert caught.value.values == {"place": str(file), "reason": "the file is missing"}
    assert rows(query, "SELECT * FROM lake.good") == [[1]]
    file.write_bytes(kept)
    assert rows(query, "SELECT * FROM lake.t") == [[1]]


def test_statements_in_many_threads_do_not_meet(query: LakeQuery, root: Path) -> None:
    for name in "abcd":
        write_deltalake(root / name, pa.table({"v": [name] * 3}))
    wrong: list[Any] = []

    def ask(name: str) -> None:
        for _ in range(15):
            found = rows(query, f"SELECT v FROM lake.{name} WHERE v = ?", name)
            if found != [[name]] * 3:
                wrong.append((name, found))

    threads = [threading.Thread(target=ask, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_sessions_leave_nothing_behind() -> None:
    database = LakeDatabase()
    for has_views in (True, False, False, True):
        with database.session() as cursor:
            assert cursor.execute("SELECT count(*) FROM duckdb_views() WHERE NOT internal").fetchall() == [
                (0,)
            ]
            attached = cursor.execute("SELECT count(*) FROM duckdb_databases() WHERE NOT internal").fetchall()
            assert attached == [(2,)]
            if has_views:
                cursor.execute("CREATE VIEW lake.v AS SELECT 1")
                cursor.execute("CREATE SCHEMA other")
            database.has_views = has_views
    database.close()


def test_files_that_vanish_with_their_version_are_read_anew(query: LakeQuery, root: Path) -> None:
    """The list is read, then a writer replaces the files, then the old ones are opened."""
    write_deltalake(root / "t", pa.table({"a": [1]}))

    class Late(Lake):
        swapped = False

        def view(self, name: str) -> Any:
            seen = super().view(name)
            if not self.swapped:
                self.swapped = True
                write_deltalake(root / "t", pa.table({"a": [2]}), mode="overwrite")
                table = DeltaTable(root / "t")
                table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
            return seen

    late = LakeQuery(Late(root))
    assert rows(late, "SELECT a FROM lake.t") == [[2]]
    shutil.rmtree(root / "t")
    with pytest.raises(TableNotFound):
        rows(late, "SELECT a FROM lake.t")


def test_a_column_named_like_a_word_of_sql_is_explained(query: LakeQuery) -> None:
    with pytest.raises(SqlInvalid) as caught:
        query.run("SELECT offset FROM lake.anything")
    assert '"offset"' in caught.value.hint
