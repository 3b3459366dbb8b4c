"""The source `tidegate.topic`: the messages of a topic for Spark, streaming or batch, as Arrow batches.

A streaming query asks the server how far a micro-batch goes (`offsets`), and each task reads an exact range
of offsets (`range_reader`). Ranges are half-open and offsets are dense, so a batch that Spark runs again has
the same rows; a task that gets one row less or more than its range fails. The sink has the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tidegate.errors import InvariantBroken, TidegateError
from tidegate.pipeline.python_daemon import end_quietly
from tidegate.pipeline.topic.client import with_hint_note
from tidegate.pipeline.topic.offsets import OffsetPlanner, OffsetRange, Offsets, cut_at
from tidegate.pipeline.topic.options import (
    SourceOptions,
    parse_options,
    parse_sink_options,
    refuse_sink_options,
)
from tidegate.pipeline.topic.payload_columns import PayloadColumns, columns_schema, spark_schema
from tidegate.pipeline.topic.range_reader import SOURCE_SCHEMA, read_range, select_columns
from tidegate.pipeline.topic.sink import TopicStreamWriter, TopicWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

# This module is loaded in the workers in which Spark plans our source; elsewhere it changes nothing.
end_quietly()

SOURCE_NAME = "tidegate.topic"

Checked = TypeVar("Checked")


class TopicConnector(DataSource):  # type: ignore[misc]
    """The connector of `format("tidegate.topic")`; refuses unknown and wrong options before anything runs."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._settings = _add_hint_note(lambda: parse_options(options, SOURCE_SCHEMA.names))

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return SOURCE_NAME

    def schema(self) -> StructType | str:
        """Return the selected columns: those of messages, or those of their payloads and of messages."""
        if self._settings.payload == "columns":
            return columns_schema(self._settings)
        return spark_schema(_selected_schema(self._settings))

    def reader(self, schema: StructType) -> TopicReader:
        """Return the reader of a batch query."""
        _add_hint_note(lambda: refuse_sink_options(self._options))
        return TopicReader(self._settings, schema)

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802 - the name is Spark's
        """Return the reader of a streaming query."""
        _add_hint_note(lambda: refuse_sink_options(self._options))
        return TopicStreamReader(self._settings, schema)

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        """Return the writer of a batch query."""
        settings = _add_hint_note(lambda: parse_sink_options(self._options, streaming=False))
        return TopicWriter(settings, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:  # noqa: N802 - Spark's
        """Return the writer of a streaming query."""
        settings = _add_hint_note(lambda: parse_sink_options(self._options, streaming=True))
        return TopicStreamWriter(settings, schema, overwrite=overwrite)


class TopicReader(DataSourceReader):  # type: ignore[misc]
    """Reads what a topic holds at the moment of planning."""

    def __init__(self, settings: SourceOptions, schema: StructType | None = None) -> None:
        self._settings = settings
        self._schema = schema

    def partitions(self) -> list[OffsetRange]:
        """Plan from the starting offsets to the ending ones."""
        planner = OffsetPlanner(self._settings)
        start = planner.first()
        stop = planner.latest()
        ending = self._settings.ending_offsets
        if isinstance(ending, dict):
            stop |= {partition: end for partition, end in ending.items() if partition in stop}
        return planner.ranges(start, stop)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one range."""
        return _read(self._settings, self._schema, partition)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reads a topic as micro-batches."""

    def __init__(self, settings: SourceOptions, schema: StructType | None = None) -> None:
        self._settings = settings
        self._schema = schema
        self._planner = OffsetPlanner(settings)
        self._seen: Offsets | None = None
        self._target: Offsets | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802 - the name is Spark's
        """Return the offsets at which a query without a checkpoint begins."""
        return self._planner.first()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802 - the name is Spark's
        """Return the end of the next micro-batch; equal to `start` when nothing is new."""
        if isinstance(limit, ReadMaxRows):
            messages_max = limit.max_rows
        elif isinstance(limit, ReadAllAvailable):
            messages_max = None
        else:
            raise InvariantBroken(reason=f"Spark asked for a limit we never gave: {limit}")
        end, self._seen = self._planner.plan(start, messages_max)
        return end if self._target is None else cut_at(end, self._target)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - the name is Spark's
        """Return the most messages of one micro-batch."""
        return ReadMaxRows(self._settings.messages_max)

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802 - the name is Spark's
        """Return the end of the topic as the last plan saw it, for Spark's progress report."""
        return self._seen

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - the name is Spark's
        """Fix the end of the run: later messages are left to the next one."""
        self._target = self._planner.latest()

    def partitions(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        """Return the ranges of a micro-batch, one for each task."""
        return self._planner.ranges(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one range."""
        return _read(self._settings, self._schema, partition)


def register_source(spark: SparkSession) -> None:
    """Register `format("tidegate.topic")` in a session, once."""
    from pyspark.errors import AnalysisException

    try:
        spark.dataSource.register(TopicConnector)
    except AnalysisException as problem:
        if problem.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def _read(
    settings: SourceOptions, schema: StructType | None, span: InputPartition
) -> Iterator[pa.RecordBatch]:
    if settings.payload == "columns":
        if schema is None:
            raise InvariantBroken(reason="Spark did not pass the schema of the columns")
        columns = PayloadColumns(settings, schema)
        return read_range(settings, span, columns.schema, columns.decode)
    selected = _selected_schema(settings)
    return read_range(settings, span, selected, partial(select_columns, schema=selected))


def _selected_schema(settings: SourceOptions) -> pa.Schema:
    return pa.schema([SOURCE_SCHEMA.field(name) for name in settings.columns])


def _add_hint_note(check: Callable[[], Checked]) -> Checked:
    """Return the result of a check; its error gets its hint as a note."""
    try:
        return check()
    except TidegateError as problem:
        raise with_hint_note(problem) from None
