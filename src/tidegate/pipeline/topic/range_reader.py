"""The reader of an offset range: exactly its messages, as Arrow batches.

Offsets are dense, so every batch must begin at the next one, and a range must end at its last offset:
anything else is an error and never a short answer. After a lost connection a read resumes where it broke off.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tidegate.errors import InvariantBroken, OffsetOutOfRange, ServerNotRunning, TidegateError
from tidegate.model.messages import MESSAGE_SCHEMA
from tidegate.pipeline.topic.client import RetryBackoff, ServerClient, topic_path, with_hint_note
from tidegate.pipeline.topic.offsets import OffsetRange, check_loss, log_loss
from tidegate.pipeline.topic.options import SourceOptions

# The columns of a message as Spark reads them: in a DataFrame any may be null.
SOURCE_SCHEMA = pa.schema([field.with_nullable(True) for field in MESSAGE_SCHEMA])
# Each record batch costs Spark about 0.1 ms; single messages are gathered until that no longer counts.
BATCH_ROWS_MIN = 4_096
# Spark passes each record batch to the JVM as a whole; larger ones only cost memory.
BATCH_ROWS_MAX = 65_536
# Arrow reads a message in four small steps; they are served from this buffer, large bodies go past it.
BODY_BUFFER_BYTES = 64 * 1024

BatchTransform = Callable[[pa.RecordBatch], pa.RecordBatch]


def read_range(
    settings: SourceOptions, span: InputPartition, schema: pa.Schema, transform: BatchTransform
) -> Iterator[pa.RecordBatch]:
    """Yield exactly the rows of a range; `transform` turns a batch of messages into one of the schema."""
    if not isinstance(span, OffsetRange):
        return  # Spark adds an empty partition when a plan has none
    client = ServerClient(settings.location, settings.retry_seconds)
    backoff = RetryBackoff(client)
    combiner = _BatchCombiner(schema)
    position = span.start
    while position < span.stop:
        try:
            for batch in _fetch(client, settings.topic, span.from_offset(position)):
                position = checked_next(batch, span, position)
                backoff.renew()
                yield from combiner.add(transform(batch))
            if position < span.stop:
                raise with_hint_note(
                    InvariantBroken(reason=f"{span} of '{settings.topic}' ended early, at {position}")
                )
        except OffsetOutOfRange as problem:
            first = min(check_loss(problem, settings), span.stop)
            log_loss(settings.topic, span.partition, position, first)
            position = first
        except TidegateError as problem:
            backoff.pause_or_raise(problem)
    yield from combiner.rest()


def _fetch(client: ServerClient, topic: str, span: OffsetRange) -> Iterator[pa.RecordBatch]:
    body = {"partition": span.partition, "from": span.start, "to": span.stop, "topicId": span.topic_id}
    with client.stream(topic_path(topic, "read"), body) as answer:
        try:
            with pa.ipc.open_stream(io.BufferedReader(answer, BODY_BUFFER_BYTES)) as stream:
                yield from stream
        except pa.ArrowInvalid as problem:
            raise ServerNotRunning(url=topic, reason=f"the answer broke off ({problem})") from problem


def checked_next(batch: pa.RecordBatch, span: OffsetRange, position: int) -> int:
    """Return the offset after a batch; raise when its rows are not the next ones."""
    rows = int(batch.num_rows)
    if rows == 0:
        return position
    offsets = batch.column(1)
    first, last = int(offsets[0].as_py()), int(offsets[rows - 1].as_py())
    if (first, last) != (position, position + rows - 1) or last >= span.stop:
        found = f"{rows} rows with offsets {first} to {last}"
        raise InvariantBroken(reason=f"{span}: {found} came where offset {position} is next")
    return position + rows


def select_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a batch that a schema names, in its order and with its types."""
    if batch.schema.names != schema.names:
        batch = batch.select(schema.names)
    if not batch.schema.equals(schema):
        batch = pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    return batch


class _BatchCombiner:
    """Joins small batches of the server and splits large ones, to the sizes that suit Spark."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Add a batch; yield batches once there are enough rows."""
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        if self._waiting_rows >= BATCH_ROWS_MIN:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield the remaining rows."""
        waiting, self._waiting, self._waiting_rows = self._waiting, [], 0
        if len(waiting) > 1:
            waiting = pa.Table.from_batches(waiting, self._schema).combine_chunks().to_batches()
        for batch in waiting:
            for start in range(0, batch.num_rows, BATCH_ROWS_MAX):
                yield batch.slice(start, BATCH_ROWS_MAX)
