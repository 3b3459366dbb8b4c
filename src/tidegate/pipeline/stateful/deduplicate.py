"""Deduplication on Spark: the rows of a DataFrame without those whose key was seen before.

Rows are shuffled to the instance that owns their key group, and each instance runs in one task per batch
(`dedup_task`). The plan is three steps, followed by any sink:

    digest     two 64-bit hashes of the key columns and their key group, computed by the JVM (`key_digests`)
    shuffle    repartitionById(parallelism, key group * parallelism div max_parallelism)
    task       mapInArrow, which Spark calls for empty partitions too
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
from tidegate.checkpoint.keys.codec import KeyType, StateKeyColumn
from tidegate.checkpoint.settings import StateSettings
from tidegate.checkpoint.store import CheckpointStore, operator_store
from tidegate.dedup.decision import OUTCOMES
from tidegate.dedup.identity import (
    DIGEST_CONTENT,
    DIGEST_EXACT,
    DIGEST_XXHASH,
    DedupIdentity,
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
from tidegate.pipeline.stateful.dedup_columns import RowLayout
from tidegate.pipeline.stateful.dedup_options import (
    DEDUP_TYPES,
    FIRST_TIME_SUFFIX,
    DedupKey,
    DedupOptions,
    check_dedup,
    find_key,
    find_rule,
)
from tidegate.pipeline.stateful.dedup_task import DedupTask
from tidegate.pipeline.stateful.driver import (
    MEMORY_BYTES_DEFAULT,
    find_local_root,
    find_max_parallelism,
    observation_name,
    plan_tasks,
    shuffle_by_key_group,
)
from tidegate.pipeline.stateful.key_digests import ContentHash, UnsupportedKeyType, content_digest, hash_pair
from tidegate.pipeline.stateful.options import (
    absolute_path,
    check_counts,
    check_frame,
    check_paths,
    check_types,
    resolve_column,
)
from tidegate.pipeline.stateful.task_context import reword_hint
from tidegate.state.schema.schema import SchemaRequest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

FUNCTION = "deduplicate"
# The keys in segments, unless they are stored exactly.
_DIGEST_KEY = KeyType((StateKeyColumn("digest", "binary"),))


@contextmanager
def _hints_name_function() -> Iterator[None]:
    """Let the hints of errors name the function that was called."""
    try:
        yield
    except TidegateError as problem:
        reword_hint(problem, FUNCTION)
        raise


@_hints_name_function()
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
    `expected_rate`, in rows a second, lets filters be sized in advance. `partitions`, `max_parallelism`,
    `savepoint`, `snapshot_every`, `local_dir` and `run` are those of `process`. What cannot run is refused
    before any row is touched.
    """
    check_types(name, DEDUP_TYPES, on=on, event_time=event_time, outcome=outcome, offset=offset)
    check_types(name, DEDUP_TYPES, exact_keys=exact_keys, expected_rate=expected_rate, rocks=rocks)
    check_counts(name, partitions, max_parallelism, snapshot_every)
    check_paths(name, checkpoint=checkpoint, savepoint=savepoint, local_dir=local_dir)
    check_frame(name, df)
    rule = find_rule(name, retention, interval)
    segments = _segments(name, rule, exact_keys=exact_keys, with_offsets=offset is not None)
    settings = StateSettings(
        backend=SegmentStoreFactory(segments, rocks or default_rocks(MEMORY_BYTES_DEFAULT)),
        local_root=find_local_root(df, name, local_dir),
        snapshot_every_batches=SNAPSHOT_EVERY_BATCHES if snapshot_every is None else snapshot_every,
        snapshot_changes_bytes_max=SNAPSHOT_CHANGES_BYTES_MAX,
    )
    options = DedupOptions(
        name=name,
        event_time=resolve_column(df, event_time),
        rule=rule,
        settings=settings,
        checkpoint=absolute_path(name, "checkpoint", checkpoint),
        savepoint=absolute_path(name, "savepoint", savepoint),
        partitions=partitions,
        max_parallelism=max_parallelism,
        outcome=outcome,
        exact_keys=exact_keys,
        offset=None if offset is None else resolve_column(df, offset),
        expected_rate=expected_rate,
        run=run,
    )
    return unique_rows(df, on, options, SystemClock())


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
    layout, added = _lay_out(df, options, key, max_parallelism)
    identity = _identity(options, key, layout)
    _check_stored(options, identity)
    request = SchemaRequest(options.name, layout.key_type or _DIGEST_KEY, max_parallelism, ())
    context = plan_tasks(df, options, request, clock, FUNCTION)
    context = replace(context, settings=_sized(context.settings, options, context.parallelism))
    task = DedupTask(context, request, identity, options.rule, layout, _first_time(df, options))
    return _map(df, options, task, added, observation_name(df, options.name, clock))


def _segments(name: str, rule: SegmentRule, *, exact_keys: bool, with_offsets: bool) -> SegmentSettings:
    return SegmentSettings(
        store=name,
        retention_us=rule.retention_us,
        interval_us=rule.interval_us,
        exact_keys=exact_keys,
        with_offsets=with_offsets,
    )


