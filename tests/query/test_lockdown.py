"""Nothing that a statement can say leads out of the lake, changes a setting or writes a file."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tidegate.errors import RequestRefused
from tidegate.query.lake_sql import LakeQuery

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
def test_the_database_itself_is_locked_should_a_statement_get_through(
    query: LakeQuery, root: Path, sql: str
) -> None:
    file, sibling = root.parent / "secret.csv", root.parent / "lake2" / "secret.csv"
    sibling.parent.mkdir()
    for place in (file, sibling):
        place.write_text(SECRET)
    secret_frame = pa.table({"a": [SECRET]})
    with query._database.session() as cursor, pytest.raises(duckdb.Error):
        cursor.execute(sql.format(file=file, root=root, sibling=sibling)).fetchall()
    assert secret_frame.num_rows == 1
    assert file.read_text() == SECRET


def test_functions_that_only_compute_are_there(query: LakeQuery) -> None:
    assert query.run("SELECT sum(range) FROM range(5)").json_rows() == [[10]]
    assert query.run("SELECT unnest([1, 2])").json_rows() == [[1], [2]]
    assert query.run("SELECT * FROM unnest(['a']) t(x)").json_rows() == [["a"]]
    assert query.run("SELECT g FROM generate_series(1, 2) t(g)").json_rows() == [[1], [2]]
    assert query.run("SELECT * FROM (VALUES (1, 'x')) v(a, b)").json_rows() == [[1, "x"]]
