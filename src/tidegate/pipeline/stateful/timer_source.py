"""Ticks: take the timers that a keyed operator waits for, give Spark a reason to run a batch; keep nothing.

Spark runs no batch while its sources have nothing new, so the timers of idle keys would wait for ever. This
source gives no rows. Its offset moves when a timer is due, at most once for each batch that Spark committed,
and stands still otherwise: a pipeline without due timers runs no batches.
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
from tidegate.checkpoint.epochs import governing, is_complete, listed, times_after
from tidegate.checkpoint.store import checkpoint_path, operator_depot
from tidegate.errors import InvariantBroken
from tidegate.model.clock import Clock, SystemClock
from tidegate.pipeline.stateful.spark_log import CommittedBatch, newest_committed, newest_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

SOURCE_NAME = "tidegate.ticks"

# Spark asks an idle source every 10 ms; the folders are looked at no more often than this.
LOOK_MS_DEFAULT = 100

# Marks the offsets of ticks among those of other sources.
OPERATOR_MARK = "ticksOf"

# The offset is the last committed batch before the tick; this one stands before the first batch.
_NEVER = -1

_REGISTERED_MARK = "_tidegate_ticks_registered"

Offset = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TickSettings:
    """Whose timers to look at: `lateness_ms` is None where Spark itself keeps the watermark."""

    checkpoint: str
    operator: str
    lateness_ms: int | None
    every_ms: int = LOOK_MS_DEFAULT
    # Asleep, it stands in the checkpoint as before and never ticks.
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
    """Return settings behind the options of the source, whose names Spark may have put in small letters."""
    given = {name.lower(): value for name, value in options.items()}
    lateness = given["latenessms"]
    return TickSettings(
        checkpoint=given["checkpoint"],
        operator=given["operator"],
        lateness_ms=int(lateness) if lateness else None,
        every_ms=int(given["everyms"]),
        is_awake=given["isawake"] == "True",
    )


class TickSource(DataSource):  # type: ignore[misc]
    """What `format("tidegate.ticks")` builds."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._settings = parse_tick_options(options)

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return SOURCE_NAME

    def schema(self) -> StructType | str:
        """Rows never come, so their columns are those of the stream beside which ticks run."""
        raise InvariantBroken(reason="ticks take the columns of another stream")

    def streamReader(self, schema: StructType) -> TickReader:  # noqa: N802, ARG002 - the names are Spark's
        """Return the reader of a streaming query."""
        return TickReader(self._settings)


class TickReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Returns that something is new whenever a timer is due."""

    def __init__(self, settings: TickSettings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._looked_seconds: float | None = None
        self._seen: tuple[CommittedBatch, Times] | None = None
        self._every_ms = settings.every_ms

    def initialOffset(self) -> Offset:  # noqa: N802 - the name is Spark's
        """Return where a query without a checkpoint begins."""
        return self._offset(_NEVER)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802, ARG002
        """Return the newest committed batch when a timer is due behind it, else `start`."""
        if not self._settings.is_awake:
            return start
        now_seconds = self._clock.monotonic_seconds()
        last_seconds = self._looked_seconds
        if last_seconds is not None and (now_seconds - last_seconds) * 1000 < self._every_ms:
            return start
        self._looked_seconds = now_seconds
        committed = newest_committed(Path(self._settings.checkpoint))
        if committed is None or committed.number <= start["after"] or not self._is_due(committed):
            return start
        return self._offset(committed.number)

    def _offset(self, number: int) -> Offset:
        """The operator's name lets a later start see whose ticks a checkpoint has."""
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
        """A tick is not cut."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - the name is Spark's
        """Look whenever Spark asks: a run ends with the first answer that nothing is new.

        Its end is not fixed: timers that become due by the rows of the run fire in it.
        """
        self._every_ms = 0

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:  # noqa: ARG002
        """Return the one partition, which is empty."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Return no rows."""
        return iter(())


def has_ticks(checkpoint: str, operator: str) -> bool | None:
    """Return whether a checkpoint has ticks of an operator; None when it has no batch yet."""
    lines = newest_offsets(checkpoint_path(checkpoint))
    if lines is None:
        return None
    marks = (json.loads(line).get(OPERATOR_MARK) for line in lines if OPERATOR_MARK in line)
    return operator in marks


def read_times(settings: TickSettings, number: int) -> Times:
    """Return what an operator waits for after a batch; nothing when one of its partitions has not done it."""
    depot = operator_depot(settings.checkpoint, settings.operator)
    epoch = governing(listed(depot), number)
    if epoch is None or not is_complete(depot, epoch, number):
        return NO_TIMES
    return times_after(depot, epoch, number)


def with_ticks(df: DataFrame, settings: TickSettings) -> DataFrame:
    """Return the stream with ticks beside it: the same rows, and a batch whenever a timer is due."""
    register_ticks(df.sparkSession)
    reader = df.sparkSession.readStream.format(SOURCE_NAME).schema(df.schema)
    return df.union(reader.options(**settings.to_options()).load())


def register_ticks(spark: SparkSession) -> None:
    """Make the source known to a session; one that knows it already stays as it is."""
    if getattr(spark, _REGISTERED_MARK, False):
        return  # Spark warns of every second time
    spark.dataSource.register(TickSource)
    setattr(spark, _REGISTERED_MARK, True)
