"""Nothing that a statement can say leads out of the lake, changes a setting or writes a file."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.query.bench import Bench
from tidegate.errors import RequestRefused
from tidegate.model.tables import TableKind
from tidegate.query.duckdb.engine import LakeQuery
from tidegate.query.duckdb.session import LakeDatabase, QueryLimits
from tidegate.query.duckdb.views import SessionViews
from tidegate.query.scans.source import ScanBudget, ScanRequest

SECRET = "the-secret-text"

ATTACKS = [
    "SELECT * FROM read_csv('{file}')",
    "SELECT * FROM read_text('{file}')",
    "SELECT * FROM read_blob('{file}')",
    "SELECT * FROM read_json('{file}')",
    "SELECT * FROM read_parquet('{file}')",
    "SELECT * FROM parquet_scan('{file}')",
    "SELECT * FROM parquet_metadata('{file}')",
    "SELECT * FROM sniff_csv('{file}')",
    "SELECT * FROM read_duckdb('{file}')",
    "SELECT * FROM read_text('{root}/../secret.csv')",
    "SELECT * FROM glob('{root}/../*')",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM '{file}'",
    'SELECT * FROM "{file}"',
    "FROM '{file}'",
    "SELECT * FROM '{root}/../secret.csv'",
    "SELECT * FROM 'http://127.0.0.1/x.csv'",
    "SELECT (SELECT content FROM read_text('{file}'))",
    "WITH x AS (FROM read_text('{file}')) SELECT * FROM x",
    "SELECT * FROM lake.t WHERE a IN (SELECT 1 FROM read_text('{file}'))",
    "SELECT 1 UNION ALL SELECT length(content) FROM read_text('{file}')",
    "SELECT * FROM query('SELECT * FROM read_text(''{file}'')')",
    "SELECT * FROM query_table('{file}')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "COPY (SELECT 1) TO '{root}/out.csv'",
    "COPY lake.t TO '{file}'",
    "ATTACH '{file}' AS other",
    "ATTACH ':memory:' AS other",
    "EXPORT DATABASE '{root}/out'",
    "IMPORT DATABASE '{root}'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '{file}'",
    "SET threads = 64",
    "SET GLOBAL enable_external_access = true",
    "SET lock_configuration = false",
    "RESET allowed_directories",
    "PRAGMA enable_profiling",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "SELECT * FROM enable_logging('QueryLog', storage = 'file', storage_config = {{'path': '{root}/log'}})",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM pragma_database_size()",
    "SELECT * FROM checkpoint()",
    "SELECT current_setting('allowed_directories')",
    "SELECT getenv('HOME')",
    "SELECT * FROM duckdb_databases",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM pg_catalog.pg_settings",
    "SELECT * FROM memory.main.x",
    "SELECT * FROM secret_frame",
    "CREATE TABLE x AS SELECT 1",
    "CREATE SECRET (TYPE s3)",
    "CREATE VIEW lake.v AS SELECT 1",
    "INSERT INTO lake.t VALUES (1)",
    "DELETE FROM lake.t",
    "UPDATE lake.t SET a = 2",
    "DROP VIEW lake.t",
    "WITH x AS (INSERT INTO lake.t VALUES (1) RETURNING *) SELECT * FROM x",
    "WITH x AS (DELETE FROM lake.t RETURNING *) SELECT * FROM x",
    "USE memory",
    "BEGIN",
    "CHECKPOINT",
    "VACUUM",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "SELECT sleep_ms(10)",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_are_refused(query: LakeQuery, root: Path, attack: str) -> None:
    file = root.parent / "secret.csv"
    file.write_text(f"a\n{SECRET}\n")
    secret_frame = pa.table({"a": [SECRET]})
    write_deltalake(root / "t", pa.table({"a": [1]}))
    before = sorted(root.parent.rglob("*"))
    with pytest.raises(RequestRefused) as caught:
        query.run(attack.format(file=file, root=root))
    assert SECRET not in str(caught.value)
    assert secret_frame.num_rows == 1
    assert sorted(root.parent.rglob("*")) == before
    assert file.read_text() == f"a\n{SECRET}\n"
    assert query.run("SELECT a FROM lake.t").json_rows() == [[1]]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('{file}')",
        "SELECT * FROM read_csv('{root}/../secret.csv')",
        "SELECT * FROM read_text('{sibling}')",
        "SELECT * FROM '{file}'",
        "COPY (SELECT 1) TO '{file}'",
        "ATTACH '{file}' AS other",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET threads = 64",
        "SET enable_external_access = true",
        "SET allowed_directories = ['/']",
        "RESET lock_configuration",
        "SELECT * FROM enable_logging()",
        "SELECT * FROM secret_frame",
    ],
)
def test_the_database_itself_is_locked_should_a_statement_get_through(root: Path, sql: str) -> None:
    file, sibling = root.parent / "secret.csv", root.parent / "lake2" / "secret.csv"
    sibling.parent.mkdir()
    for place in (file, sibling):
        place.write_text(SECRET)
    secret_frame = pa.table({"a": [SECRET]})
    database = LakeDatabase()
    database.confine(root, QueryLimits())
    with database.session() as cursor, pytest.raises(duckdb.Error):
        cursor.execute(sql.format(file=file, root=root, sibling=sibling)).fetchall()
    database.close()
    assert secret_frame.num_rows == 1
    assert file.read_text() == SECRET


def test_functions_that_only_compute_are_there(query: LakeQuery) -> None:
    assert query.run("SELECT sum(range) FROM range(5)").json_rows() == [[10]]
    assert query.run("SELECT unnest([1, 2])").json_rows() == [[1], [2]]
    assert query.run("SELECT * FROM unnest(['a']) t(x)").json_rows() == [["a"]]
    assert query.run("SELECT g FROM generate_series(1, 2) t(g)").json_rows() == [[1], [2]]
    assert query.run("SELECT * FROM (VALUES (1, 'x')) v(a, b)").json_rows() == [[1, "x"]]


SIDE_DOORS = [
    "WITH duckdb_views AS (SELECT * FROM duckdb_views) SELECT * FROM duckdb_views",
    "SELECT * FROM duckdb_databases, (WITH duckdb_databases AS (SELECT 1) SELECT * FROM duckdb_databases)",
    "SELECT * FROM sqlite_master WHERE 1 IN (WITH sqlite_master AS (SELECT 1) SELECT 1)",
    "WITH b AS (SELECT * FROM a), a AS (SELECT 1) SELECT * FROM b",
    "WITH RECURSIVE pg_views AS (SELECT 1 FROM pg_views UNION ALL SELECT 1) SELECT * FROM pg_views",
    "WITH RECURSIVE pg_tables AS (SELECT * FROM pg_tables) SELECT * FROM pg_tables",
    "SELECT * FROM tidegate_rows_1",
    "SELECT * FROM main.tidegate_rows_1",
    "SELECT * FROM temp.tidegate_rows_1",
    "SELECT * FROM temp.main.tidegate_rows_1",
    "WITH tidegate_rows_1 AS (SELECT 1) SELECT * FROM chat.messages, tidegate_rows_1",
    "SELECT * FROM chat.messages, (WITH tidegate_rows_1 AS (SELECT 1) SELECT 1), Tidegate_Rows_1",
    "SELECT tidegate_rows_1.id FROM chat.messages",
    "SELECT * FROM syst$m.tables",
    'SELECT * FROM "syst$m".tables',
    'SELECT * FROM "query 1".chat.messages',
    'SELECT * FROM "query 1".messages',
    "SELECT * FROM memory.chat.messages",
    "SELECT * FROM system.main.duckdb_views",
    "SELECT * FROM system.duckdb_views",
    "SELECT * FROM system.information_schema.tables",
    "SELECT * FROM chat.messages.id.x",
]


@pytest.mark.parametrize("attack", SIDE_DOORS)
def test_no_statement_reaches_behind_its_own_tables(bench: Bench, attack: str) -> None:
    """Nor views of DuckDB, nor the names of registered rows, by whatever name it defines itself."""
    table = bench.create("chat.messages", TableKind.USER, {"id": "BIGINT", "text": "TEXT"}, ["id"])
    bench.insert(table, [(1, SECRET)], user="bob")
    with pytest.raises(RequestRefused) as caught:
        bench.rows(f"SELECT * FROM system.tables, chat.messages WHERE EXISTS ({attack})")
    assert SECRET not in str(caught.value)
    with pytest.raises(RequestRefused):
        bench.rows(attack)
    assert bench.rows("SELECT * FROM chat.messages") == []


def test_names_that_a_statement_defines_itself_are_there(bench: Bench) -> None:
    assert bench.rows("WITH a AS (SELECT 1 AS x), b AS (SELECT * FROM a) SELECT * FROM b, A") == [[1, 1]]
    recursive = (
        "WITH RECURSIVE n AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM n WHERE x < 3) SELECT * FROM n"
    )
    assert bench.rows(recursive) == [[1], [2], [3]]
    nested = "WITH a AS (SELECT 7 AS x) SELECT (SELECT max(x) FROM (SELECT * FROM a) q) FROM a"
    assert bench.rows(nested) == [[7]]
    assert bench.rows("SELECT 1 UNION ALL (WITH q AS (SELECT 2) SELECT * FROM q)") == [[1], [2]]


def test_rows_registered_in_one_session_are_seen_in_no_other(bench: Bench) -> None:
    table = bench.create("chat.messages", TableKind.USER, {"id": "BIGINT", "text": "TEXT"}, ["id"])
    bench.insert(table, [(1, SECRET)])
    database = LakeDatabase()
    database.confine(bench.root, QueryLimits())
    with database.session() as mine, database.session() as other:
        source = bench.source()
        found = source.find("chat", "messages")
        assert found is not None
        rows = found.scan(found.access(ScanRequest()), ScanBudget(lambda: None, 100)).rows
        SessionViews(mine).show_rows(found, rows)
        assert mine.execute("SELECT text FROM chat.messages").fetchall() == [(SECRET,)]
        for name in ("chat.messages", "tidegate_rows_1", "temp.tidegate_rows_1", '"query 1".chat.messages'):
            with pytest.raises(duckdb.Error):
                other.execute(f"SELECT * FROM {name}").fetchall()
        source.close()
