"""The settings and their sections: every setting with its default, its bounds and one line of description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, get_type_hints

_MIB = 1024 * 1024


def _setting(
    default: Any, doc: str, low: float | None = None, high: float | None = None, **more: object
) -> Any:
    """Return one field; `secret=True` hides its value, `words=(…)` lists the only texts that it takes."""
    # A traceback that shows the settings must not show a secret.
    shown = not more.get("secret", False)
    return field(default=default, repr=shown, metadata={"doc": doc, "low": low, "high": high, **more})


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The HTTP server."""

    host: str = _setting("127.0.0.1", "Address to listen on.")
    port: int = _setting(8787, "Port to listen on; 0 takes a free one.", 0, 65_535)
    body_bytes_max: int = _setting(32 * _MIB, "Largest request body.", 1024, 1024 * _MIB)
    header_bytes_max: int = _setting(64 * 1024, "Largest request line and headers together.", 1024, _MIB)
    messages_max: int = _setting(50_000, "Most messages in one publish or consume.", 1, 1_000_000)
    wait_ms_max: int = _setting(60_000, "Longest wait of a consume that finds nothing.", 0, 600_000)
    grace_seconds: float = _setting(10.0, "Time that accepted requests get to finish at a stop.", 0, 600)
    body_seconds_max: float = _setting(30.0, "Time that headers, and then a body, get to arrive.", 0.1, 3600)
    requests_max: int = _setting(256, "Requests that run at the same time; more get 429.", 1, 100_000)
    connections_max: int = _setting(12_000, "Connections that are open at the same time.", 1, 1_000_000)
    waits_max: int = _setting(10_000, "Requests that wait for messages at the same time.", 1, 1_000_000)
    page_rows_max: int = _setting(1_000, "Most entries in one page of a list.", 1, 1_000)
    public_url: str = _setting("", "Address that clients use, when it is not the one listened on.")
    tls_certificate_file: str = _setting("", "PEM certificate (chain); with a key, the server speaks TLS.")
    tls_key_file: str = _setting("", "PEM private key of the certificate.")


