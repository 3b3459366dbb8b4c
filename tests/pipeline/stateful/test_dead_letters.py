"""Dead letters: each batch of a partition once, whoever writes beside it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.checkpoint.keys.key_groups import instance_of
from tests.pipeline.stateful.keyed_jobs import Faulty
from tidegate.checkpoint.backends.heap import HeapFactory
from tidegate.checkpoint.epochs import NONE_SEEN
from tidegate.checkpoint.keys.codec import KeyType, StateKeyCodec
from tidegate.checkpoint.settings import StateSettings
from tidegate.errors import CheckpointUnusable
from tidegate.model.clock import SystemClock
from tidegate.pipeline.stateful.dead_letters import DEAD_LETTER_SCHEMA, write_dead_letters
from tidegate.pipeline.stateful.keyed_task import KeyedTask
from tidegate.pipeline.stateful.spark_log import PlannedBatch, SparkTask
from tidegate.pipeline.stateful.task_context import StatefulTaskContext
from tidegate.state.operator_plan import plan_operator
from tidegate.state.runtime.chunks import GROUP_COLUMN
from tidegate.state.schema.schema import SchemaRequest

AT = datetime(2026, 1, 1, tzinfo=UTC)
MAX_PARALLELISM = 128
# Of two instances it is with the second, of three with the third.
BAD_USER = "user-7"


def letters(partition: int, batch: int, count: int = 2) -> list[pa.RecordBatch]:
    rows = [
        {
            **{"operator": "sessions", "partition": partition, "batch": batch, "key": "ada"},
            **{"reason": f"ValueError: number {number}", "row": '{"n": 1}', "at": AT},
        }
        for number in range(count)
    ]
    return [pa.RecordBatch.from_pylist(rows, DEAD_LETTER_SCHEMA)]


def stored(path: Path) -> list[tuple[int, int, str]]:
    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    return sorted((row["partition"], row["batch"], row["reason"]) for row in rows)


def test_a_batch_that_is_written_again_is_there_once(tmp_path: Path) -> None:
    table = tmp_path / "a folder of bad rows"
    for _ in range(3):
        write_dead_letters(str(table), "query.sessions", 0, 7, letters(0, 7))
    write_dead_letters(str(table), "query.sessions", 1, 7, letters(1, 7))
    write_dead_letters(str(table), "query.sessions", 0, 8, letters(0, 8, count=1))
    assert [row[:2] for row in stored(table)] == [(0, 7), (0, 7), (0, 8), (1, 7), (1, 7)]


def test_partitions_that_write_at_once_all_get_through(tmp_path: Path) -> None:
    table = tmp_path / "dead"
    failures: list[BaseException] = []

    def write(partition: int) -> None:
        try:
            for batch in range(4):
                write_dead_letters(str(table), "query.sessions", partition, batch, letters(partition, batch))
        except BaseException as problem:
            failures.append(problem)
            raise

    threads = [threading.Thread(target=write, args=(partition,)) for partition in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(stored(table)) == 4 * 4 * 2


def test_nothing_is_written_where_no_row_failed(tmp_path: Path) -> None:
    write_dead_letters(str(tmp_path / "dead"), "query.sessions", 0, 0, [])
    assert not (tmp_path / "dead").exists()


def test_a_table_of_something_else_is_refused_by_its_path(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"n": [1]}))
    with pytest.raises(CheckpointUnusable, match="dead letters") as refused:
        write_dead_letters(str(tmp_path), "query.sessions", 0, 0, letters(0, 0))
    assert str(tmp_path) in str(refused.value)


def test_attempts_at_one_batch_at_once_write_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other attempt commits after this one has looked, and before it writes."""
    table = tmp_path / "dead"
    write_dead_letters(str(table), "query.sessions", 0, 6, letters(0, 6))
    look, others = DeltaTable.transaction_version, [7]

    def looked_before(self: DeltaTable, writer: str) -> int | None:
        found: int | None = look(self, writer)
        if others:
            write_dead_letters(str(table), "query.sessions", 0, others.pop(), letters(0, 7))
        return found

    monkeypatch.setattr(DeltaTable, "transaction_version", looked_before)
    write_dead_letters(str(table), "query.sessions", 0, 7, letters(0, 7))
    assert [row[:2] for row in stored(table)] == [(0, 6), (0, 6), (0, 7), (0, 7)]


def rows_of(task: KeyedTask, partition: int) -> pa.RecordBatch:
    """Return the rows of an instance: of each user one, of whom the operator fails on one."""
    users = [f"user-{number}" for number in range(40)]
    key = pa.array(users)
    groups = pa.array(StateKeyCodec(task.schema_request.key).groups_of([key], MAX_PARALLELISM), pa.int32())
    rows = pa.RecordBatch.from_pydict(
        {
            "user": key,
            "amount": pa.array([13 if user == BAD_USER else 1 for user in users]),
            "at": pa.array([AT] * len(users), pa.timestamp("us", tz="UTC")),
            GROUP_COLUMN: groups,
        }
    )
    mine = [
        instance_of(group, task.context.parallelism, MAX_PARALLELISM) == partition
        for group in groups.to_pylist()
    ]
    return rows.filter(pa.array(mine))


def totals(folder: Path, parallelism: int, seen: int) -> KeyedTask:
    operator = Faulty("", "always")
    key = KeyType.from_arrow(("user",), pa.schema([("user", pa.string())]), operator="totals")
    return KeyedTask(
        operator=operator,
        schema_request=SchemaRequest("totals", key, MAX_PARALLELISM, plan_operator(operator, "totals").specs),
        context=StatefulTaskContext(
            operator="totals",
            parallelism=parallelism,
            max_parallelism=MAX_PARALLELISM,
            settings=StateSettings(backend=HeapFactory(), local_root=str(folder / "local"), keep_open=False),
            checkpoint=str(folder / "checkpoint"),
            seen_epoch=seen,
            planned=PlannedBatch(0, "plan", None, 0),
        ),
        dead_letters=str(folder / "dead"),
    )


def test_tasks_that_outlive_their_run_write_none_of_a_batch_that_others_did_anew(tmp_path: Path) -> None:
    """Spark does not wait for tasks: the last one publishes when three instances have done the batch."""
    old, new = totals(tmp_path, 2, NONE_SEEN), totals(tmp_path, 3, 0)

    def run(task: KeyedTask, partition: int, rows: Iterator[pa.RecordBatch]) -> None:
        attempt = f"app/{task.context.parallelism}/{partition}"
        for _ in task._output_rows(SparkTask(partition, attempt, None, None), rows, SystemClock()):
            pass

    def overtaken() -> Iterator[pa.RecordBatch]:
        for partition in range(3):
            run(new, partition, iter([rows_of(new, partition)]))
        yield rows_of(old, 1)

    run(old, 0, iter([rows_of(old, 0)]))
    run(old, 1, overtaken())
    assert len(stored(tmp_path / "dead")) == 1
