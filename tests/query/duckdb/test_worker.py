"""Statements in child processes: limits that hold inside one call of DuckDB, and nothing lost on the way."""

from __future__ import annotations

import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.query.bench import Bench
from tests.query.processes.test_fork_server import wait_gone
from tidegate.errors import QueryMemory, QueryTimeout, RequestInvalid, SqlInvalid, TidegateError
from tidegate.model.tables import TableKind
from tidegate.query.duckdb.engine import LakeQuery
from tidegate.query.duckdb.messages import pack_values, unpack_values
from tidegate.query.duckdb.session import QueryLimits
from tidegate.query.duckdb.worker import PART_BYTES
from tidegate.storage.lake.tables import Lake

# DuckDB looks for interrupts between its steps: each of these is one step.
LONG_CALLS = [
    "SELECT max(levenshtein(repeat('a', 60000 + x::INT), repeat('b', 60000))) FROM range(2000) t(x)",
    "SELECT sum(damerau_levenshtein(repeat('a', 9000), repeat('b', 9000 + x::INT))) FROM range(2000) t(x)",
]
LARGE_VALUES = [
    "SELECT printf('%999999999d', 1)",
    "SELECT length(repeat('abcdefgh', 100000000 + x::INT)) FROM range(3) t(x)",
    "SELECT list_sum(list_transform(range(60000000), lambda x: x * 2.5))",
    "SELECT string_agg(repeat('x', 1000000), '') FROM range(3000)",
]

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False)
    | st.text(alphabet=st.characters(exclude_categories=["Cs"]))
    | st.binary(max_size=20)
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.dates()
    | st.datetimes(timezones=st.none() | st.just(UTC)).map(lambda moment: moment.replace(fold=0)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.lists(values, max_size=6))
def test_values_arrive_with_their_types(sent: list[Any]) -> None:
    arrived = unpack_values(pack_values(sent))
    assert repr(arrived) == repr(sent)


@pytest.mark.parametrize("sql", LONG_CALLS)
def test_one_long_call_is_stopped_and_others_answer_meanwhile(root: Path, sql: str) -> None:
    query, quick = LakeQuery(Lake(root), QueryLimits(timeout_seconds=2.0)), LakeQuery(Lake(root))
    assert quick.run("SELECT 1").json_rows() == [[1]]
    caught: list[BaseException] = []

    def attack() -> None:
        try:
            query.run(sql)
        except TidegateError as problem:
            caught.append(problem)

    attackers = [threading.Thread(target=attack) for _ in range(3)]
    for attacker in attackers:
        attacker.start()
    answered = 0
    while any(attacker.is_alive() for attacker in attackers):
        assert quick.run("SELECT 1").json_rows() == [[1]]
        answered += 1
    assert [type(problem) for problem in caught] == [QueryTimeout] * 3
    assert answered > 1, "the others were held up as long as the attackers"
    for used in (query, quick):
        used.close()


@pytest.mark.parametrize("sql", LARGE_VALUES)
def test_one_large_value_ends_its_own_statement(root: Path, sql: str) -> None:
    query = LakeQuery(Lake(root), QueryLimits(memory_mb=128))
    with pytest.raises(QueryMemory) as caught:
        query.run(sql)
    assert caught.value.values == {"memory_mb": 128}
    assert query.run("SELECT 1").json_rows() == [[1]]
    query.close()


def test_an_answer_beyond_the_memory_is_refused_before_the_server_holds_it(root: Path) -> None:
    query = LakeQuery(Lake(root), QueryLimits(memory_mb=64, rows_max=100_000))
    with pytest.raises(RequestInvalid, match="64 MB"):
        query.run("SELECT repeat('x', 9000) AS cell FROM range(8000)")  # one batch
    query.close()


def test_an_error_that_repeats_a_large_value_is_cut(query: LakeQuery) -> None:
    with pytest.raises(SqlInvalid) as caught:
        query.run("SELECT CAST(repeat('x', 20000000) AS INTEGER)")
    assert "Could not convert" in caught.value.message
    assert len(caught.value.message) < 50_000


def doubled(first: str, step: str, times: int) -> str:
    """Return a short text: each of its queries has twice what the one before it has."""
    parts = [f"q0 AS (SELECT {first})"]
    parts += [f"q{n} AS (SELECT {step} FROM q{n - 1} a, q{n - 1} b)" for n in range(1, times + 1)]
    return f"WITH {', '.join(parts)} SELECT * FROM q{times}"


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        (doubled("1 AS x", "a.*, b.*", 14), "16,384 columns, 10,000 are allowed"),
        (doubled("1 AS x", "{'a': a.x, 'b': b.x} AS x", 17), "types with names of more than"),
    ],
)
def test_a_short_text_with_a_wide_answer_is_refused(root: Path, sql: str, said: str) -> None:
    query = LakeQuery(Lake(root), QueryLimits(timeout_seconds=120))
    with pytest.raises(SqlInvalid) as caught:
        query.run(sql)
    assert said in caught.value.message
    assert query.run(doubled("1 AS x", "a.*, b.*", 5)).json_rows() == [[1] * 32]
    query.close()


