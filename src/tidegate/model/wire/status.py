"""Health, status, and the worker's report on the wire.

The server answers with the same structs that it reads the worker's report into. In a report a field may be
missing and has its default then; an answer has all fields.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType, field

from tidegate.model.wire.struct import WireStruct
from tidegate.model.wire.topics import TopicResponse


class HealthResponse(WireStruct):
    """The server answers requests."""

    status: Literal["ok"]


class ComponentHealth(WireStruct):
    """Whether a component of the server works, and why it does not."""

    ok: bool
    reason: str


class ReadyResponse(WireStruct):
    """The server accepts work."""

    status: Literal["ready"]
    parts: dict[str, ComponentHealth]


class DedupReport(WireStruct):
    """What an operator that deduplicates dropped and stored; counts are since its partitions changed."""

    unique: int = 0
    duplicates: int = 0
    late: int = 0
    keys: int = 0
    bytes: int = 0
    segments: int = 0
    filter_bytes: int = 0
    filter_probes: int = 0
    filter_maybe: int = 0
    filter_false: int = 0
    reads: int = 0
    lookup_seconds: float = 0.0
    stream_time: str | None = None


class OperatorReport(WireStruct):
    """The state of one operator after its last complete batch; `nextTimer` is the earliest that is set."""

    name: str
    partitions: int = 0
    epoch: int = 0
    batch: int | None = None
    entries: int = 0
    state_bytes: int = 0
    checkpoint_bytes: int = 0
    dead_rows: int = 0
    next_timer: str | None = None
    snapshot_batch: int | None = None
    dedup: DedupReport | None = None


class PipelineReport(WireStruct):
    """A pipeline as the worker reports it."""

    name: str
    state: str
    batches: int = 0
    rows: int = 0
    rows_per_second: float = 0.0
    last_batch_seconds: float | None = None
    error: str | None = None
    restarts: int = 0
    topic: str | None = None
    table: str | None = None
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    operators: list[OperatorReport] = field(default_factory=list)


class PipelineResponse(PipelineReport, kw_only=True):
    """A pipeline as the worker reported it last, or a stopped one; `lag` counts the messages ahead of it."""

    lag: int | None


class PipelineList(WireStruct):
    """Every pipeline that the worker runs, and those that are stopped."""

    pipelines: list[PipelineResponse]


class WorkerState(WireStruct):
    """The worker itself, without its pipelines."""

    pid: int
    state: str
    memory_bytes: int = 0
    spark_version: str = ""
    state_disk_used_bytes: int | None = None
    state_disk_size_bytes: int | None = None


class WorkerReport(WorkerState):
    """The report of the worker and its pipelines."""

    pipelines: list[PipelineReport] = field(default_factory=list)


class WorkerResponse(WorkerState, kw_only=True):
    """The worker as it reported last, and how long ago."""

    seen_seconds_ago: float


class WorkerReportResponse(WireStruct):
    """The report is noted."""

    ok: bool


class LakeTableResponse(WireStruct):
    """A lake table; one that cannot be read has an error instead of figures."""

    name: str
    version: int | None
    files: int | None
    bytes: int | None
    error: str | UnsetType = UNSET


class StatusResponse(WireStruct):
    """The state of the server; what belongs to the whole instance is null in other tenants than the first."""

    version: str
    tenant: str
    home: str | None
    pid: int | None
    uptime_seconds: float
    memory_bytes: int | None
    disk_free_bytes: int | None
    topics: list[TopicResponse]
    topics_total: int
    messages_total: int
    messages_per_second: float
    worker: WorkerResponse | None
    pipelines: list[PipelineResponse]
    tables: list[LakeTableResponse]
