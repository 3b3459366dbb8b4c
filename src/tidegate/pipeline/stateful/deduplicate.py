"""Deduplication on Spark: take a DataFrame, give its rows without those whose key was seen before.

Rows are brought to the instance that owns their key group, and each instance works in one task a batch
(`dedup_task`). The plan is three steps that any sink can stand behind:

    digest       two 64-bit hashes of the key columns and their key group, computed by the JVM (`digests`)
    placement    repartitionById(parallelism, key group * parallelism div max_parallelism)
    work         mapInArrow, which Spark calls for empty partitions too
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.checkpoint.backends.rocksdb_options import RocksSettings
from tidegate.checkpoint.keys.codec import KeyColumn, KeyType
from tidegate.checkpoint.settings import StateSettings
from tidegate.checkpoint.store import Depot, operator_depot
from tidegate.dedup.decision import OUTCOMES
from tidegate.dedup.identity import (
    DIGEST_CONTENT,
    DIGEST_EXACT,
    DIGEST_XXHASH,
    Identity,
    check_identity,
    digest_kind,
    read_identity,
)
from tidegate.dedup.settings import (
    SNAPSHOT_CHANGES_BYTES_MAX,
    SNAPSHOT_EVERY_BATCHES,
    SegmentRule,
    SegmentSettings,
    default_rocks,
)
from tidegate.dedup.store.store import SegmentStoreFactory
from tidegate.errors import TidegateError
from tidegate.model.clock import Clock, SystemClock
from tidegate.pipeline.stateful.arguments import spelled
from tidegate.pipeline.stateful.dedup_checks import (
    FIRST_TIME_SUFFIX,
    DedupKey,
    DedupOptions,
    check_dedup,
    check_given,
    find_key,
    find_rule,
)
from tidegate.pipeline.stateful.dedup_columns import RowLayout
from tidegate.pipeline.stateful.dedup_task import DedupTask
from tidegate.pipeline.stateful.driver import (
    MEMORY_BYTES_DEFAULT,
    absolute_path,
    find_local_root,
    find_max_parallelism,
    find_parallelism,
    find_start,
    new_call_id,
    observation_name,
    plan_batch_job,
    repartition_by_key_group,
    with_task_slots,
)
from tidegate.pipeline.stateful.key_digests import ContentHash, UnsupportedKeyType, content_digest, hash_pair
from tidegate.pipeline.stateful.keyed_checks import invalid
from tidegate.pipeline.stateful.task_context import StatefulTaskContext, reword_hint
from tidegate.state.schema.schema import Wanted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

US_PER_SECOND = 1_000_000
DOOR = "deduplicate"
# As keys lie in segments, unless they are stored exactly.
_DIGEST_KEY = KeyType((KeyColumn("digest", "binary"),))


def deduplicate(  # noqa: PLR0913 - the one call of the public door: keywords, each with a default
    df: DataFrame,
    name: str,
    on: str | Column | ContentHash | Sequence[str | Column],
    event_time: str,
    retention: str | timedelta,
    checkpoint: str | os.PathLike[str] | None = None,
    *,
    outcome: str | None = None,
    exact_keys: bool = False,
    offset: str | None = None,
    interval: str | timedelta | None = None,
    partitions: int | None = None,
    max_parallelism: int | None = None,
    rocks: RocksSettings | None = None,
    expected_rate: float | None = None,
    savepoint: str | os.PathLike[str] | None = None,
    snapshot_every: int | None = None,
    local_dir: str | os.PathLike[str] | None = None,
    run: str | None = None,
) -> DataFrame:
    """Drop rows whose key was seen less than the retention of event time away, exactly, exactly once.

    Of rows with one key the first to arrive wins; inside one batch the earliest by event time, then by
    `offset`, the name of a bigint column. `on` is a column's name, an expression, several of them, or
    `content_hash(…)`; null equals null. A row is late when it is older than the newest event time of the
    batches before less the retention; late rows are dropped too, and counted. With `outcome`, the name of a
    new column, every row stays, and that column says 'unique', 'duplicate' or 'late'; a second one,
    `<outcome>_first_time`, says when a duplicate was first seen.

    `checkpoint` is the query's own checkpointLocation; a batch DataFrame may go without, and forgets its keys
    afterwards. Keys are stored as 16-byte digests, with `exact_keys` as they are. `interval` is how long a
    segment of keys is: half the retention unless set, and fixed at the first start, as the key is.
    `expected_rate`, in rows a second, lets filters be made as large as they will be needed. `partitions`,
    `max_parallelism`, `savepoint`, `snapshot_every`, `local_dir` and `run` are as `process` takes them.
    Refuses what cannot run before any row is touched.
    """
    with _worded():
        check_given(locals())
        rule = find_rule(name, retention, interval)
        settings = StateSettings(
            backend=SegmentStoreFactory(
                _segments(name, rule, exact_keys=exact_keys, with_offsets=offset is not None),
                rocks or default_rocks(MEMORY_BYTES_DEFAULT),
            ),
            local_root=find_local_root(df, name, local_dir),
            snapshot_every_batches=SNAPSHOT_EVERY_BATCHES if snapshot_every is None else snapshot_every,
            snapshot_changes_bytes_max=SNAPSHOT_CHANGES_BYTES_MAX,
        )
        options = DedupOptions(
            name=name,
            event_time=spelled(df, event_time),
            rule=rule,
            settings=settings,
            checkpoint=absolute_path(name, "checkpoint", checkpoint),
            savepoint=absolute_path(name, "savepoint", savepoint),
            partitions=partitions,
            max_parallelism=max_parallelism,
            outcome=outcome,
            exact_keys=exact_keys,
            offset=None if offset is None else spelled(df, offset),
            expected_rate=expected_rate,
            run=run,
        )
        return unique_rows(df, on, options, SystemClock())


@contextmanager
def _worded() -> Iterator[None]:
    """Let errors speak of the function that was called."""
    try:
        yield
    except TidegateError as problem:
        reword_hint(problem, DOOR)
        raise


def unique_rows(
    df: DataFrame,
    on: str | Column | ContentHash | Sequence[str | Column],
    options: DedupOptions,
    clock: Clock,
) -> DataFrame:
    """Return the DataFrame of the rows that stay; see `deduplicate`."""
    key = find_key(df, options.name, on)
    max_parallelism = find_max_parallelism(options)
    check_dedup(df, options, key, max_parallelism)
    layout, ours = _laid_out(df, options, key, max_parallelism)
    identity = _identity(options, key, layout)
    _check_stored(options, identity)
    wanted = Wanted(options.name, layout.key_type or _DIGEST_KEY, max_parallelism, ())
    start = find_start(df, wanted, options)
    parallelism = find_parallelism(df, start, options, max_parallelism)
    seat = StatefulTaskContext(
        operator=options.name,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        settings=_settings(df, options, parallelism),
        checkpoint=options.checkpoint,
        seen_epoch=start.seen_epoch if start else None,
        savepoint=options.savepoint,
        call=new_call_id(df, clock),
        door=DOOR,
    )
    if not df.isStreaming:
        planned, seen = plan_batch_job(df, options, start, clock)
        # A run is one whichever call makes it: in foreachBatch too, it may be tried again.
        call = seat.call if options.run is None else planned.plan_id
        seat = replace(seat, planned=planned, seen_epoch=seen, call=call)
    task = DedupTask(seat, wanted, identity, options.rule, layout, _first_time(df, options))
    return _worked(df, options, task, ours, observation_name(df, options.name, new_call_id(df, clock)))


def _segments(name: str, rule: SegmentRule, *, exact_keys: bool, with_offsets: bool) -> SegmentSettings:
    return SegmentSettings(
        store=name,
        retention_us=rule.retention_us,
        interval_us=rule.interval_us,
        exact_keys=exact_keys,
        with_offsets=with_offsets,
    )


def _settings(df: DataFrame, options: DedupOptions, parallelism: int) -> StateSettings:
    """Return the settings of one instance among so many."""
    settings = with_task_slots(df, options.settings)
    factory = settings.backend
    if options.expected_rate is None or not isinstance(factory, SegmentStoreFactory):
        return settings
    keys = options.expected_rate * options.rule.interval_us / US_PER_SECOND / parallelism
    segments = replace(factory.settings, expected_keys=max(1, round(keys)))
    return replace(settings, backend=replace(factory, settings=segments))


def _laid_out(
    df: DataFrame, options: DedupOptions, key: DedupKey, max_parallelism: int
) -> tuple[RowLayout, list[Column]]:
    """Return what stands where in the rows that tasks are given, and give the columns that we add."""
    from pyspark.sql import functions as sql
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructField, StructType

    columns = [(part.column, part.kind) for part in key.parts]
    try:
        hashes = [content_digest(columns)] if key.is_content else list(hash_pair(columns))
    except UnsupportedKeyType as problem:
        raise invalid(options, f"its key has a column of type {problem}; cast it to string") from problem
    whole = sql.xxhash64(hashes[0]) if key.is_content else hashes[0]
    group = sql.pmod(whole, sql.lit(max_parallelism)).cast("int")
    layout = RowLayout(
        operator=options.name,
        given=len(df.columns),
        event_time=df.columns.index(options.event_time),
        event_time_name=options.event_time,
        offset=None if options.offset is None else df.columns.index(options.offset),
        offset_name=options.offset or "",
    )
    if not options.exact_keys:
        return layout, [group, *hashes]
    schema = StructType([StructField(part.name, part.kind) for part in key.parts])
    names = [part.name for part in key.parts]
    key_type = KeyType.from_arrow(names, to_arrow_schema(schema, timezone="UTC"), operator=options.name)
    added = [part.column for part in key.parts if part.place is None]
    behind = itertools.count(layout.given + 1)
    places = tuple(next(behind) if part.place is None else part.place for part in key.parts)
    return replace(layout, key_type=key_type, key_places=places), [group, *added]


def _identity(options: DedupOptions, key: DedupKey, layout: RowLayout) -> Identity:
    digest = DIGEST_CONTENT if key.is_content else DIGEST_XXHASH
    columns = tuple((part.name, digest_kind(part.kind.simpleString())) for part in key.parts)
    if layout.key_type is not None:
        digest = DIGEST_EXACT
        columns = tuple((column.name, column.kind) for column in layout.key_type.columns)
    return Identity(
        retention_us=options.rule.retention_us,
        interval_us=options.rule.interval_us,
        exact_keys=options.exact_keys,
        with_offsets=options.offset is not None,
        columns=columns,
        digest=digest,
    )


def _check_stored(options: DedupOptions, identity: Identity) -> None:
    """Compare with what the checkpoint, or the savepoint, was begun with; nothing is written."""
    if options.checkpoint is None:
        return
    depots = [operator_depot(options.checkpoint, options.name)]
    if options.savepoint is not None:
        depots.append(Depot(Path(options.savepoint)))
    for depot in depots:
        if read_identity(depot, options.name) is not None:
            check_identity(depot, identity, options.name)


def _first_time(df: DataFrame, options: DedupOptions) -> pa.DataType | None:
    """Return the type of the column with first times: as the event time has it, a bigint's as a timestamp."""
    import pyarrow as pa
    from pyspark.sql.types import TimestampNTZType

    if options.outcome is None:
        return None
    is_local = isinstance(df.schema[options.event_time].dataType, TimestampNTZType)
    return pa.timestamp("us", tz=None if is_local else "UTC")


