"""The source `tidegate.topic`: gives Spark the messages of a topic, streaming or batch, as Arrow batches.

A streaming query asks the server how far a micro-batch goes (`plan`), and each task reads an exact range of
offsets (`read`). Ranges are half-open and offsets are dense, so a batch that Spark runs again gives the same
rows; a task that gets one row less or more than its range fails. A server that restarts in the middle of a
read is asked for the rest.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tidegate.errors import InvariantBroken, RequestInvalid, ServerNotRunning, TidegateError
from tidegate.pipeline.options import SourceOptions, parse_options
from tidegate.pipeline.wire import Patience, Wire, hinted, topic_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

SOURCE_NAME = "tidegate.topic"
# The columns of a message, in the order of the wire.
MESSAGE_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("message_id", pa.int64()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("op", pa.string()),
        ("source", pa.string()),
        ("payload_mode", pa.string()),
        ("key", pa.string()),
        ("payload", pa.string()),
    ]
)
# A task costs about 10 ms whatever it reads; a range smaller than this is not worth a second one.
SPLIT_MESSAGES_MIN = 20_000
# Each record batch costs Spark about 0.1 ms; single messages are gathered until that no longer counts.
BATCH_ROWS_MIN = 4_096
# Spark hands each record batch to the JVM whole; larger ones only cost memory.
BATCH_ROWS_MAX = 65_536
# Arrow reads a message in four small steps; they are served from this buffer, large bodies go past it.
BODY_BUFFER_BYTES = 64 * 1024

# The offset that Spark keeps is {"topic": id, "<partition>": next offset}. The id is of one life of a topic:
# after a topic is deleted and made again, old offsets would point at other messages.
TOPIC_ID = "topic"

Offsets = dict[str, int]


class OffsetRange(InputPartition):  # type: ignore[misc]
    """The messages of one partition from `start` (in) to `stop` (out): the work of one task."""

    def __init__(self, topic_id: int, partition: int, start: int, stop: int) -> None:
        super().__init__((topic_id, partition, start, stop))
        self.topic_id = topic_id
        self.partition = partition
        self.start = start
        self.stop = stop

    def from_offset(self, start: int) -> OffsetRange:
        """Give what is left from an offset on."""
        return OffsetRange(self.topic_id, self.partition, start, self.stop)

    def __repr__(self) -> str:
        return f"OffsetRange(partition={self.partition}, start={self.start}, stop={self.stop})"


class TopicSource(DataSource):  # type: ignore[misc]
    """What `format("tidegate.topic")` builds; refuses unknown and wrong options before anything runs."""

    def __init__(self, options: Mapping[str, str]) -> None:
        try:
            self._settings = parse_options(options, MESSAGE_SCHEMA.names)
        except TidegateError as problem:
            raise hinted(problem) from None

    @classmethod
    def name(cls) -> str:
        """Give the name that `format` takes."""
        return SOURCE_NAME

    def schema(self) -> StructType:
        """Give the columns asked for, all of them unless `columns` names fewer."""
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(_narrowed(self._settings))

    def reader(self, schema: StructType) -> TopicReader:  # noqa: ARG002 - the call is Spark's
        """Give the reader of a batch query."""
        return TopicReader(self._settings)

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802, ARG002 - Spark's
        """Give the reader of a streaming query."""
        return TopicStreamReader(self._settings)


class TopicReader(DataSourceReader):  # type: ignore[misc]
    """Reads what a topic holds at the moment of planning."""

    def __init__(self, settings: SourceOptions) -> None:
        self._settings = settings

    def partitions(self) -> list[OffsetRange]:
        """Plan from the starting offsets to the ending ones."""
        planner = _Planner(self._settings)
        start = planner.first()
        stop = planner.latest()
        ending = self._settings.ending_offsets
        if isinstance(ending, dict):
            stop |= {partition: end for partition, end in ending.items() if partition in stop}
        return split_ranges(start, stop, self._settings.partitions_min)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the rows of one range."""
        return _read(self._settings, partition)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reads a topic as micro-batches."""

    def __init__(self, settings: SourceOptions) -> None:
        self._settings = settings
        self._planner = _Planner(settings)
        self._seen: Offsets | None = None
        self._target: Offsets | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802 - the name is Spark's
        """Give where a query without a checkpoint begins."""
        return self._planner.first()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802 - the name is Spark's
        """Give the end of the next micro-batch; equal to `start` when nothing is new."""
        if isinstance(limit, ReadMaxRows):
            messages_max = limit.max_rows
        elif isinstance(limit, ReadAllAvailable):
            messages_max = None
        else:
            raise InvariantBroken(reason=f"Spark asked for a limit we never gave: {limit}")
        end, self._seen = self._planner.plan(start, messages_max)
        if self._target is not None:
            end = {partition: min(n, self._target.get(partition, n)) for partition, n in end.items()}
        return end

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - the name is Spark's
        """Give the most messages of one micro-batch."""
        return ReadMaxRows(self._settings.messages_max)

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802 - the name is Spark's
        """Give the end of the topic as the last plan saw it, for Spark's progress report."""
        return self._seen

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - the name is Spark's
        """Fix the end of the run: what comes later is left for the next one."""
        self._target = self._planner.latest()

    def partitions(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        """Cut a micro-batch into ranges, one for each task."""
        return split_ranges(start, end, self._settings.partitions_min)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the rows of one range."""
        return _read(self._settings, partition)


def register_source(spark: SparkSession) -> None:
    """Make `format("tidegate.topic")` known to a session; one that knows it already stays as it is."""
    from pyspark.errors import AnalysisException

    try:
        spark.dataSource.register(TopicSource)
    except AnalysisException as problem:
        if problem.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


class _Planner:
    """Asks the server for offsets, and gives them in one order so that Spark can compare their text."""

    def __init__(self, settings: SourceOptions) -> None:
        self._settings = settings
        self._wire = Wire(settings.place, settings.retry_seconds)

    def first(self) -> Offsets:
        starting = self._settings.starting_offsets
        if not isinstance(starting, dict):
            return _offsets(self._ask({"start": starting}), "start")
        earliest = _offsets(self._ask({"start": "earliest"}), "start")
        unknown = sorted(set(starting) - set(_positions(earliest)))
        if unknown:
            reason = (
                f"startingOffsets names partition {unknown[0]}, which '{self._settings.topic}' does not have"
            )
            raise hinted(
                RequestInvalid(reason=reason, hint=f"Its partitions are {', '.join(_positions(earliest))}.")
            )
        return {**earliest, **starting}

    def latest(self) -> Offsets:
        return _offsets(self._ask({"start": "latest"}), "latest")

    def plan(self, start: Offsets, messages_max: int | None) -> tuple[Offsets, Offsets]:
        body: dict[str, Any] = {"start": _positions(start), "topicId": start[TOPIC_ID]}
        if messages_max is not None:
            body["messagesMax"] = messages_max
        answer = self._ask(body)
        return _offsets(answer, "end"), _offsets(answer, "latest")

    def _ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._wire.post_json(topic_path(self._settings.topic, "plan"), body)


def split_ranges(start: Offsets, stop: Offsets, partitions_min: int) -> list[OffsetRange]:
    """Cut the offsets between two points into ranges: at least `partitions_min` tasks share a big batch."""
    ends = _positions(stop)
    total = sum(max(end - start.get(partition, 0), 0) for partition, end in ends.items())
    share = max(-(-total // partitions_min), SPLIT_MESSAGES_MIN)
    ranges: list[OffsetRange] = []
    for partition, end in ends.items():
        begin = start.get(partition, 0)
        pieces = -(-(end - begin) // share)
        for piece in range(pieces):
            cut = begin + (end - begin) * piece // pieces
            next_cut = begin + (end - begin) * (piece + 1) // pieces
            ranges.append(OffsetRange(stop[TOPIC_ID], int(partition), cut, next_cut))
    return ranges


def _read(settings: SourceOptions, span: InputPartition) -> Iterator[pa.RecordBatch]:
    """Give exactly the rows of a range; after a lost connection go on where it broke."""
    if not isinstance(span, OffsetRange):
        return  # Spark makes up an empty partition when a plan has none
    wire = Wire(settings.place, settings.retry_seconds)
    patience = Patience(wire)
    gathering = _Gathering(_narrowed(settings))
    position = span.start
    while position < span.stop:
        try:
            for batch in _fetch(wire, settings.topic, span.from_offset(position)):
                position = _checked_next(batch, span, position)
                patience.renew()
                yield from gathering.add(batch)
            if position < span.stop:
                raise hinted(
                    InvariantBroken(reason=f"{span} of '{settings.topic}' ended early, at {position}")
                )
        except TidegateError as problem:
            patience.pause_or_raise(problem)
    yield from gathering.rest()


def _fetch(wire: Wire, topic: str, span: OffsetRange) -> Iterator[pa.RecordBatch]:
    body = {"partition": span.partition, "from": span.start, "to": span.stop, "topicId": span.topic_id}
    with wire.opened(topic_path(topic, "read"), body) as answer:
        try:
            with pa.ipc.open_stream(io.BufferedReader(answer, BODY_BUFFER_BYTES)) as stream:
                yield from stream
        except pa.ArrowInvalid as problem:
            raise ServerNotRunning(url=topic, reason=f"the answer broke off ({problem})") from problem


def _checked_next(batch: pa.RecordBatch, span: OffsetRange, position: int) -> int:
    """Give the offset after a batch; raise when its rows are not the ones that come next."""
    rows = int(batch.num_rows)
    if rows == 0:
        return position
    offsets = batch.column(1)
    first, last = int(offsets[0].as_py()), int(offsets[rows - 1].as_py())
    if (first, last) != (position, position + rows - 1) or last >= span.stop:
        found = f"{rows} rows with offsets {first} to {last}"
        raise InvariantBroken(reason=f"{span}: {found} came where offset {position} is next")
    return position + rows


class _Gathering:
    """Makes of the batches of the wire such as Spark likes: wanted columns only, neither tiny nor huge."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take a batch; give what is big enough."""
        if batch.schema.names != self._schema.names:
            batch = batch.select(self._schema.names)
        if not batch.schema.equals(self._schema):
            batch = pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        if self._waiting_rows >= BATCH_ROWS_MIN:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Give what is left."""
        waiting, self._waiting, self._waiting_rows = self._waiting, [], 0
        if len(waiting) > 1:
            waiting = pa.Table.from_batches(waiting, self._schema).combine_chunks().to_batches()
        for batch in waiting:
            for start in range(0, batch.num_rows, BATCH_ROWS_MAX):
                yield batch.slice(start, BATCH_ROWS_MAX)


def _narrowed(settings: SourceOptions) -> pa.Schema:
    return pa.schema([MESSAGE_SCHEMA.field(name) for name in settings.columns])


def _offsets(answer: Mapping[str, Any], which: str) -> Offsets:
    """Give one set of offsets of a plan, always in the same order: Spark compares their text."""
    found = answer[which]
    return {
        TOPIC_ID: answer["topicId"],
        **{partition: int(found[partition]) for partition in sorted(found, key=int)},
    }


def _positions(offsets: Offsets) -> Offsets:
    """Leave the topic's id out: one offset a partition."""
    return {partition: offset for partition, offset in offsets.items() if partition != TOPIC_ID}
