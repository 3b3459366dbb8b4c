"""Shapes of what the worker reports, as answers have them: the worker, its pipelines, their operators."""

from __future__ import annotations

import msgspec


class Worker(msgspec.Struct, rename="camel"):
    """The Spark worker as it reported last."""

    pid: int
    state: str
    memory_bytes: int
    spark_version: str
    state_disk_used_bytes: int | None
    state_disk_size_bytes: int | None
    seen_seconds_ago: float


class Dedup(msgspec.Struct, rename="camel"):
    """What an operator that deduplicates caught and stored; counts are since its partitions changed."""

    unique: int
    duplicates: int
    late: int
    keys: int
    bytes: int
    segments: int
    filter_bytes: int
    filter_probes: int
    filter_maybe: int
    filter_false: int
    reads: int
    lookup_seconds: float
    stream_time: str | None


class Operator(msgspec.Struct, rename="camel"):
    """The state of one operator as of its last whole batch; `next_timer` is the earliest that is set."""

    name: str
    partitions: int
    epoch: int
    batch: int | None
    entries: int
    state_bytes: int
    checkpoint_bytes: int
    dead_rows: int
    next_timer: str | None
    snapshot_batch: int | None
    dedup: Dedup | None


class Pipeline(msgspec.Struct, rename="camel"):
    """A pipeline as the worker reported it last; `lag` is what it has not taken yet."""

    name: str
    state: str
    batches: int
    rows: int
    rows_per_second: float
    last_batch_seconds: float | None
    error: str | None
    restarts: int
    topic: str | None
    table: str | None
    offsets: dict[str, dict[str, int]]
    operators: list[Operator]
    lag: int | None
