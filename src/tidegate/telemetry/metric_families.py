"""The table of all metrics: the name, kind, unit and labels of each, and how many values a label may have.

`Metrics` makes them from this table, `docs/operate/metrics.md` lists it, and tests hold the three together.
Every label has few values: a fixed list of words, or a bound beyond which names fold into `other`. Names of
topics and users, tokens and addresses are never labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
# event: counted as it happens; scrape: read from the running server at a scrape.
Source = Literal["event", "scrape"]

OTHER = "other"
# Series cost memory here and in Prometheus: a server with more tenants or pipelines than this shows the rest
# as one.
TENANT_LABELS_MAX = 50
PIPELINE_LABELS_MAX = 50
# The table of routes is fixed and has some fifty entries; this only guards against a mistake in the code.
ROUTE_LABELS_MAX = 200
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", OTHER)
STATUS_LABELS_MAX = 500  # 100 to 599
REFUSALS = ("token", "forbidden", "busy", "guesses", "quota")
PIPELINE_STATES = ("starting", "running", "failed", "stopped", OTHER)
OUTCOMES = ("done", "failed")
STATEMENT_KINDS = (
    *("select", "insert", "upsert", "update", "delete", "ddl"),
    *("publish", "consume", "ack", OTHER),
)
# refused: a mistake or missing right of the client, or a conflict with stored data; failed: the server's
# fault.
STATEMENT_OUTCOMES = ("done", "refused", "failed")
TABLE_KINDS = ("user", "shared", "stream", OTHER)
LOG_LEVELS = ("warning", "error")
SCRAPE_PARTS = ("load", "catalog", "engine", "topics", "disk", "process", "worker", "lake", "logs", "quotas")

QUERY_PROCESS_STATES = ("running", "idle")
QUERY_PROCESS_ENDS = ("retired", "stopped", "time", "memory", "crash")

# From a hot publish (about a millisecond with its sync) to a long poll or a statement of a minute.
SECONDS_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
SYNC_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5)
CHANGES_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
BYTES_BUCKETS = (256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0)


@dataclass(frozen=True, slots=True)
class Label:
    """One label: its name, and all the values it can have, or how many names it takes besides `other`."""

    name: str
    words: tuple[str, ...] = ()
    names_max: int = 0


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: `unit` is the one its name ends in, empty where it only counts."""

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[Label, ...] = ()
    source: Source = "event"
    buckets: tuple[float, ...] = ()


_TENANT = Label("tenant", names_max=TENANT_LABELS_MAX)
_PIPELINE = Label("pipeline", names_max=PIPELINE_LABELS_MAX)
_BY_PIPELINE: tuple[tuple[Label, ...], Source] = ((_PIPELINE,), "scrape")  # a counter's, read at a scrape
_ROUTE = Label("route", names_max=ROUTE_LABELS_MAX)
_METHOD = Label("method", words=METHODS)
_STATUS = Label("status", names_max=STATUS_LABELS_MAX)


def _counter(
    name: str, unit: str, help_text: str, labels: tuple[Label, ...] = (), source: Source = "event"
) -> Family:
    return Family(name, "counter", unit, help_text, labels, source)


def _gauge(
    name: str, unit: str, help_text: str, labels: tuple[Label, ...] = (), source: Source = "scrape"
) -> Family:
    return Family(name, "gauge", unit, help_text, labels, source)


def _histogram(
    name: str, unit: str, help_text: str, buckets: tuple[float, ...], labels: tuple[Label, ...] = ()
) -> Family:
    return Family(name, "histogram", unit, help_text, labels, "event", buckets)