def _sized(settings: StateSettings, options: DedupOptions, parallelism: int) -> StateSettings:
    """Return the settings of one of so many instances, with the keys that each of its segments expects."""
    factory = settings.backend
    if options.expected_rate is None or not isinstance(factory, SegmentStoreFactory):
        return settings
    keys = options.rule.keys_at(options.expected_rate, parallelism)
    segments = replace(factory.settings, expected_keys=keys)
    return replace(settings, backend=replace(factory, settings=segments))


def _lay_out(
    df: DataFrame, options: DedupOptions, key: DedupKey, max_parallelism: int
) -> tuple[RowLayout, list[Column]]:
    """Return the layout of the rows that tasks get, and the columns that are added to the caller's."""
    from pyspark.sql import functions as sql
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructField, StructType

    columns = [(part.column, part.kind) for part in key.parts]
    try:
        hashes = [content_digest(columns)] if key.is_content else list(hash_pair(columns))
    except UnsupportedKeyType as problem:
        raise options.invalid(f"its key has a column of type {problem}; cast it to string") from problem
    whole = sql.xxhash64(hashes[0]) if key.is_content else hashes[0]
    group = sql.pmod(whole, sql.lit(max_parallelism)).cast("int")
    layout = RowLayout(
        operator=options.name,
        input_columns=len(df.columns),
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
    added = [part.column for part in key.parts if part.column_index is None]
    added_index = itertools.count(layout.input_columns + 1)
    indexes = tuple(
        next(added_index) if part.column_index is None else part.column_index for part in key.parts
    )
    return replace(layout, key_type=key_type, key_columns=indexes), [group, *added]


def _identity(options: DedupOptions, key: DedupKey, layout: RowLayout) -> DedupIdentity:
    digest = DIGEST_CONTENT if key.is_content else DIGEST_XXHASH
    columns = tuple((part.name, digest_kind(part.kind.simpleString())) for part in key.parts)
    if layout.key_type is not None:
        digest = DIGEST_EXACT
        columns = tuple((column.name, column.kind) for column in layout.key_type.columns)
    return DedupIdentity(
        retention_us=options.rule.retention_us,
        interval_us=options.rule.interval_us,
        exact_keys=options.exact_keys,
        with_offsets=options.offset is not None,
        columns=columns,
        digest=digest,
    )


def _check_stored(options: DedupOptions, identity: DedupIdentity) -> None:
    """Refuse another identity than that of the checkpoint or the savepoint; nothing is written."""
    if options.checkpoint is None:
        return
    stores = [operator_store(options.checkpoint, options.name)]
    if options.savepoint is not None:
        stores.append(CheckpointStore(Path(options.savepoint)))
    for store in stores:
        if read_identity(store, options.name) is not None:
            check_identity(store, identity, options.name)


def _first_time(df: DataFrame, options: DedupOptions) -> pa.DataType | None:
    """Return the type of the column with first times: as the event time has it, a bigint's as a timestamp."""
    import pyarrow as pa
    from pyspark.sql.types import TimestampNTZType

    if options.outcome is None:
        return None
    is_local = isinstance(df.schema[options.event_time].dataType, TimestampNTZType)
    return pa.timestamp("us", tz=None if is_local else "UTC")


def _map(df: DataFrame, options: DedupOptions, task: DedupTask, added: list[Column], label: str) -> DataFrame:
    """Shuffle rows to their instances, add the task, and restore the names of the columns.

    In between, columns are named by their numbers: their names may be anything, and two may share one.
    """
    from pyspark.sql import functions as sql

    wide = df.select("*", *(column.alias("added") for column in added))
    numbered = wide.toDF(*(_column_name(index) for index in range(len(wide.columns))))
    group = _column_name(task.layout.group)
    metric = sql.count(sql.lit(1)).alias("rows")
    shuffled = shuffle_by_key_group(numbered, group, task.context, label, metric)
    output = shuffled.mapInArrow(task, _output_schema(df, options))
    return _observe_outcomes(output, options, label).toDF(*df.columns, *_added_names(options))


def _observe_outcomes(output: DataFrame, options: DedupOptions, label: str) -> DataFrame:
    """Let Spark count the outcomes, for the progress of the query."""
    from pyspark.sql import functions as sql

    if options.outcome is None:
        counts = [sql.count(sql.lit(1)).alias("unique")]
    else:
        outcome = sql.col(output.columns[-2])
        counts = [sql.count_if(outcome == name).alias(name) for name in OUTCOMES]
    return output.observe(f"{label}.outcome", *counts)


def _output_schema(df: DataFrame, options: DedupOptions) -> StructType:
    """Return the columns of the output with their metadata: a column with a watermark keeps it."""
    from pyspark.sql.types import StringType, StructField, StructType, TimestampNTZType, TimestampType

    fields = [
        StructField(_column_name(index), field.dataType, field.nullable, field.metadata)
        for index, field in enumerate(df.schema.fields)
    ]
    if options.outcome is not None:
        is_local = isinstance(df.schema[options.event_time].dataType, TimestampNTZType)
        time = TimestampNTZType() if is_local else TimestampType()
        fields.append(StructField(_column_name(len(fields)), StringType(), nullable=False))
        fields.append(StructField(_column_name(len(fields)), time))
    return StructType(fields)


def _added_names(options: DedupOptions) -> list[str]:
    if options.outcome is None:
        return []
    return [options.outcome, options.outcome + FIRST_TIME_SUFFIX]


def _column_name(index: int) -> str:
    return f"c{index}"
