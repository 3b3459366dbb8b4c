"""The source of ticks, with which Spark runs a batch when a timer of a keyed operator is due.

Spark runs no batch while its sources have nothing new, so the timers of idle keys would never fire. This
source has no rows. Its offset advances when a timer is due, at most once for each batch that Spark committed,
and stays otherwise: a pipeline without due timers runs no batches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)

from tidegate.checkpoint.commit_record import NO_TIMES, Times
from tidegate.checkpoint.epochs import governing, is_complete, list_epochs, times_after
from tidegate.checkpoint.store import checkpoint_path, operator_store
from tidegate.errors import InvariantBroken
from tidegate.model.clock import Clock, SystemClock
from tidegate.pipeline.stateful.spark_log import CommittedBatch, newest_committed, newest_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

SOURCE_NAME = "tidegate.ticks"

# Spark polls an idle source every 10 ms; the folders are read no more often than this.
LOOK_MS_DEFAULT = 100

# Marks the offsets of ticks among those of other sources.
OPERATOR_MARK = "ticksOf"

# The offset is the last committed batch before the tick; this one is before the first batch.
_NEVER = -1

_REGISTERED_MARK = "_tidegate_ticks_registered"

Offset = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TickSettings:
    """The operator whose timers are read; `lateness_ms` is None where Spark itself keeps the watermark."""

    checkpoint: str
    operator: str
    lateness_ms: int | None
    every_ms: int = LOOK_MS_DEFAULT
    # Asleep, it stays in the checkpoint and never ticks.
    is_awake: bool = True

    def to_options(self) -> dict[str, str]:
        """Return them as options of the source."""
        lateness = "" if self.lateness_ms is None else str(self.lateness_ms)
        return {
            "checkpoint": self.checkpoint,
            "operator": self.operator,
            "latenessMs": lateness,
            "everyMs": str(self.every_ms),
            "isAwake": str(self.is_awake),
        }


def parse_tick_options(options: Mapping[str, str]) -> TickSettings:
    """Return the settings in the options of the source, whose names Spark may have lowercased."""
    lowered = {name.lower(): value for name, value in options.items()}
    lateness = lowered["latenessms"]
    return TickSettings(
        checkpoint=lowered["checkpoint"],
        operator=lowered["operator"],
        lateness_ms=int(lateness) if lateness else None,
        every_ms=int(lowered["everyms"]),
        is_awake=lowered["isawake"] == "True",
    )


class TickSource(DataSource):  # type: ignore[misc]
    """The data source of `format("tidegate.ticks")`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._settings = parse_tick_options(options)

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return SOURCE_NAME

    def schema(self) -> StructType | str:
        """Raise: the columns are always those of the stream that ticks are added to."""
        raise InvariantBroken(reason="ticks take the columns of another stream")

    def streamReader(self, schema: StructType) -> TickReader:  # noqa: N802, ARG002 - the names are Spark's
        """Return the reader of a streaming query."""
        return TickReader(self._settings)


class TickReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reports a new offset whenever a timer is due."""

    def __init__(self, settings: TickSettings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._last_check_seconds: float | None = None
        self._seen: tuple[CommittedBatch, Times] | None = None
        self._every_ms = settings.every_ms

    def initialOffset(self) -> Offset:  # noqa: N802 - the name is Spark's
        """Return the offset of a query without a checkpoint."""
        return self._offset(_NEVER)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802, ARG002
        """Return the newest committed batch when a timer is due after it, else `start`."""
        if not self._settings.is_awake:
            return start
        now_seconds = self._clock.monotonic_seconds()
        last_seconds = self._last_check_seconds
        if last_seconds is not None and (now_seconds - last_seconds) * 1000 < self._every_ms:
            return start
        self._last_check_seconds = now_seconds
        committed = newest_committed(Path(self._settings.checkpoint))
        if committed is None or committed.number <= start["after"] or not self._is_due(committed):
            return start
        return self._offset(committed.number)

    def _offset(self, number: int) -> Offset:
        """Return an offset; its operator tells a later start whose ticks a checkpoint has."""
        return {"after": number, OPERATOR_MARK: self._settings.operator}

    def _is_due(self, committed: CommittedBatch) -> bool:
        if self._seen is None or self._seen[0] != committed:
            self._seen = (committed, read_times(self._settings, committed.number))
        times = self._seen[1]
        next_ms = times.next_processing_timer_ms
        if next_ms is not None and next_ms <= self._clock.now_us() // 1000:
            return True
        watermark_ms = committed.next_watermark_ms
        if self._settings.lateness_ms is not None:
            newest_ms = times.newest_event_ms
            watermark_ms = None if newest_ms is None else newest_ms - self._settings.lateness_ms
        next_ms = times.next_event_timer_ms
        return watermark_ms is not None and next_ms is not None and next_ms <= watermark_ms

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - the name is Spark's
        """Return that a tick is not divided."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - the name is Spark's
        """Read the folders at every poll: a run ends with the first poll that finds nothing new.

        Its end is not fixed in advance: timers that become due by the rows of the run fire in it.
        """
        self._every_ms = 0

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:  # noqa: ARG002
        """Return the one partition, which is empty."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Return no rows."""
        return iter(())


def has_ticks(checkpoint: str, operator: str) -> bool | None:
    """True if a checkpoint has ticks of an operator; None when it has no batch yet."""
    lines = newest_offsets(checkpoint_path(checkpoint))
    if lines is None:
        return None
    marks = (json.loads(line).get(OPERATOR_MARK) for line in lines if OPERATOR_MARK in line)
    return operator in marks


def read_times(settings: TickSettings, number: int) -> Times:
    """Return the next timers of an operator after a batch; none when a partition has not committed it."""
    store = operator_store(settings.checkpoint, settings.operator)
    epoch = governing(list_epochs(store), number)
    if epoch is None or not is_complete(store, epoch, number):
        return NO_TIMES
    return times_after(store, epoch, number)


def with_ticks(df: DataFrame, settings: TickSettings) -> DataFrame:
    """Return the stream with ticks added: the same rows, and a batch whenever a timer is due."""
    register_ticks(df.sparkSession)
    reader = df.sparkSession.readStream.format(SOURCE_NAME).schema(df.schema)
    return df.union(reader.options(**settings.to_options()).load())


def register_ticks(spark: SparkSession) -> None:
    """Register the source in a session, once."""
    if getattr(spark, _REGISTERED_MARK, False):
        return  # Spark warns of every repetition
    spark.dataSource.register(TickSource)
    setattr(spark, _REGISTERED_MARK, True)
