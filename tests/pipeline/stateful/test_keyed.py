"""Keyed operators on Spark: restarts, another parallelism, savepoints, TTL, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException

from tests.pipeline.stateful.keyed_jobs import (
    Counts,
    Faulty,
    Forgetful,
    Idle,
    Labels,
    NewLabels,
    Shop,
    Tally,
    Totals,
    many_rows,
)
from tidegate.checkpoint.savepoints import savepoint
from tidegate.checkpoint.settings import StateSettings
from tidegate.errors import CheckpointUnusable, NotFound, StateInvalid, StateMismatch
from tidegate.model.clock import SystemClock
from tidegate.pipeline.stateful.keyed import keyed_rows, process
from tidegate.pipeline.stateful.keyed_options import KeyedOptions
from tidegate.pipeline.worker.failures import full_reason

pytestmark = pytest.mark.spark


@pytest.fixture
def shop(spark: Any, tmp_path: Path) -> Shop:
    return Shop(spark, tmp_path / "shop")


def totals(shop: Shop, **options: Any) -> Any:
    given: dict[str, Any] = {"name": "totals", "key": "user", "operator": Totals(), "partitions": 2}
    given |= {"checkpoint": shop.checkpoint, "local_dir": shop.folder / "local"}
    return process(shop.stream(), **(given | options))


def test_restart_continues_with_the_state_of_the_last_batch(shop: Shop) -> None:
    shop.add(("a", 1, 0), ("b", 2, 1), (None, 3, 2), ("a", 1, 3))
    shop.run(totals(shop))
    shop.add(("a", 1, 4), (None, 3, 5))
    shop.run(totals(shop))
    assert shop.batches() == shop.expected()
    assert shop.batches()[1] == [["a", 3, 3], [None, 2, 6]]


@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
def test_another_parallelism_at_restart_gives_the_same_results(shop: Shop, backend: str) -> None:
    """Case 10: 1 → 3 → 2; a different max_parallelism is refused."""
    for number, partitions in enumerate((1, 3, 2)):
        shop.add(*many_rows(number, 60))
        shop.run(totals(shop, partitions=partitions, backend=backend))
    shop.add(*many_rows(9, 60))
    shop.run(totals(shop, partitions=None, backend=backend))
    assert shop.batches() == shop.expected()
    state = shop.checkpoint / "state" / "totals"
    assert sorted(path.name for path in state.glob("e*/*/v3.head")) == ["v3.head"] * 2
    with pytest.raises(StateMismatch, match="max_parallelism"):
        totals(shop, max_parallelism=64, backend=backend)


def test_batch_without_checkpoint_forgets_its_state(spark: Any) -> None:
    rows = spark.createDataFrame([("a",), ("b",), ("a",), (None,)], "user string")
    for _ in range(2):
        counted = process(rows, name="counts", key="user", operator=Counts(), partitions=3)
        assert sorted(map(tuple, counted.collect()), key=repr) == [("a", 2), ("b", 1), (None, 1)]


def test_batch_with_checkpoint_goes_on_where_the_last_one_ended(spark: Any, tmp_path: Path) -> None:
    rows = spark.createDataFrame([("a",), ("b",), ("a",)], "user string")

    def count() -> Any:
        return process(rows, name="counts", key="user", operator=Counts(), checkpoint=tmp_path, partitions=2)

    first, other = count(), count()
    # Evaluated twice, counted once.
    for _ in range(2):
        assert sorted(map(tuple, first.collect())) == [("a", 2), ("b", 1)]
    with pytest.raises(PythonException, match="Two batch jobs were planned on this checkpoint at once"):
        other.collect()
    assert sorted(map(tuple, count().collect())) == [("a", 4), ("b", 2)]


def test_batch_that_was_done_in_part_is_left_behind(spark: Any, tmp_path: Path) -> None:
    rows = spark.range(40).selectExpr("cast(id as string) as user")

    def count() -> Any:
        return process(rows, name="counts", key="user", operator=Counts(), checkpoint=tmp_path, partitions=4)

    assert len(count().limit(1).collect()) == 1  # stops before it has asked every partition
    assert {row.n for row in count().collect()} == {1}
    assert {row.n for row in count().collect()} == {2}


def test_several_key_columns_with_any_names(spark: Any) -> None:
    rows = spark.createDataFrame([("a", 1), ("a", 1), ("a", 2), (None, None)], "`the user` string, `a.b` int")
    counted = process(rows, name="pairs", key=["the user", "a.b"], operator=Tally(), partitions=2)
    assert sorted(row.n for row in counted.collect()) == [1, 1, 2]


def test_state_expires_by_event_time(shop: Shop) -> None:
    """Case 6: at exactly ttl it is still there, after it it is gone."""
    shop.add(("a", 1, 0), ("b", 1, 0))
    shop.add(("a", 1, 10), ("b", 1, 11))
    shop.run(totals(shop, name="forgetful", operator=Forgetful(), event_time="at"))
    assert shop.batches() == [[["a", 1, 0], ["b", 1, 0]], [["a", 2, 0], ["b", 1, 0]]]


def test_new_checkpoint_begins_from_a_savepoint(shop: Shop, tmp_path: Path, spark: Any) -> None:
    shop.add(*many_rows(1, 50))
    shop.run(totals(shop))
    savepoint.make(str(shop.checkpoint), "totals", "before", SystemClock())
    other = Shop(spark, tmp_path / "other")
    other.rows = []
    other.add(*many_rows(2, 50))
    path = savepoint.path_of(str(shop.checkpoint), "totals", "before")
    other.run(totals(other, savepoint=path, partitions=3))
    shop.rows += other.rows
    assert other.batches() == shop.expected()[1:]


def test_checkpoint_of_another_query_is_refused_in_the_first_batch(
    shop: Shop, tmp_path: Path, spark: Any
) -> None:
    shop.add(("a", 1, 0))
    other = Shop(spark, tmp_path / "other")
    other.add(("a", 1, 0))
    other.run(totals(other, partitions=1))
    with pytest.raises(StreamingQueryException, match="it belongs to the query"):
        shop.run(totals(shop, checkpoint=other.checkpoint, partitions=1))
    # Nothing was written there.
    other.add(("a", 1, 1))
    other.run(totals(other))
    assert other.batches() == other.expected()


def test_two_operators_of_one_query_keep_their_own_state(shop: Shop) -> None:
    shop.add(("a", 1, 0), ("a", 1, 1), ("b", 2, 1))
    shop.add(("a", 1, 2))
    second: dict[str, Any] = {
        "name": "counts",
        "key": "user",
        "operator": Counts(),
        "local_dir": shop.folder / "local",
    }
    shop.run(process(totals(shop), checkpoint=shop.checkpoint, partitions=3, **second))
    assert shop.batches() == [[["a", 2], ["b", 1]], [["a", 3]]]


def test_two_operators_of_one_name_in_a_row_are_refused_before_any_row(
    shop: Shop, spark: Any, tmp_path: Path
) -> None:
    totals(shop).createOrReplaceTempView("totals_view")
    with pytest.raises(StateInvalid, match="operator of the same name"):
        process(spark.table("totals_view"), "totals", "user", Counts(), checkpoint=shop.checkpoint)
    # A name that only begins like it is another one, and so is the same name elsewhere.
    process(spark.table("totals_view"), "total", "user", Counts(), checkpoint=shop.checkpoint)
    rows = spark.createDataFrame([("a",)], "user string")
    for folder in ("first", "second"):
        rows = process(rows, "counts", "user", Counts(), checkpoint=tmp_path / folder)


def test_two_operators_of_one_name_side_by_side_give_nothing_out(shop: Shop) -> None:
    shop.add(*many_rows(1, 20))
    # Spark says it while it plans, where it is told of both; the tasks say it otherwise.
    refused = "two operators of one query have this name|metric name is not unique: tidegate.totals"
    with pytest.raises((AnalysisException, StreamingQueryException), match=refused):
        shop.run(totals(shop).repartition(1).union(totals(shop).repartition(1)))
    assert not shop.batches()
    # One operator whose output is used twice is one.
    out = totals(shop)
    shop.run(out.filter("n = 1").repartition(1).union(out.filter("n > 1").repartition(1)))
    assert shop.batches() == shop.expected()


def test_stream_and_batch_job_do_not_share_a_checkpoint(shop: Shop, spark: Any, tmp_path: Path) -> None:
    shop.add(("a", 1, 0))
    shop.run(totals(shop, name="counts", operator=Counts()))
    rows = spark.createDataFrame([("a",)], "user string")
    with pytest.raises(StateMismatch, match="it belongs to a streaming query"):
        process(rows, "counts", "user", Counts(), checkpoint=shop.checkpoint)
    process(rows, "counts", "user", Counts(), checkpoint=tmp_path, partitions=1).collect()
    with pytest.raises(StateMismatch, match="it belongs to a batch job") as refused:
        totals(shop, name="counts", operator=Counts(), checkpoint=tmp_path)
    assert "savepoint" in refused.value.hint


def test_classes_that_travel_by_value_keep_what_has_a_default(spark: Any, tmp_path: Path) -> None:
    rows = spark.createDataFrame([("a",)], "user string")

    def label(operator: Any) -> list[Any]:
        out = process(rows, "labels", "user", operator, checkpoint=tmp_path, partitions=1)
        return [row.text for row in out.collect()]

    assert label(Labels()) == ["a EUR ['none']"]
    with pytest.raises(PythonException, match="missing required field `size`"):
        label(NewLabels())


def test_timers_that_are_left_at_the_end_of_a_batch_job_come_all(spark: Any) -> None:
    """The event time is a bigint of milliseconds here."""
    rows = spark.createDataFrame(
        [("a", 1_000, 10_000), ("a", 500, 20_000), ("b", 7, 90_000)], "user string, amount long, ms long"
    ).selectExpr("*", "timestamp_millis(ms) as at")
    out = process(rows, name="idle", key="user", operator=Idle("event"), event_time="ms", partitions=2)
    assert sorted(map(tuple, out.collect())) == [("a", 2, 20_500), ("b", 1, 90_007)]


def test_ordered_rows_come_by_event_time(spark: Any) -> None:
    rows = spark.createDataFrame(
        [("a", n * 10, n) for n in (3, 1, 4, 2, 0)], "user string, amount long, at long"
    )
    rows = rows.selectExpr("user", "amount", "timestamp_seconds(at) as at").repartition(3)
    out = process(rows, "t", "user", Totals(), "at", None, ordered=True, partitions=1)
    assert [row.total for row in out.collect()] == [0, 10, 30, 60, 100]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"key": "nobody"}, "no column 'nobody'"),
        ({"key": []}, "has no key"),
        ({"lateness": "soon"}, "its lateness is no duration"),
        ({"ticks": "-1 s"}, "its ticks is no duration"),
        ({"name": "0"}, "begins with a letter"),
        ({"name": "a/b"}, "begins with a letter"),
        ({"checkpoint": None}, "needs checkpoint="),
        ({"checkpoint": ""}, "checkpoint is empty"),
        ({"dead_letters": " "}, "dead_letters is empty"),
        ({"event_time": "user"}, "must be a timestamp, or a bigint"),
        ({"snapshot_every": 0}, "snapshot_every is 0"),
        ({"backend": "redis"}, "'rocksdb' or 'heap'"),
        ({"event_time": "never"}, "no column 'never'"),
        ({"partitions": 129}, "partitions is 129"),
        ({"partitions": 0}, "partitions is 0"),
        ({"max_parallelism": 1 << 20}, "max_parallelism is"),
    ],
)
def test_what_cannot_run_is_refused_before_any_row(shop: Shop, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(StateInvalid, match=reason):
        totals(shop, **options)
    assert not shop.checkpoint.exists()


@pytest.mark.parametrize("scheme", ["s3a", "hdfs"])
def test_checkpoint_that_is_no_folder_is_refused(shop: Shop, scheme: str) -> None:
    with pytest.raises(CheckpointUnusable, match=f"not '{scheme}:'"):
        totals(shop, checkpoint=f"{scheme}://bucket/checkpoint")


@pytest.mark.parametrize("moved", ["coalesce", "union"])
def test_steps_that_move_partitions_are_noticed(shop: Shop, moved: str) -> None:
    shop.add(*many_rows(1, 50))
    out = totals(shop)
    spare = totals(shop, name="spare")
    with pytest.raises(StreamingQueryException, match="repartition"):
        shop.run(out.coalesce(1) if moved == "coalesce" else spare.union(out))


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("name", (None, 5, "")),
        ("key", (None, 5, {"user"}, b"user", ["user", 5])),
        ("event_time", (5, ["at"])),
        ("partitions", ("2", 1.5, True)),
        ("max_parallelism", ("x", 1.0, True)),
        ("snapshot_every", ("3", 1.5)),
        ("ordered", ("no", 1, None)),
        ("rocks", ("x", {})),
        ("checkpoint", (5, "", b"x")),
        ("savepoint", (5, " ")),
        ("dead_letters", (5,)),
        ("local_dir", (5, "")),
        ("df", (None, "orders")),
    ],
)
def test_arguments_of_another_type_are_refused_by_their_name(option: str, wrong: tuple[Any, ...]) -> None:
    usual: dict[str, Any] = {"df": None, "name": "t", "key": "user", "operator": Totals()}
    for value in wrong:
        with pytest.raises(StateInvalid) as refused:
            process(**(usual | {option: value}))
        expected = "takes a DataFrame" if option == "df" else f"{option} is "
        assert expected in refused.value.message


@pytest.mark.parametrize("option", ["lateness", "ticks"])
def test_lengths_of_time_are_texts_or_timedeltas(shop: Shop, option: str) -> None:
    totals(shop, **{option: timedelta(seconds=5)})
    for wrong in (5, True, timedelta(seconds=-1)):
        with pytest.raises(StateInvalid, match=f"its {option} is"):
            totals(shop, **{option: wrong})


def test_names_of_columns_are_found_as_spark_finds_them(spark: Any) -> None:
    rows = spark.sql("select 'a' as User, 3L as amount, now() as At")
    out = process(rows, "t", "USER", Tally(), "at", None, partitions=1)
    assert [tuple(row) for row in out.collect()] == [(1,)]
    with pytest.raises(StateInvalid, match="'User' and 'USER'; rename one"):
        process(rows.selectExpr("*", "1 as USER"), "t", "amount", Tally())


def test_event_without_its_column_is_refused_with_the_columns_that_are_there(spark: Any) -> None:
    rows = spark.sql("select 'a' as user, 3L as amount, 1 as other")
    with pytest.raises(StateInvalid, match=r"field 'at' of Paid .*'user', 'amount', 'other'"):
        process(rows, "t", "user", Totals())


def test_operator_that_cannot_be_sent_is_refused_in_words(shop: Shop) -> None:
    operator = Totals()
    operator.lock = Lock()  # type: ignore[attr-defined]
    with pytest.raises(StateInvalid, match=r"cannot pickle.*make what cannot in open\(ctx\)"):
        totals(shop, operator=operator)


def test_another_backend_is_refused_when_process_is_called(shop: Shop) -> None:
    """A new checkpoint that begins from a savepoint is refused alike."""
    rows = shop.spark.sql("select 'a' as user, 3L as amount, now() as at")
    local = str(shop.folder / "local")
    settings = StateSettings(local_root=local, snapshot_every_batches=1, snapshot_in_background=False)
    options = KeyedOptions(
        name="totals", key=("user",), checkpoint=str(shop.checkpoint), partitions=1, settings=settings
    )
    keyed_rows(rows, Totals(), options, SystemClock()).collect()
    made = savepoint.make(shop.checkpoint, "totals", "kept", SystemClock())
    kept = savepoint.path_of(shop.checkpoint, "totals", made.name)

    def begun(**given: Any) -> None:
        process(rows, "totals", "user", Totals(), **{"checkpoint": shop.checkpoint} | given)

    begun(backend="rocksdb")
    with pytest.raises(
        StateMismatch, match="its state is kept by backend 'rocksdb', and the code has 'heap'"
    ):
        begun(backend="heap")
    with pytest.raises(StateMismatch, match=f"the savepoint {kept} is kept by backend 'rocksdb'"):
        begun(backend="heap", checkpoint=shop.folder / "new", savepoint=kept)
    with pytest.raises(NotFound, match=r"^There is no savepoint in .*nosuch\.$"):
        begun(checkpoint=shop.folder / "new", savepoint=shop.folder / "nosuch")


def test_row_that_fails_is_told_with_the_place_in_the_operators_file_alone(spark: Any) -> None:
    """The first line is all that lists of pipelines show."""
    rows = spark.sql("select 'a' as user, 13L as amount, now() as at")
    with pytest.raises(PythonException) as caught:
        process(rows, "totals", "user", Faulty("", "always"), partitions=1).collect()
    first, second = full_reason(caught.value).splitlines()[:2]
    assert first.startswith("Operator 'totals' failed on key a: RuntimeError: told to fail (")
    assert "keyed_jobs.py:" in first
    assert "dead_rows.py" not in first
    assert second.startswith("Hint: Fix the operator or the row")


def test_run_in_foreach_batch_may_be_tried_again(shop: Shop, tmp_path: Path) -> None:
    """Case 9: the second try of a sink gets the rows of the first."""
    shop.add(*many_rows(1, 20))
    given: dict[str, Any] = {"checkpoint": tmp_path / "jobs", "local_dir": tmp_path / "local"}
    tries: list[list[Any]] = []

    def write(df: Any, batch: int) -> None:
        for _ in range(2):
            out = process(df, "inner", "user", Counts(), run=str(batch), partitions=1, **given)
            tries.append(sorted(map(tuple, out.collect())))

    shop.run(shop.stream(), write)
    assert tries[0] == tries[1] != []