def test_a_large_cell_and_many_rows_arrive_whole(root: Path) -> None:
    query = LakeQuery(Lake(root), QueryLimits(rows_max=300_000))
    size = PART_BYTES * 2 + 5
    assert query.run(f"SELECT repeat('x', {size}) AS cell").json_rows() == [["x" * size]]
    answer = query.run("SELECT range AS n, (range % 7)::VARCHAR AS s FROM range(250000)")
    assert answer.row_count == 250_000
    assert answer.json_rows()[-1] == [249_999, str(249_999 % 7)]
    with pytest.raises(RequestInvalid, match="300,000 rows"):
        query.run("SELECT * FROM range(100000000)")
    query.close()


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT unnest(['a', 'b', 'a'])::ENUM('a', 'b', 'c') AS e", [["a"], ["b"], ["a"]]),
        ("SELECT 1 AS a, 2 AS a", [[1, 2]]),
        ("SELECT {'x': [1, 2]} AS s, MAP {'k': 1.5} AS m", [[{"x": [1, 2]}, {"k": "1.5"}]]),
        ("SELECT NULL AS n, 1 AS one WHERE false", []),
        (
            "SELECT range % 2 AS k, count(*) FROM range(30000) GROUP BY k ORDER BY k",
            [[0, 15_000], [1, 15_000]],
        ),
    ],
)
def test_every_shape_of_answer_arrives(query: LakeQuery, sql: str, rows: list[Any]) -> None:
    answer = query.run(sql)
    assert answer.json_rows() == rows
    assert answer.row_count == len(rows)


def test_enums_of_many_batches_keep_their_values(root: Path) -> None:
    query = LakeQuery(Lake(root), QueryLimits(rows_max=100_000))
    sql = "SELECT (['x', 'y', 'z'])[range % 3 + 1]::ENUM('x', 'y', 'z') AS e FROM range(50000)"
    assert query.run(sql).json_rows() == [["xyz"[number % 3]] for number in range(50_000)]
    query.close()


PARAMS: list[tuple[str, Any, Any]] = [
    ("?::DECIMAL(38, 2)", Decimal("123456789012345678901234567890.12"), "123456789012345678901234567890.12"),
    ("?::HUGEINT", 2**100, 2**100),
    ("?", date(2026, 2, 28), "2026-02-28"),
    ("?", datetime(2026, 2, 28, 1, 2, 3, 4, tzinfo=UTC), "2026-02-28T01:02:03.000004Z"),
    ("?", b"\x00\xff", "AP8="),
    ("?", "\x00é💡", "\x00é💡"),
    ("?", [1, None, 3], [1, None, 3]),
    ("?", {"a": [1.5]}, {"a": [1.5]}),
]


@pytest.mark.parametrize(("sql", "param", "shown"), PARAMS)
def test_parameters_mean_in_the_child_what_they_mean_here(
    query: LakeQuery, sql: str, param: Any, shown: Any
) -> None:
    assert query.run(f"SELECT {sql}", [param]).json_rows() == [[shown]]


def test_one_tenants_statements_are_in_no_process_of_another(tmp_path: Path) -> None:
    """Not even where they follow each other at once: what a library leaves in its memory stays with them."""
    first, second = (LakeQuery(Lake(tmp_path / name)) for name in ("first", "second"))
    pool = first._pool
    for query in (first, second, first, second):
        assert query.run("SELECT 'x'").json_rows() == [["x"]]
    owners = [child.owner for child in pool._idle]
    assert len([owner for owner in owners if owner == first._owner]) == 1
    assert len([owner for owner in owners if owner == second._owner]) == 1
    pids = [child.pid for child in pool._idle if child.owner in (first._owner, second._owner)]
    for query in (first, second):
        query.close()
    wait_gone(*pids)


def test_what_was_spilled_is_gone_with_its_statement(root: Path, tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    query = LakeQuery(Lake(root), QueryLimits(memory_mb=64, spill_path=spill, timeout_seconds=2.0))
    sql = (
        "SELECT count(*) FROM (SELECT range r, hash(range) h FROM range(3000000000) ORDER BY h) WHERE r >= 0"
    )
    with pytest.raises(QueryTimeout):
        query.run(sql)
    assert [path for path in spill.rglob("*") if path.is_file()] == []
    query.close()


@settings(max_examples=20)
@given(rows=st.lists(st.tuples(st.integers(0, 50), st.text("ab\x00é", max_size=5)), max_size=30))
def test_rows_of_tables_arrive_as_they_are(
    rows: list[tuple[int, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    bench = Bench(tmp_path_factory.mktemp("rows"))
    table = bench.create("chat.messages", TableKind.SHARED, {"id": "BIGINT", "text": "TEXT"}, ["id"])
    known = dict(rows)
    bench.insert(table, list(known.items()))
    shown = sorted([key, text] for key, text in known.items())
    assert bench.rows("SELECT id, text FROM chat.messages ORDER BY id") == shown
    expected = sorted([key, text] for key, text in known.items() if key > 20 and len(text) >= 2)
    found = bench.rows("SELECT * FROM chat.messages WHERE id > 20 AND length(text) >= 2 ORDER BY id")
    assert found == expected
    bench.close()