_HTTP = (
    _counter(
        "tidegate_http_requests_total",
        "",
        "Requests that were answered. The route is the template of the path; (none) where no route matched.",
        (_ROUTE, _METHOD, _STATUS),
    ),
    _histogram(
        "tidegate_http_request_duration_seconds",
        "seconds",
        "Time from the first byte of a request to the end of its answer; long polls count their wait.",
        SECONDS_BUCKETS,
        (_ROUTE,),
    ),
    _gauge("tidegate_http_requests_in_flight", "", "Requests that run now, long polls that wait left out."),
    _gauge("tidegate_http_polls_waiting", "", "Long polls that wait for messages now."),
    _counter(
        "tidegate_http_refused_total",
        "",
        "Requests refused: by a missing or wrong token, by a role, by load, after guessing, or by a quota.",
        (Label("reason", words=REFUSALS),),
    ),
    _counter("tidegate_http_received_bytes_total", "bytes", "Bytes of request bodies."),
    _counter("tidegate_http_sent_bytes_total", "bytes", "Bytes of answers' bodies."),
    _histogram(
        "tidegate_event_loop_lag_seconds",
        "seconds",
        "Event loop delay, sampled once a second.",
        SYNC_BUCKETS,
    ),
)
_TOPICS = (
    _counter("tidegate_messages_published_total", "", "Messages that were stored.", (_TENANT,)),
    _counter("tidegate_messages_consumed_total", "", "Messages that were consumed.", (_TENANT,)),
    _counter(
        "tidegate_messages_appended_total", "", "Messages that topics took, routed ones too.", (), "scrape"
    ),
    _counter(
        "tidegate_messages_appended_bytes_total", "bytes", "Bytes that topics took, as stored.", (), "scrape"
    ),
    _counter("tidegate_messages_consumed_bytes_total", "bytes", "Bytes of the messages that were consumed."),
    _counter("tidegate_messages_trimmed_total", "", "Messages that retention or CLEAR removed."),
    _counter(
        "tidegate_topic_duplicates_total",
        "",
        "Messages dropped because their topic had accepted their dedup key a short while ago.",
        (_TENANT,),
        "scrape",
    ),
    _counter(
        "tidegate_topic_group_delivered_total",
        "",
        "Messages that consumer groups leased, redelivered ones too.",
        (),
        "scrape",
    ),
    _counter(
        "tidegate_topic_group_redelivered_total",
        "",
        "Messages that consumer groups leased again.",
        (),
        "scrape",
    ),
    _counter(
        "tidegate_topic_group_acked_total",
        "",
        "Messages that consumer groups acknowledged.",
        (),
        "scrape",
    ),
    _counter(
        "tidegate_topic_group_nacked_total",
        "",
        "Messages that consumer groups gave back after a failure.",
        (),
        "scrape",
    ),
    _counter(
        "tidegate_topic_group_missed_total",
        "",
        "Messages that were removed before their consumer group read them.",
        (),
        "scrape",
    ),
    _counter("tidegate_leases_expired_total", "", "Messages whose lease expired.", (), "scrape"),
    _counter("tidegate_dead_letters_total", "", "Messages that became dead letters.", (), "scrape"),
    _counter(
        "tidegate_route_faults_total", "", "Rows that the WHERE of a route could not evaluate.", (), "scrape"
    ),
    _gauge("tidegate_groups", "", "Consumer groups of all topics."),
    _gauge(
        "tidegate_group_lag_messages", "messages", "What groups have not acknowledged, in all.", (_TENANT,)
    ),
    _gauge(
        "tidegate_group_lag_messages_max", "", "What the group that is furthest behind has not.", (_TENANT,)
    ),
    _gauge("tidegate_topics", "", "Topics of all tenants."),
    _gauge("tidegate_topic_messages", "", "Messages that all topics hold."),
    _gauge("tidegate_topic_stored_bytes", "bytes", "Bytes of the messages that all topics hold."),
    _histogram(
        "tidegate_commit_group_changes", "changes", "Changes that shared one commit.", CHANGES_BUCKETS
    ),
    _histogram("tidegate_commit_group_bytes", "bytes", "Bytes that one commit wrote.", BYTES_BUCKETS),
    _histogram(
        "tidegate_commit_sync_seconds",
        "seconds",
        "Time that the sync of one commit took.",
        SYNC_BUCKETS,
    ),
    _counter("tidegate_corrupt_frames_total", "", "Reads that met bytes which do not match their checksum."),
)
_STORAGE = (
    _gauge("tidegate_engine_disk_bytes", "bytes", "Bytes of the engine's files."),
    _gauge("tidegate_disk_free_bytes", "bytes", "Room that is left for the home folder."),
    _gauge("tidegate_disk_size_bytes", "bytes", "Size of the file system that has the home folder."),
    _gauge(
        "tidegate_tenant_disk_bytes",
        "bytes",
        "Bytes of a tenant on the disk, as last measured: of those with such a quota.",
        (_TENANT,),
    ),
    _gauge("tidegate_lake_tables", "", "Tables in the lake of the tenant default."),
    _gauge("tidegate_lake_files", "", "Data files of those tables."),
    _gauge("tidegate_lake_bytes", "bytes", "Bytes of those files."),
    _gauge("tidegate_lake_tables_unreadable", "", "Tables whose log cannot be read."),
)
_CATALOG = (
    _gauge(
        "tidegate_catalog_up", "", "1 while the catalog's database answers, 0 when it does not.", (), "event"
    ),
    _histogram(
        "tidegate_catalog_call_duration_seconds",
        "seconds",
        "Time of one call of the catalog.",
        SECONDS_BUCKETS,
    ),
    _counter("tidegate_catalog_failures_total", "", "Calls that the catalog's database did not answer."),
    _counter(
        "tidegate_audit_events_dropped_total",
        "",
        "Refused logins and roles, and acts for others, that found no room on their way to the audit trail.",
    ),
    _gauge("tidegate_tokens_cached", "", "Tokens that are known without asking the catalog."),
)
_WORK = (
    _gauge("tidegate_sql_statements_running", "", "Statements that run now.", (), "event"),
    _gauge("tidegate_sql_statements_waiting", "", "Statements that wait for their turn.", (), "event"),
    _histogram(
        "tidegate_sql_statement_duration_seconds",
        "seconds",
        "Time of one statement, without the wait for its turn.",
        SECONDS_BUCKETS,
    ),
    _gauge("tidegate_sql_tenants_running", "", "Tenants whose statements run now."),
    _gauge("tidegate_sql_tenants_waiting", "", "Tenants whose statements wait for their turn."),
    _gauge(
        "tidegate_query_processes",
        "",
        "Child processes for statements, by what they do.",
        (Label("state", words=QUERY_PROCESS_STATES),),
    ),
    _gauge(
        "tidegate_query_processes_memory_bytes",
        "bytes",
        "Memory of these processes that they do not share with others.",
    ),
    _counter("tidegate_query_processes_started_total", "", "Processes that were started.", (), "scrape"),
    _counter(
        "tidegate_query_processes_ended_total",
        "",
        "Processes that ended: idle or large ones (retired), after a statement that was stopped (stopped), "
        "killed for its time or its memory, or by themselves (crash).",
        (Label("reason", words=QUERY_PROCESS_ENDS),),
        "scrape",
    ),
    _gauge("tidegate_jobs_running", "", "Jobs that run in this server now.", (), "event"),
    _counter(
        "tidegate_jobs_finished_total", "", "Jobs that ended here.", (Label("outcome", words=OUTCOMES),)
    ),
    _gauge(
        "tidegate_backup_last_success_timestamp_seconds",
        "seconds",
        "When the last backup was finished, in seconds since 1970; 0 when none is known.",
        (),
        "event",
    ),
    _gauge("tidegate_backup_last_duration_seconds", "seconds", "How long that backup took.", (), "event"),
    _gauge("tidegate_backup_last_size_bytes", "bytes", "How large that backup is.", (), "event"),
    _counter("tidegate_backup_failures_total", "", "Backups that failed or were cancelled."),
)
_TABLES = (
    _counter(
        "tidegate_sql_statements_total",
        "",
        "Statements by what they do and how they ended; refused ones are their caller's mistake.",
        (Label("kind", words=STATEMENT_KINDS), Label("outcome", words=STATEMENT_OUTCOMES)),
    ),
    _counter(
        "tidegate_rows_written_total",
        "",
        "Rows that statements inserted, changed or deleted, by the kind of their table.",
        (_TENANT, Label("kind", words=TABLE_KINDS)),
    ),
    _counter(
        "tidegate_stream_appended_rows_total", "", "Rows and deletes that were appended to stream logs."
    ),
    _counter("tidegate_stream_appended_bytes_total", "bytes", "Bytes that were appended to stream logs."),
    _histogram(
        "tidegate_stream_flush_duration_seconds",
        "seconds",
        "Time of one round that brought gathered bytes of stream logs to their files.",
        SECONDS_BUCKETS,
    ),
    _gauge("tidegate_stream_writers_open", "", "Stream logs that are open for writing.", (), "event"),
    _counter("tidegate_stream_windows_evicted_total", "", "Expired windows that were evicted."),
)
_LIVE = (
    _gauge("tidegate_live_connections", "", "Live sockets that are open.", (), "event"),
    _gauge("tidegate_live_subscriptions", "", "Subscriptions of all live sockets.", (), "event"),
    _counter("tidegate_live_changes_sent_total", "", "Changes that were sent to subscribers."),
    _counter("tidegate_live_lagged_total", "", "Times that a subscriber fell behind and got a new snapshot."),
    _counter("tidegate_live_slow_closed_total", "", "Sockets closed because they took nothing for too long."),
)
_WORKER = (
    _gauge("tidegate_worker_up", "", "1 while the worker reports, 0 when it is silent or was never there."),
    _gauge("tidegate_worker_report_age_seconds", "seconds", "Time since the worker's last report."),
    _gauge("tidegate_worker_memory_bytes", "bytes", "Memory of the worker, as it last reported."),
    _gauge(
        "tidegate_pipeline_state",
        "",
        "1 for the state in which a pipeline is; for 'other' the number of pipelines.",
        (_PIPELINE, Label("state", words=PIPELINE_STATES)),
    ),
    _gauge("tidegate_pipeline_lag_messages", "messages", "Messages that it has not taken yet.", (_PIPELINE,)),
    _counter("tidegate_pipeline_batches_total", "", "Micro-batches it finished.", (_PIPELINE,), "scrape"),
    _counter("tidegate_pipeline_rows_total", "", "Rows it read.", (_PIPELINE,), "scrape"),
    _counter("tidegate_pipeline_restarts_total", "", "Times it was started again.", (_PIPELINE,), "scrape"),
    _gauge("tidegate_pipeline_state_bytes", "bytes", "Its keyed state, on local disks.", (_PIPELINE,)),
    _gauge("tidegate_pipeline_state_entries", "", "Entries of its keyed state, about.", (_PIPELINE,)),
    _gauge(
        "tidegate_pipeline_checkpoint_bytes", "bytes", "Its state's part of the checkpoint.", (_PIPELINE,)
    ),
    _counter(
        "tidegate_pipeline_dead_rows_total",
        "",
        "Rows that its operators wrote as dead letters, since their number of partitions changed last.",
        (_PIPELINE,),
        "scrape",
    ),
    _gauge(
        "tidegate_worker_state_disk_used_bytes",
        "bytes",
        "Used bytes, by any program, of the file system with the worker's state.",
    ),
    _gauge("tidegate_worker_state_disk_size_bytes", "bytes", "Size of that file system."),
)
# Totals begin at 0 again when the number of partitions changes.
_DEDUP = (
    _counter(
        "tidegate_pipeline_dedup_unique_total", "", "Rows that were the first of their key.", *_BY_PIPELINE
    ),
    _counter(
        "tidegate_pipeline_dedup_duplicates_total", "", "Rows whose key was there before.", *_BY_PIPELINE
    ),
    _counter(
        "tidegate_pipeline_dedup_late_total", "", "Rows that came after their retention.", *_BY_PIPELINE
    ),
    _gauge("tidegate_pipeline_dedup_keys", "", "Keys that are remembered.", (_PIPELINE,)),
    _gauge("tidegate_pipeline_dedup_bytes", "bytes", "Segments on local disks.", (_PIPELINE,)),
    _gauge("tidegate_pipeline_dedup_filter_bytes", "bytes", "Filters of those segments.", (_PIPELINE,)),
    _gauge("tidegate_pipeline_dedup_segments", "", "Segments that are stored.", (_PIPELINE,)),
    _counter(
        "tidegate_pipeline_dedup_filter_probes_total", "", "Probes of a segment's filter.", *_BY_PIPELINE
    ),
    _counter(
        "tidegate_pipeline_dedup_filter_false_total",
        "",
        "Answers of filters that sent a new key to the store.",
        *_BY_PIPELINE,
    ),
    _counter("tidegate_pipeline_dedup_reads_total", "", "Keys that were read in a store.", *_BY_PIPELINE),
    _counter(
        "tidegate_pipeline_dedup_lookup_seconds_total",
        "seconds",
        "Time that those reads took.",
        *_BY_PIPELINE,
    ),
    _gauge(
        "tidegate_pipeline_dedup_stream_lag_seconds",
        "seconds",
        "How far the newest event time is behind the clock; below 0 it is ahead.",
        (_PIPELINE,),
    ),
)
_PROGRAM = (
    _gauge("tidegate_process_memory_bytes", "bytes", "Resident memory of the server."),
    _counter("tidegate_process_cpu_seconds_total", "seconds", "CPU time of the server.", (), "scrape"),
    _gauge("tidegate_process_open_files", "", "File descriptors that are open."),
    _gauge("tidegate_process_open_files_max", "", "File descriptors that may be open."),
    _gauge("tidegate_process_threads", "", "Threads of the server."),
    _gauge("tidegate_uptime_seconds", "seconds", "Time since the server started."),
    _gauge(
        "tidegate_build_info",
        "",
        "Always 1; the labels say which version runs on which Python.",
        (Label("version", names_max=1), Label("python", names_max=1)),
    ),
    _counter(
        "tidegate_log_lines_total",
        "",
        "Lines of the server's log by level; what is below a warning is not counted.",
        (Label("level", words=LOG_LEVELS),),
        "scrape",
    ),
    _counter("tidegate_log_lines_lost_total", "", "Log lines that could not be written.", (), "scrape"),
    _counter(
        "tidegate_scrape_errors_total",
        "",
        "Parts of a scrape that could not be read; the other parts are there.",
        (Label("part", words=SCRAPE_PARTS),),
    ),
)

FAMILIES: tuple[Family, ...] = (
    *_HTTP,
    *_TOPICS,
    *_STORAGE,
    *_CATALOG,
    *_WORK,
    *_TABLES,
    *_LIVE,
    *_WORKER,
    *_DEDUP,
    *_PROGRAM,
)
BY_NAME: dict[str, Family] = {family.name: family for family in FAMILIES}
