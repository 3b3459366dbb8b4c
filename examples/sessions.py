"""Sessions in a plain PySpark job: clicks that lie in JSON files become one row for each visit.

No Tidegate server is needed. With Tidegate installed beside Spark:

    python examples/sessions.py clicks/ visits/ checkpoint/

`clicks/` holds files with lines such as {"user_id": "ada", "feature": "map", "at": "2026-01-01T10:00:00Z"}.
Run it again with more files, or with another number of partitions: it continues where it stopped.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pyspark.sql import DataFrame, SparkSession

from tidegate import spark as tide

QUIET = timedelta(minutes=30)  # a visit is over after so long without a click


@dataclass
class Click:
    user_id: str
    feature: str
    at: datetime


@dataclass
class Visit:
    started_at: datetime
    last_at: datetime
    clicks: int = 0


@dataclass
class Summary:
    user_id: str
    started_at: datetime
    seconds: float
    clicks: int
    top_features: list[tuple[str, int]] = field(default_factory=list)


class Visits(tide.KeyedOperator[Click, Summary]):
    """Counts the clicks of a visit and tells of it when it is over."""

    visit = tide.ValueState(Visit)
    features = tide.MapState(str, int)

    def process(self, event: Click, ctx: tide.KeyedContext) -> Iterator[Summary]:
        visit = self.visit.value()
        if visit is not None and event.at > visit.last_at + QUIET:
            # The watermark has not got to the end of this visit yet, and the next one begins already.
            yield self._ended(ctx, visit)
            visit = None
        if visit is None:
            visit = Visit(started_at=event.at, last_at=event.at)
        ctx.cancel_timer(visit.last_at + QUIET)
        visit.clicks += 1
        visit.last_at = max(visit.last_at, event.at)
        visit.started_at = min(visit.started_at, event.at)
        self.visit.update(visit)
        self.features.put(event.feature, (self.features.get(event.feature) or 0) + 1)
        ctx.timer(visit.last_at + QUIET)

    def on_timer(self, timer: tide.Timer, ctx: tide.KeyedContext) -> Iterator[Summary]:
        visit = self.visit.value()
        if visit is not None and timer.at >= visit.last_at + QUIET:
            yield self._ended(ctx, visit)

    def _ended(self, ctx: tide.KeyedContext, visit: Visit) -> Summary:
        most = sorted(self.features.entries(), key=lambda entry: (-entry[1], entry[0]))[:3]
        seconds = (visit.last_at - visit.started_at).total_seconds()
        ctx.cancel_timer(visit.last_at + QUIET)
        self.visit.clear()
        self.features.clear()
        return Summary(ctx.key, visit.started_at, seconds, visit.clicks, most)


def visits(clicks: DataFrame, checkpoint: str, partitions: int | None = None) -> DataFrame:
    """Return the visits behind a stream, or a table, of clicks."""
    return tide.process(
        clicks,
        name="visits",
        key="user_id",
        operator=Visits(),
        event_time="at",
        checkpoint=checkpoint,
        partitions=partitions,
    )


def main(source: str, target: str, checkpoint: str) -> None:
    spark = SparkSession.builder.master("local[*,4]").getOrCreate()
    clicks = spark.readStream.schema("user_id string, feature string, at timestamp").json(source)
    query = (
        visits(clicks, checkpoint)
        .writeStream.format("parquet")
        .option("path", target)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
