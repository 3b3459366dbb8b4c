"""A harness that runs an operator without Spark, on rows and times of a test.

    harness = OperatorHarness(SessionTracker(), key="user_id", event_time="ts")
    assert harness.feed([{"user_id": "a", "feature": "search", "ts": 1_000}]) == []
    assert harness.advance(watermark=60_000) == [{"user_id": "a", "events": 1}]

It runs the same code as a pipeline, on one partition and with state in memory.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidegate.checkpoint.backend import Version
from tidegate.checkpoint.backends.heap import HeapBackend
from tidegate.checkpoint.commit_record import RunFacts
from tidegate.checkpoint.keys.codec import KeyType, StateKeyCodec
from tidegate.errors import ValueInvalid
from tidegate.model.durations import parse_duration
from tidegate.state.arrow.ddl import schema_of_ddl
from tidegate.state.arrow.types import arrow_schema_of
from tidegate.state.instant import Moment, time_ms
from tidegate.state.operator import KeyedOperator
from tidegate.state.operator_plan import plan_operator
from tidegate.state.runtime.chunks import GROUP_COLUMN
from tidegate.state.runtime.instance import BatchTimes, InstanceSettings, OperatorInstance
from tidegate.state.schema.schema import OperatorSchema, plan_schema
from tidegate.state.write_batch import WriteBatch

MAX_PARALLELISM = 128  # the default of pipelines

START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z

Row = dict[str, Any]


class OperatorHarness:
    """One operator on one partition, in memory: each `feed` is one batch.

    >>> import tidegate.spark as tide
    >>> class Count(tide.KeyedOperator):
    ...     output = "user_id string, n long"
    ...     n = tide.ValueState(int, default=0)
    ...
    ...     def process(self, event, ctx):
    ...         self.n.update(self.n.value() + 1)
    ...         yield {"user_id": ctx.key, "n": self.n.value()}
    >>> harness = OperatorHarness(Count(), key="user_id")
    >>> harness.feed([{"user_id": "ann"}, {"user_id": "ann"}])
    [{'user_id': 'ann', 'n': 1}, {'user_id': 'ann', 'n': 2}]
    >>> harness.feed([{"user_id": "bob"}])
    [{'user_id': 'bob', 'n': 1}]
    >>> with harness.on("ann") as operator:
    ...     operator.n.value()
    2

    `advance` moves the watermark or the clock, and returns what timers yield. `facts` are those of the newest
    batch, `outputs` and `dead` the rows of all batches so far.
    """

    def __init__(
        self,
        operator: KeyedOperator[Any, Any],
        *,
        key: str | Sequence[str],
        event_time: str | None = None,
        columns: str | pa.Schema | None = None,
        lateness: str = "0 s",
        sets_aside: bool = False,
    ) -> None:
        """`columns` are the input's columns as DDL, where neither a dataclass nor the rows define them.

        With `sets_aside`, failed rows are undone and collected in `dead`; without, RowFailed is raised.
        """
        self.plan = plan_operator(operator, type(operator).__name__)
        # The output rows of all batches, the failed rows, and the statistics of the newest batch.
        self.outputs: list[Row] = []
        self.dead: list[Row] = []
        self.facts: RunFacts | None = None
        self.watermark: Moment | None = None
        self.now = Moment(START_MS)
        self._key = [key] if isinstance(key, str) else list(key)
        self._event_time = event_time
        self._columns = schema_of_ddl(columns) if isinstance(columns, str) else columns
        self._lateness_ms = parse_duration(lateness).us // 1_000
        self._sets_aside = sets_aside
        self._newest_ms: int | None = None
        self._batch = -1
        self._schema: OperatorSchema | None = None
        # The backend writes only when it is closed, which it never is here: the folder can be removed now.
        folder = Path(tempfile.mkdtemp(prefix="tidegate-harness-"))
        self._backend = HeapBackend(folder)
        folder.rmdir()

    def feed(
        self,
        rows: Iterable[Any] | pa.Table | pa.RecordBatch,
        *,
        watermark: int | datetime | None = None,
        now: int | datetime | None = None,
    ) -> list[Row]:
        """Run one batch and return its output rows.

        Rows are dicts, instances of the input dataclass, or an Arrow table. The default watermark is the
        newest event time of the earlier batches, less `lateness`; the default `now` is that of the batch
        before. A batch that fails changes nothing.
        """
        batch = self._as_batch(rows)
        codec = StateKeyCodec(self._planned(batch.schema).key)
        groups = codec.groups_of([batch.column(name) for name in self._key], MAX_PARALLELISM)
        return self._run([batch.append_column(GROUP_COLUMN, pa.array(groups, pa.int32()))], watermark, now)

    def advance(
        self, *, watermark: int | datetime | None = None, now: int | datetime | None = None
    ) -> list[Row]:
        """Run a batch without rows at a later time, and return the output rows of the timers that are due."""
        if self._schema is None:
            raise ValueInvalid(place="advance", reason="nothing was fed yet, so no key can have a timer")
        return self._run([], watermark, now)

    @contextmanager
    def on(self, key: Any) -> Iterator[Any]:
        """Yield the operator with a current key, to read or prepare its states; changes are committed.

        Before the first `feed`, `columns` or the input dataclass must define the type of the key.
        """
        columns = self._known_columns()
        if self._schema is None and columns is None:
            reason = "nothing was fed yet, so the type of the key is not known"
            hint = "Feed a batch first, or name the input's columns: columns='user_id string, …'."
            raise ValueInvalid(place="on", reason=reason, hint=hint)
        schema = self._planned(columns)
        stage = WriteBatch(self._backend)
        instance = self._instance(schema)
        codec = StateKeyCodec(schema.key)
        stored = codec.encode(key)
        (group,) = codec.groups_of(key_columns(schema.key, [key]), MAX_PARALLELISM).tolist()
        self._batch += 1
        with instance.at_key(stage, self._times(), (group.to_bytes(2, "big"), stored, key)) as operator:
            yield operator
        self._backend.apply(stage.take(), Version(0, self._batch, "harness"))

    def _run(
        self,
        batches: list[pa.RecordBatch],
        watermark: int | datetime | None,
        now: int | datetime | None,
    ) -> list[Row]:
        if self._schema is None:
            raise ValueInvalid(place="run", reason="nothing was fed yet")
        if now is not None:
            self.now = Moment(time_ms(now))
        self._move_watermark(watermark)
        stage, instance = WriteBatch(self._backend), self._instance(self._schema)
        dead: list[Row] = []
        self._batch += 1
        give = (lambda batch: dead.extend(batch.to_pylist())) if self._sets_aside else None
        made = [row for out in instance.run(stage, batches, self._times(), give) for row in out.to_pylist()]
        self._backend.apply(stage.take(), Version(0, self._batch, "harness"))
        self.facts = instance.facts()
        if self.facts.newest_event_ms is not None:
            self._newest_ms = max(self.facts.newest_event_ms, self._newest_ms or self.facts.newest_event_ms)
        self.outputs += made
        self.dead += dead
        return made

    def _move_watermark(self, watermark: int | datetime | None) -> None:
        if watermark is not None:
            self.watermark = Moment(time_ms(watermark))
        elif self._newest_ms is not None:
            reached = Moment(self._newest_ms - self._lateness_ms)
            self.watermark = reached if self.watermark is None else max(self.watermark, reached)

    def _instance(self, schema: OperatorSchema) -> OperatorInstance:
        return OperatorInstance(self.plan, schema, InstanceSettings(0, 1, self._event_time))

    def _times(self) -> BatchTimes:
        return BatchTimes(self._batch, self.watermark, self.now)

    def _as_batch(self, rows: Iterable[Any] | pa.Table | pa.RecordBatch) -> pa.RecordBatch:
        if isinstance(rows, pa.RecordBatch):
            return rows
        if isinstance(rows, pa.Table):
            return pa.RecordBatch.from_struct_array(rows.to_struct_array().combine_chunks())
        plain = [dict(row) if isinstance(row, Mapping) else dataclasses.asdict(row) for row in rows]
        columns = self._known_columns()
        if columns is None:
            columns = pa.Table.from_pylist(plain).schema
            self._columns = columns
        return pa.RecordBatch.from_pylist(plain, schema=columns)

    def _known_columns(self) -> pa.Schema | None:
        """Return the input's columns where `columns`, the input dataclass or earlier rows define them."""
        if self._columns is None and self.plan.in_type is not None and self.plan.in_type is not dict:
            return _loosened(arrow_schema_of(self.plan.in_type, operator=self.plan.name))
        return self._columns

    def _planned(self, columns: pa.Schema) -> OperatorSchema:
        """Return what the states are planned as; the first columns that are known fix the type of the key."""
        if self._schema is None:
            key = KeyType.from_arrow(self._key, columns, operator=self.plan.name)
            self._schema = plan_schema(None, self.plan.schema_request(key, MAX_PARALLELISM))
        return self._schema


def key_columns(key_type: KeyType, keys: Sequence[Any]) -> list[pa.Array]:
    """Return keys as columns; a key of several columns is a tuple."""
    rows = [(key,) for key in keys] if len(key_type.columns) == 1 else keys
    types = schema_of_ddl(", ".join(f"c{n} {column.kind}" for n, column in enumerate(key_type.columns))).types
    return [pa.array(column, kind) for kind, column in zip(types, zip(*rows, strict=True), strict=True)]


def _loosened(schema: pa.Schema) -> pa.Schema:
    """Return the schema with every column nullable, as columns of Spark may be."""
    return pa.schema([field.with_nullable(True) for field in schema])