def _worked(
    df: DataFrame, options: DedupOptions, task: DedupTask, ours: list[Column], label: str
) -> DataFrame:
    """Bring each row to its instance, and give what comes out under the names that it had.

    On the way columns go by number: their names may be anything, and two may share one.
    """
    from pyspark.sql import functions as sql

    wide = df.select("*", *(column.alias("ours") for column in ours))
    numbered = wide.toDF(*(_numbered(place) for place in range(len(wide.columns))))
    # Spark drops a shuffle of what it knows to be empty, and with it all tasks behind. It does not look
    # through what is observed: every instance has its task in every batch, whose state the next begins with.
    seen = numbered.observe(label, sql.count(sql.lit(1)).alias("rows"))
    group = _numbered(task.layout.group)
    placed = repartition_by_key_group(seen, group, task.seat.parallelism, task.seat.max_parallelism)
    worked = placed.mapInArrow(task, _schema_out(df, options))
    return _counted(worked, options, label).toDF(*df.columns, *_names_added(options))


def _counted(worked: DataFrame, options: DedupOptions, label: str) -> DataFrame:
    """Let Spark count what comes out, for the progress of the query."""
    from pyspark.sql import functions as sql

    if options.outcome is None:
        counts = [sql.count(sql.lit(1)).alias("unique")]
    else:
        outcome = sql.col(worked.columns[-2])
        counts = [sql.count_if(outcome == name).alias(name) for name in OUTCOMES]
    return worked.observe(f"{label}.outcome", *counts)


def _schema_out(df: DataFrame, options: DedupOptions) -> StructType:
    """Return the columns that come out, with all that Spark knows of them: a watermark stays one."""
    from pyspark.sql.types import StringType, StructField, StructType, TimestampNTZType, TimestampType

    fields = [
        StructField(_numbered(place), field.dataType, field.nullable, field.metadata)
        for place, field in enumerate(df.schema.fields)
    ]
    if options.outcome is not None:
        is_local = isinstance(df.schema[options.event_time].dataType, TimestampNTZType)
        time = TimestampNTZType() if is_local else TimestampType()
        fields.append(StructField(_numbered(len(fields)), StringType(), nullable=False))
        fields.append(StructField(_numbered(len(fields)), time))
    return StructType(fields)


def _names_added(options: DedupOptions) -> list[str]:
    if options.outcome is None:
        return []
    return [options.outcome, options.outcome + FIRST_TIME_SUFFIX]


def _numbered(place: int) -> str:
    return f"c{place}"
