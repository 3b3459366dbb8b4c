"""The sink `tidegate.topic`: writes each batch of a query's rows into a topic exactly once.

Each task stores its messages on the server as parts, which no reader sees, and sends the driver their
numbers. The driver then commits the batch with the parts of the tasks that count: one write appends all
messages and stores the number of the batch. So a task that runs twice, a driver that dies before the commit
and a commit whose answer is lost write each message once. A streaming query is identified by its id, which
its checkpoint stores.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tidegate.errors import BodyTooLarge, InvariantBroken, RequestInvalid, TidegateError, TopicReplaced
from tidegate.pipeline.topic.client import ServerClient, topic_path, with_hint_note
from tidegate.pipeline.topic.message_encoder import check_columns, message_batch, parts_of, stream_bytes
from tidegate.pipeline.topic.options import SinkOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

# The properties by which Spark tells its tasks their query and batch.
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
# A commit answers when the whole batch is on the disk.
COMMIT_TIMEOUT_SECONDS = 300.0
# Parts that are left expire by themselves: a query that fails does not wait long for a server that is away.
ABORT_RETRY_SECONDS = 2.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredParts(WriterCommitMessage):  # type: ignore[misc]
    """The commit message of a task: the parts that it stored, in order, and for which batch."""

    writer: str
    batch: int
    parts: tuple[str, ...]
    topic_id: int | None


class TopicStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writes the micro-batches of a streaming query."""

    def __init__(self, settings: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise with_hint_note(
                RequestInvalid(
                    reason="A topic keeps what was written, and complete mode writes everything again",
                    hint="Use append mode; for updates: foreachBatch(tide.to_topic(…)) with update mode.",
                )
            )
        check_columns(schema)
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StoredParts:
        """Store the rows of one task; no reader sees them yet."""
        task = TaskContext.get()
        if task is None:
            raise InvariantBroken(reason="a sink wrote outside of a task")
        writer, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if writer is None or batch is None:
            raise InvariantBroken(reason="Spark does not say for which query and batch this task works")
        return store_parts(self._settings, writer, int(batch), iterator)

    def commit(self, messages: Sequence[StoredParts | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Append the parts of the tasks, in one write; a batch that was appended before stays as it is."""
        stored = [message for message in messages if message is not None]
        if any(message.batch != batchId for message in stored):
            raise InvariantBroken(reason=f"batch {batchId} has reports of other batches: {stored[:3]}")
        commit_parts(self._settings, stored, lasts=True)

    def abort(self, messages: Sequence[StoredParts | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Remove the parts of the tasks."""
        abort_parts(self._settings, messages)


class TopicWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes the rows of a batch query, all or nothing; with a writer and a batch named, once for all."""

    def __init__(self, settings: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise with_hint_note(
                RequestInvalid(
                    reason="A topic keeps what was written: there is nothing to overwrite",
                    hint='Use .mode("append"); CLEAR TOPIC empties a topic.',
                )
            )
        check_columns(schema)
        self._settings = settings
        # Unless it is named, a query is identified by a number for as long as it runs.
        self._writer = settings.writer or f"once-{uuid.uuid4()}"
        self._batch = settings.batch or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StoredParts:
        """Store the rows of one task; no reader sees them yet."""
        return store_parts(self._settings, self._writer, self._batch, iterator)

    def commit(self, messages: Sequence[StoredParts | None]) -> None:
        """Append the parts of the tasks, in one write."""
        stored = [message for message in messages if message is not None]
        commit_parts(self._settings, stored, lasts=self._settings.writer is not None)

    def abort(self, messages: Sequence[StoredParts | None]) -> None:
        """Remove the parts of the tasks."""
        abort_parts(self._settings, messages)


class BatchSink:
    """The function for `foreachBatch`: writes the rows of each micro-batch into a topic exactly once."""

    def __init__(self, options: Mapping[str, Any], name: str) -> None:
        self._options = {option: str(value) for option, value in options.items() if value is not None}
        self._name = name

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        from tidegate.pipeline.topic.source import SOURCE_NAME, register_source

        query_id = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        if query_id is None:
            raise RequestInvalid(
                reason="Spark does not say which query this is",
                hint="Call it from foreachBatch, in a session whose Python threads are pinned (the default).",
            )
        register_source(rows.sparkSession)
        writer = f"{query_id}/{self._name}" if self._name else query_id
        written = rows.write.format(SOURCE_NAME).options(**self._options).mode("append")
        written.option("writer", writer).option("batch", str(batch_id)).save()


def store_parts(
    settings: SinkOptions, writer: str, batch: int, rows: Iterator[pa.RecordBatch]
) -> StoredParts:
    """Store rows as parts of a batch; all rows are consumed, also where the batch was committed before."""
    client = ServerClient(settings.location, settings.retry_seconds)
    path = f"{topic_path(settings.topic, 'parts')}?{urlencode({'writer': writer, 'batch': batch})}"
    parts: list[str] = []
    topic_ids: set[int] = set()
    is_committed = False
    for table in parts_of(map(message_batch, rows)):
        # A stateful step before this one commits its state only when all of its rows were consumed.
        for answer in () if is_committed else _stored(client, path, table):
            topic_ids.add(answer["topicId"])
            is_committed = answer["part"] is None
            parts.extend(() if is_committed else (answer["part"],))
    return StoredParts(writer, batch, tuple(parts), _one_topic(settings, topic_ids))


def commit_parts(settings: SinkOptions, stored: Sequence[StoredParts], *, lasts: bool) -> None:
    """Commit a batch with the parts of its tasks."""
    if not stored:
        return  # without a task there are no rows, and no message that names the batch
    topic_ids = {message.topic_id for message in stored if message.topic_id is not None}
    parts = [part for message in stored for part in message.parts]
    body: dict[str, Any] = {"writer": stored[0].writer, "batch": stored[0].batch, "parts": parts}
    topic_id = _one_topic(settings, topic_ids)
    client = ServerClient(settings.location, settings.retry_seconds, COMMIT_TIMEOUT_SECONDS)
    if topic_id is None:
        # No task had rows. A commit would be refused where batches without a task came before this one; what
        # is asked here is whether there is such a topic, and whether the user may write it under this name.
        client.post_json(topic_path(settings.topic, "abort"), body)
        return
    body |= {"lasts": lasts, "topicId": topic_id}
    try:
        answer = client.post_json(topic_path(settings.topic, "commit"), body)
    except TopicReplaced:
        raise _replaced(settings) from None
    if not answer["committed"]:
        log.info("batch was written before topic=%s batch=%d", settings.topic, stored[0].batch)


def abort_parts(settings: SinkOptions, messages: Sequence[StoredParts | None]) -> None:
    """Remove the parts of a batch that failed; where that fails too, the server removes them after a day."""
    stored = [message for message in messages if message is not None and message.parts]
    if not stored:
        return
    parts = [part for message in stored for part in message.parts]
    body = {"writer": stored[0].writer, "batch": stored[0].batch, "parts": parts}
    try:
        client = ServerClient(settings.location, min(settings.retry_seconds, ABORT_RETRY_SECONDS))
        client.post_json(topic_path(settings.topic, "abort"), body)
    except TidegateError as problem:
        log.warning("parts of a failed batch are left topic=%s error=%r", settings.topic, str(problem))


def _stored(client: ServerClient, path: str, table: pa.Table) -> Iterator[dict[str, Any]]:
    """Send messages; in halves where the server accepts less at a time."""
    try:
        answer = client.post_arrow(path, stream_bytes(table))
    except BodyTooLarge:
        if table.num_rows == 1:
            raise
    else:
        yield answer
        return
    middle = table.num_rows // 2
    yield from _stored(client, path, table.slice(0, middle))
    yield from _stored(client, path, table.slice(middle))


def _one_topic(settings: SinkOptions, topic_ids: set[int]) -> int | None:
    if len(topic_ids) > 1:
        raise _replaced(settings)
    return next(iter(topic_ids), None)


def _replaced(settings: SinkOptions) -> TidegateError:
    hint = "What the tasks had stored went with the old topic. Started again, the query writes the new one."
    return with_hint_note(TopicReplaced(topic=settings.topic, hint=hint))