@dataclass(frozen=True, slots=True)
class CatalogSettings:
    """The catalog: tenants, users, tokens, audit, leases, jobs."""

    url: str = _setting(
        "", "postgresql://user:password@host/database; empty: SQLite in the home folder.", secret=True
    )
    connections_max: int = _setting(8, "Connections to PostgreSQL at most.", 1, 1000)
    timeout_seconds: float = _setting(5.0, "Longest wait for the database to answer.", 0.1, 600)
    audit_days_max: int = _setting(
        400, "Audit events and finished jobs older than this are removed.", 1, 36_500
    )


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """Tokens, links and sessions."""

    token_days_default: int = _setting(90, "Days that a token is valid by default; 0: no end.", 0, 36_500)
    refresh_seconds: float = _setting(
        2.0, "How soon a token revoked at another server is refused here.", 0.1, 600
    )
    stale_seconds_max: float = _setting(
        60.0, "How long known tokens work while the catalog does not answer.", 0, 86_400
    )
    guesses_max: int = _setting(20, "Wrong tokens from one address in a minute; more get 429.", 1, 100_000)
    link_seconds: float = _setting(600.0, "How long a one-time link can be used.", 1, 86_400)
    session_hours: float = _setting(12.0, "How long a browser stays signed in.", 0.01, 8760)


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Logs of the processes."""

    format: str = _setting(
        "people", "people: lines to read; json: an object a line.", words=("people", "json")
    )
    level: str = _setting(
        "info", "Lowest level that is written.", words=("debug", "info", "warning", "error")
    )
    slow_request_ms: float = _setting(1000.0, "A request that takes longer is logged.", 0, 3_600_000)


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """OpenTelemetry; off while no endpoint is named, and then it costs nothing."""

    endpoint_url: str = _setting("", "OTLP over HTTP, like http://127.0.0.1:4318/v1/traces; empty: off.")
    sample_ratio: float = _setting(1.0, "Share of the requests that is traced.", 0, 1)


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """RocksDB and the write path."""

    sync_writes: bool = _setting(
        True, "Acknowledge only what is on the disk (fsync, shared by waiting writers)."
    )
    block_cache_bytes: int = _setting(256 * _MIB, "Cache for blocks read from disk.", _MIB, 1 << 40)
    write_buffer_bytes: int = _setting(
        64 * _MIB, "Memory for writes before they are sorted to disk.", _MIB, 1 << 34
    )
    free_bytes_min: int = _setting(
        64 * _MIB, "Writes are refused when less disk than this is free.", 0, 1 << 44
    )


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Limits of topics."""

    partitions_max: int = _setting(256, "Most partitions that a topic may have.", 1, 65_536)
    message_bytes_max: int = _setting(4 * _MIB, "Largest key and payload of one message.", 1, 64 * _MIB)
    retention_interval_seconds: float = _setting(
        60.0, "Time between two rounds that remove messages past their retention.", 0.05, 86_400
    )
    lease_ms_default: int = _setting(
        30_000, "Lease of a message, unless the consumer names another.", 1, 43_200_000
    )
    lease_ms_max: int = _setting(43_200_000, "Longest lease that a consumer may ask for.", 1, 604_800_000)
    deliveries_max: int = _setting(16, "Deliveries of a message before it is a dead letter.", 1, 1_000_000)
    dead_letters: bool = _setting(
        True, "Move messages that fail too often to '<topic>.dead'; off: deliver them again without end."
    )
    in_flight_max: int = _setting(
        100_000, "Messages that a group may hold unacknowledged in one partition.", 1, 10_000_000
    )
    groups_max: int = _setting(1000, "Consumer groups of one topic.", 1, 100_000)
    member_seconds: float = _setting(
        60.0, "A member of a group that sends nothing for this long is no longer listed.", 0.1, 86_400
    )


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """Limits of SELECT."""

    timeout_seconds: float = _setting(60.0, "A statement that runs longer is stopped.", 0.001, 86_400)
    rows_max: int = _setting(100_000, "Most rows in a JSON or Arrow answer.", 1, 100_000_000)
    memory_mb: int = _setting(1024, "Memory of one statement in DuckDB before it spills.", 64, 1 << 20)
    threads: int = _setting(2, "Threads of one statement in DuckDB.", 1, 1024)
    statements_max: int = _setting(4, "Statements that run at the same time; more wait their turn.", 1, 1024)
    tenant_statements_max: int = _setting(0, "Those of one tenant; 0: all of them.", 0, 1024)
    user_statements_max: int = _setting(0, "Those of one user; 0: all of them.", 0, 1024)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The Spark driver."""

    spark_master: str = _setting("local[*,4]", "Spark master; ',4' lets a local task be tried again.")
    driver_memory_mb: int = _setting(2048, "Heap of the Spark driver.", 512, 1 << 20)
    trigger_interval_seconds: float = _setting(
        1.0, "Time between two micro-batches of a pipeline.", 0, 86_400
    )
    backoff_seconds_max: float = _setting(
        30.0, "Longest pause before a failed pipeline is tried again.", 0.1, 3600
    )


@dataclass(frozen=True, slots=True)
class SupervisorSettings:
    """`tidegate up`."""

    backoff_seconds_min: float = _setting(
        0.5, "First pause before a child that ended is started again.", 0, 60
    )
    backoff_seconds_max: float = _setting(30.0, "Longest such pause.", 0.1, 3600)
    stable_seconds: float = _setting(
        30.0, "After a child ran this long, the pauses begin at the first again.", 0, 3600
    )
    grace_seconds: float = _setting(20.0, "Time that a child gets to stop by itself.", 0, 600)


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """STREAM tables."""

    eviction_interval_seconds: float = _setting(
        60.0, "Time between two rounds that remove rows past their time to live.", 0.05, 86_400
    )
    flush_interval_seconds: float = _setting(
        1.0, "Longest time that an acknowledged row of a buffered stream waits in memory.", 0.01, 60
    )
    writers_max: int = _setting(256, "Log files that are open for writing at once.", 1, 65_536)
    buffer_bytes: int = _setting(64 * 1024, "Bytes that an open log file buffers in memory.", 512, 64 * _MIB)


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """Live subscriptions."""

    connections_max: int = _setting(4096, "Sockets at once.", 1, 1 << 20)
    connections_per_user_max: int = _setting(2048, "Sockets of one user at once.", 1, 1 << 20)
    subscriptions_per_connection_max: int = _setting(100, "Subscriptions of one socket.", 1, 65_536)
    page_rows_max: int = _setting(1000, "Rows in one message of a snapshot.", 1, 100_000)
    history_changes_max: int = _setting(
        20_000, "Newest changes of a table in memory, for subscribers that are behind.", 1, 10_000_000
    )
    history_bytes_max: int = _setting(32 * _MIB, "Most bytes of such changes, for each table.", 1024, 1 << 34)
    history_seconds: float = _setting(
        300.0, "Time that changes stay in memory once nobody is subscribed.", 0, 86_400
    )
    ping_seconds: float = _setting(20.0, "Time between two pings of a socket.", 0.1, 3600)
    send_seconds_max: float = _setting(
        30.0, "A socket that takes nothing for this long is closed.", 0.1, 3600
    )


_LIMIT_MAX = 2**53 - 1  # the largest whole number that every JSON reader keeps exact


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """Quotas of every tenant and every user that has none of its own; 0 is no limit."""

    tenant_requests_per_second_max: int = _setting(0, "Requests of a tenant; more get 429.", 0, _LIMIT_MAX)
    tenant_published_bytes_per_second_max: int = _setting(
        0, "Bytes that a tenant publishes; more get 429.", 0, _LIMIT_MAX
    )
    tenant_topics_max: int = _setting(0, "Topics of a tenant; more get 507.", 0, _LIMIT_MAX)
    tenant_groups_max: int = _setting(
        0, "Consumer groups of all topics of a tenant; more get 507.", 0, _LIMIT_MAX
    )
    tenant_tables_max: int = _setting(
        0, "Tables of a tenant, the lake left out; more get 507.", 0, _LIMIT_MAX
    )
    tenant_disk_bytes_max: int = _setting(
        0, "Bytes of a tenant on the disk, as last measured; writes beyond get 507.", 0, _LIMIT_MAX
    )
    user_requests_per_second_max: int = _setting(0, "Requests of a user; more get 429.", 0, _LIMIT_MAX)
    user_published_bytes_per_second_max: int = _setting(
        0, "Bytes that a user publishes; more get 429.", 0, _LIMIT_MAX
    )
    disk_interval_seconds: float = _setting(
        60.0, "Time between two measurements of the disk of tenants with such a quota.", 0.05, 86_400
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting, and the origin of each that is not a default."""

    server: ServerSettings = field(default_factory=ServerSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    topics: TopicSettings = field(default_factory=TopicSettings)
    streams: StreamSettings = field(default_factory=StreamSettings)
    live: LiveSettings = field(default_factory=LiveSettings)
    query: QuerySettings = field(default_factory=QuerySettings)
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    supervisor: SupervisorSettings = field(default_factory=SupervisorSettings)
    catalog: CatalogSettings = field(default_factory=CatalogSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    quotas: QuotaSettings = field(default_factory=QuotaSettings)
    log: LogSettings = field(default_factory=LogSettings)
    tracing: TracingSettings = field(default_factory=TracingSettings)
    origins: Mapping[str, str] = field(default_factory=dict)

    def origin(self, key: str) -> str:
        """Return where the value of a key came from: a file, a variable, a flag, or `default`."""
        return self.origins.get(key, "default")

    def value(self, key: str) -> object:
        """Return the value of a dotted key."""
        section, name = key.split(".")
        return getattr(getattr(self, section), name)

    def shown(self, key: str) -> object:
        """Return the value as people may see it: of a secret only whether it is set."""
        value = self.value(key)
        _, spec = known_settings()[key]
        return "(set)" if spec.metadata.get("secret") and value else value


# The sections by name: every field of the settings but their origins.
SECTIONS: Mapping[str, type] = {
    name: kind for name, kind in get_type_hints(Settings).items() if name != "origins"
}


def known_settings() -> dict[str, tuple[type, Field[Any]]]:
    """Return the type and the field of every setting by its dotted key."""
    found: dict[str, tuple[type, Field[Any]]] = {}
    for section, kind in SECTIONS.items():
        hints = get_type_hints(kind)
        for spec in fields(kind):
            found[f"{section}.{spec.name}"] = (hints[spec.name], spec)
    return found
