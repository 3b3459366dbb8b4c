"""Deduplication on Spark: what stays, what passes through, restarts, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException, SparkRuntimeException, StreamingQueryException

import tidegate.spark as tide
from tests.pipeline.stateful.dedup_jobs import expected_outcomes, random_rows, unique_of
from tests.pipeline.stateful.keyed_jobs import Counts, Shop
from tidegate.checkpoint.inspect import describe
from tidegate.errors import StateInvalid, StateMismatch
from tidegate.pipeline.stateful.deduplicate import deduplicate

pytestmark = pytest.mark.spark

RETENTION_S = 100


@pytest.fixture
def shop(spark: Any, tmp_path: Path) -> Shop:
    return Shop(spark, tmp_path / "shop")


def unique(shop: Shop, rows: Any = None, **options: Any) -> Any:
    given: dict[str, Any] = {"name": "d", "on": "user", "event_time": "at", "retention": f"{RETENTION_S} s"}
    given |= {"checkpoint": shop.checkpoint, "partitions": 2, "local_dir": shop.folder / "local"}
    return deduplicate(shop.stream() if rows is None else rows, **(given | options))


def plain(df: Any, *more: str) -> Any:
    return df.selectExpr("user", "amount", "unix_seconds(at)", *more)


def timed(spark: Any, rows: list[tuple[Any, ...]], columns: str = "user string, amount long, at long") -> Any:
    return spark.createDataFrame(rows, columns).withColumn("at", tide_seconds("at"))


def tide_seconds(column: str) -> Any:
    from pyspark.sql import functions as sql

    return sql.timestamp_micros((sql.col(column) * 1_000_000).cast("bigint"))


def test_first_to_arrive_wins_over_restarts_and_another_parallelism(shop: Shop) -> None:
    """Cases 18 and 19: near and far, out of order, on the boundary; expired segments go as folders."""
    batches = [random_rows(seed, 120) for seed in range(4)]
    batches[2] += [("edge", 1, 400)]
    batches[3] += [("edge", 2, 400 + RETENTION_S), ("edge", 3, 399 + RETENTION_S)]
    batches.append([("far", 0, 2_000), ("k1", 1, 2_000 - RETENTION_S)])
    batches.append([("far", 1, 2_000), ("k1", 2, 2_001), ("k2", 3, 1_899), ("k2", 4, 1_900)])
    for number, partitions in enumerate((2, 3, 1)):
        for rows in batches[2 * number : 2 * number + 2]:
            shop.add(*rows)
        shop.run(plain(unique(shop, partitions=partitions, interval="200 s")))
    expected = expected_outcomes(batches, RETENTION_S)
    assert [row for batch in expected for row in batch if row[3] != "unique"]
    assert shop.batches() == unique_of(expected)
    # Times below 1,900 s no longer count.
    folders = {path.name for path in (shop.folder / "local").glob("*/d/e2/*/*/d.*")}
    assert folders == {"d.1800000", "d.2000000"}
    (state,) = describe(shop.checkpoint)
    commit = state.partitions[0].commit
    assert commit is not None
    outcomes = [row[3] for row in expected[-1]]
    assert {name: commit.counts[name] for name in ("unique", "duplicate", "late")} == {
        name: outcomes.count(name) for name in ("unique", "duplicate", "late")
    }


def test_outcome_keeps_every_row_and_spark_counts_them(shop: Shop) -> None:
    batches = [random_rows(seed, 120) for seed in range(3)]
    for rows in batches:
        shop.add(*rows)
    out = unique(shop, outcome="o", exact_keys=True)
    query = shop.start(plain(out, "o", "unix_seconds(o_first_time)"), availableNow=True)
    query.awaitTermination()
    expected = expected_outcomes(batches, RETENTION_S)
    assert shop.batches() == expected
    counted = query.recentProgress[2]["observedMetrics"]
    assert counted["tidegate.d"].asDict() == {"rows": len(batches[2])}
    outcomes = [row[3] for row in expected[2]]
    assert counted["tidegate.d.outcome"].asDict() == {
        name: outcomes.count(name) for name in ("unique", "duplicate", "late")
    }


def test_two_in_one_query_and_a_watermark_behind(shop: Shop) -> None:
    """Each has its name; an aggregate behind them goes by the watermark from before them."""
    rows = [("a", 1, 10), ("a", 1, 11), ("a", 2, 12), ("b", 2, 13)]
    shop.add(*rows)
    shop.add(("z", 9, 500))
    first = unique(shop, shop.stream("1 second"), name="pairs", on=["user", "amount"])
    second = unique(shop, first, name="amounts", on="amount")
    counts = second.groupBy("user", "at").count().selectExpr("user", "unix_seconds(at)", "count")
    shop.run(counts)
    given = sorted(row for batch in shop.batches() for row in batch)
    assert given == [["a", 10, 1], ["a", 12, 1]]
    assert [state.operator for state in describe(shop.checkpoint)] == ["amounts", "pairs"]


def test_columns_pass_through_whatever_they_are(spark: Any) -> None:
    """Names with dots and backticks, names of ours, two columns of one name, every type, nullability."""
    rows = spark.sql(
        """select 'k' as `a.b``c`, timestamp_ntz'2026-01-01 00:00:00.000001' as at, 1 as __tidegate_group,
        2 as __tidegate_h1, 3 as c0, 4 as C0, named_struct('x', array(map('a', 1.5BD))) as nested,
        X'00ff' as bytes, float('nan') as f, cast(null as void) as nothing, true as flag,
        date'2026-01-01' as day, parse_json('{"a": [1]}') as variant, interval '1' day as span,
        'x' collate UTF8_LCASE as folded"""
    )
    rows = rows.unionAll(rows)
    out = deduplicate(rows, "d", "a.b`c", "at", "1 s", partitions=2)
    assert out.schema == rows.schema
    (given,), (wanted,) = out.collect(), rows.limit(1).collect()
    assert repr(given) == repr(wanted)
    marked = deduplicate(rows, "d", "a.b`c", "at", "1 s", partitions=2, outcome="o.k")
    assert marked.columns == [*rows.columns, "o.k", "o.k_first_time"]
    assert sorted(map(repr, (tuple(row)[-2:] for row in marked.collect()))) == [
        "('duplicate', datetime.datetime(2026, 1, 1, 0, 0, 0, 1))",
        "('unique', None)",
    ]


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz", "bigint"])
def test_retention_is_exact_to_the_microsecond(spark: Any, kind: str) -> None:
    """Case 18: exactly the retention apart is no duplicate; a microsecond less is one."""
    step = 1_000 if kind == "bigint" else 1
    times = {"edge": (0, 10_000_000), "near": (0, 10_000_000 - step), "before": (10_000_000 - step, 0)}
    rows = [(key, at) for key, pair in times.items() for at in pair]
    df = spark.createDataFrame(rows, "key string, us long")
    at = "us div 1000" if kind == "bigint" else f"cast(timestamp_micros(us) as {kind})"
    out = deduplicate(df.selectExpr("*", f"{at} as at"), "d", "key", "at", "10 s", partitions=1)
    assert sorted((row.key, row.us) for row in out.collect()) == [
        ("before", 0),
        ("edge", 0),
        ("edge", 10_000_000),
        ("near", 0),
    ]


def test_batch_job_goes_on_where_the_last_one_ended(spark: Any, tmp_path: Path) -> None:
    """Also with an offset, by which rows of one time are ordered, and with the content as the key."""
    options: dict[str, Any] = {"checkpoint": tmp_path, "offset": "amount", "partitions": 2, "interval": "1 s"}
    options |= {"expected_rate": 1_000.0, "local_dir": tmp_path / "local"}
    key = tide.content_hash("user", "user2")

    def run(*rows: tuple[Any, ...]) -> list[Any]:
        df = timed(spark, list(rows), "user string, user2 string, amount long, at long")
        out = deduplicate(df, "d", key, "at", "10 s", **options)
        return sorted(row.amount for row in out.collect())

    assert run(("a", None, 3, 5), ("a", None, 2, 5), ("a", None, 1, 6), (None, "a", 4, 5)) == [2, 4]
    assert run(("a", None, 5, 14), ("a", None, 6, 15), (None, "a", 7, 4), ("a", "a", 8, 1)) == [6, 8]
    assert run() == []
    assert run(("a", None, 9, 24), (None, "a", 10, 15)) == [10]


def test_batch_job_that_failed_behind_is_run_again_under_its_name(spark: Any, tmp_path: Path) -> None:
    """All partitions are published, and no row has arrived: without its name they would be duplicates."""
    df = timed(spark, [(f"u{number}", number, number) for number in range(20)])

    def job(run: str | None, rows: Any = df, partitions: int = 2) -> Any:
        given: dict[str, Any] = {"checkpoint": tmp_path, "local_dir": tmp_path / "local"}
        return deduplicate(rows, "d", "user", "at", "1 h", partitions=partitions, run=run, **given)

    def amounts(*args: Any, **more: Any) -> list[int]:
        return sorted(row.amount for row in job(*args, **more).collect())

    with pytest.raises(SparkRuntimeException, match="the sink fails"):
        # Behind a shuffle, so that all partitions are done before the first row gets there.
        job("monday").repartition(1).selectExpr("raise_error('the sink fails')").collect()
    assert amounts("monday") == list(range(20))
    # Published once, whoever asks.
    (state,) = describe(tmp_path)
    assert [one.commit and one.commit.batch for one in state.partitions] == [0, 0]
    assert amounts("monday", partitions=3) == list(range(20))
    assert amounts("monday", partitions=3) == list(range(20))
    assert amounts("tuesday", partitions=3) == []
    assert amounts("tuesday", partitions=3) == []
    with pytest.raises(StateMismatch, match="run 'monday' is done, and another run was done after it"):
        job("monday", partitions=3)
    (state,) = describe(tmp_path)
    assert [one.commit and one.commit.batch for one in state.partitions] == [1, 1, 1]


def test_other_rows_under_the_name_of_a_run_are_refused(spark: Any, tmp_path: Path) -> None:
    df = timed(spark, [("a", 1, 5)])
    given: dict[str, Any] = {"checkpoint": tmp_path, "local_dir": tmp_path / "local", "partitions": 1}
    assert len(deduplicate(df, "d", "user", "at", "1 h", run="monday", **given).collect()) == 1
    with pytest.raises(PythonException, match="rows the first time, and now"):
        deduplicate(df.unionAll(df), "d", "user", "at", "1 h", run="monday", **given).collect()


def test_run_of_an_operator_with_state_counts_once(spark: Any, tmp_path: Path) -> None:
    df = timed(spark, [("a", 1, 5), ("a", 2, 6), ("b", 3, 5)])

    def totals(run: str) -> list[Any]:
        given: dict[str, Any] = {"checkpoint": tmp_path, "local_dir": tmp_path / "local", "partitions": 2}
        out = tide.process(df, "counts", "user", Counts(), run=run, **given)
        return sorted(map(tuple, out.collect()))

    first = totals("monday")
    assert totals("monday") == first
    second = totals("tuesday")
    assert second != first
    with pytest.raises(StateMismatch, match="run 'monday' is done") as caught:
        totals("monday")
    assert "give it a name that is new" in caught.value.hint
    # The refusal left everything as it was.
    assert totals("tuesday") == second
    assert totals("wednesday") == [("a", 6), ("b", 3)]


@pytest.mark.parametrize("exact_keys", [False, True])
def test_keys_of_several_columns_and_expressions(spark: Any, exact_keys: bool) -> None:
    from pyspark.sql import functions as sql

    rows = [("A", None, 1), ("a", None, 2), (None, "a", 3), ("a", "", 4), (None, None, 5), (None, None, 6)]
    df = timed(spark, [(*row, 0) for row in rows], "one string, two string, n long, at long")
    on = [sql.lower("one"), "two"]
    out = deduplicate(df, "d", on, "at", "1 s", partitions=2, exact_keys=exact_keys, offset="n")
    assert sorted(row.n for row in out.collect()) == [1, 3, 4, 5]
    single = deduplicate(df, "d", sql.col("n") % 2, "at", "1 s", exact_keys=exact_keys, offset="n")
    assert sorted(row.n for row in single.collect()) == [1, 2]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"on": "nobody"}, "no column 'nobody'"),
        ({"on": []}, "has no key"),
        ({"on": ["user", "user"]}, "twice"),
        ({"on": ["user", 7]}, "columns, by their names"),
        ({"retention": "soon"}, "retention is no duration"),
        ({"retention": "1 month"}, "no fixed length"),
        ({"retention": "0 s"}, "more than nothing"),
        ({"retention": 100}, "write it as '100 days'"),
        ({"interval": "999 ms"}, "a second or more"),
        ({"retention": "100 days", "interval": "1 s"}, "give an interval of"),
        ({"event_time": "never"}, "no column 'never'"),
        ({"event_time": "user"}, "must be a timestamp, or a bigint"),
        ({"offset": "never"}, "no column 'never'"),
        ({"offset": "user"}, "cast it to bigint"),
        ({"outcome": ""}, "outcome is empty"),
        ({"outcome": "USER"}, "there is one"),
        ({"exact_keys": True, "on": tide.content_hash()}, "content hash is none"),
        ({"run": "monday"}, "run of a batch job"),
        ({"run": " "}, "run is ' '"),
        ({"run": 5}, "run is 5"),
        ({"checkpoint": None}, "needs checkpoint="),
        ({"partitions": 0}, "partitions is 0"),
        ({"name": "a b"}, "name"),
    ],
)
def test_what_cannot_run_is_refused_before_any_row(shop: Shop, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(StateInvalid, match=reason):
        unique(shop, **options)
    assert not shop.checkpoint.exists()


def test_expressions_that_are_no_key_are_refused_in_words(shop: Shop) -> None:
    from pyspark.sql import functions as sql

    for option, given, reason in (
        ("on", sql.col("*"), "not one column"),
        ("on", sql.col("nobody"), "UNRESOLVED_COLUMN.*nobody"),
        ("on", ["user", sql.explode(sql.array("user"))], "UNSUPPORTED_GENERATOR"),
        ("on", sql.count("user"), "MISSING_GROUP_BY|GROUP_BY"),
        ("event_time", sql.col("at"), "event_time is Column<'at'>; it is the name"),
        ("outcome", sql.col("o"), "outcome is Column"),
    ):
        with pytest.raises(StateInvalid, match=reason) as refused:
            unique(shop, **{option: given})
        assert "\n" not in refused.value.message
        assert "dedup.md" in refused.value.hint


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("name", (None, 5, "", "1a", "a.b", "a" * 64)),
        ("on", (None, 5, {"user"}, {"user": 1}, b"user")),
        ("event_time", (None, 5)),
        ("outcome", (5, True)),
        ("offset", (5,)),
        ("expected_rate", (float("inf"), float("nan"), 1e300, "5", True, 0, -1)),
        ("partitions", ("2", 1.5, True)),
        ("max_parallelism", ("x", 1.5)),
        ("snapshot_every", ("x", True)),
        ("checkpoint", (5, "", b"x")),
        ("savepoint", (5, " ")),
        ("local_dir", (5, "")),
        ("rocks", ("x", {})),
        ("exact_keys", ("yes", 1, None)),
        ("df", (None, "orders")),
    ],
)
def test_arguments_of_another_type_are_refused_by_their_name(option: str, wrong: tuple[Any, ...]) -> None:
    usual: dict[str, Any] = {"df": None, "name": "d", "on": "user", "event_time": "at", "retention": "1 s"}
    for value in wrong:
        with pytest.raises(StateInvalid) as refused:
            deduplicate(**(usual | {option: value}))
        expected = "takes a DataFrame" if option == "df" else f"{option} is "
        assert expected in refused.value.message


@pytest.mark.parametrize(
    ("columns", "options", "reason"),
    [
        ("1 as k, 'x' as o_first_time", {"outcome": "o"}, "o_first_time"),
        ("interval '1' month as k", {}, "cast it to string"),
        ("parse_json('1') as k", {}, "variant; cast it"),
        ("double(1) as k", {"exact_keys": True}, "cast it to decimal"),
        ("struct(1 as x) as k", {"exact_keys": True}, "name its fields"),
        ("1 as k, 2 as k", {}, "more than one column 'k'"),
        ("1 as k, now() as at", {}, "more than one column is named 'at'"),
    ],
)
def test_columns_that_cannot_be_are_named(
    spark: Any, columns: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(StateInvalid, match=reason):
        deduplicate(spark.sql(f"select {columns}, now() as at"), "d", "k", "at", "1 s", **options)


def test_names_of_columns_are_found_as_spark_finds_them(spark: Any) -> None:
    """Case 21: also where another column differs by upper case alone, which then is no key."""
    rows = spark.sql("select 'a' as Id, 'b' as x, 'c' as X, 1L as n, now() as At")
    assert deduplicate(rows, "d", "ID", "at", timedelta(seconds=1), offset="N").columns == rows.columns
    assert deduplicate(rows.unionAll(rows), "d", "id", "at", "1 s").count() == 1
    for on in ("x", tide.content_hash()):
        with pytest.raises(StateInvalid, match="more than one column 'x'"):
            deduplicate(rows, "d", on, "At", "1 s")


def test_other_start_than_the_first_is_refused(spark: Any, tmp_path: Path) -> None:
    """The interval, the key and how it is kept are fixed; the retention may change beside its interval."""
    df = timed(spark, [("a", 1, 50)])

    def run(**options: Any) -> list[Any]:
        given: dict[str, Any] = {"on": "user", "retention": "10 min", "partitions": 1}
        given |= {"checkpoint": tmp_path, "local_dir": tmp_path / "local"}
        return list(deduplicate(df, "d", event_time="at", **(given | options)).collect())

    assert len(run()) == 1
    for options, reason in (
        ({"on": "amount"}, "its key is"),
        ({"on": tide.content_hash("user")}, "sha256"),
        ({"exact_keys": True}, "exact"),
        ({"offset": "amount"}, "without offsets"),
        ({"retention": "20 min"}, "interval='5 min'"),
    ):
        with pytest.raises(StateMismatch, match=reason):
            run(**options)
    assert run(retention="20 min", interval="5 min") == []
    with pytest.raises(StateMismatch):
        tide.process(df, "d", "user", Counts(), checkpoint=tmp_path)


def test_names_that_two_have_and_steps_that_move_partitions_are_refused(shop: Shop) -> None:
    with pytest.raises(StateInvalid, match="an operator of the same name"):
        unique(shop, unique(shop), on="amount")
    shop.add(*random_rows(1, 50))
    with pytest.raises(StreamingQueryException, match="repartition"):
        shop.run(plain(unique(shop).coalesce(1)))
