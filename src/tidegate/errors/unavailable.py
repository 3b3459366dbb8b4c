"""Failures of disk, network and other processes, and damaged bytes at rest."""

from __future__ import annotations

from tidegate.errors.root import TidegateError


class Unavailable(TidegateError):
    code = "UNAVAILABLE"
    status = 503
    retryable = True


class NotReady(Unavailable):
    code = "NOT_READY"
    template = "The server is not ready: {reason}."
    default_hint = "Wait for GET /ready to answer 200."


class ServerNotRunning(Unavailable):
    code = "SERVER_NOT_RUNNING"
    template = "No Tidegate server answers at {url}: {reason}."
    default_hint = "Start one with 'tidegate up', or name a running one: tidegate.connect(url, token=…)."


class CatalogUnavailable(Unavailable):
    code = "CATALOG_UNAVAILABLE"
    template = "The catalog does not answer: {reason}."
    default_hint = "Topics and tables remain available; try again when the database is back."


class SparkGone(Unavailable):
    code = "SPARK_GONE"
    template = "Spark's Java process ended by itself with exit code {exit_code}."
    default_hint = "Its last words are in the worker's log; out of memory: raise worker.driver_memory_mb."


class QueryTimeout(Unavailable):
    code = "QUERY_TIMEOUT"
    status = 504
    template = "The statement ran longer than {limit_seconds} s and was stopped."
    default_hint = "Narrow the time range, or raise query.timeout_seconds."


class QueryCrashed(Unavailable):
    code = "QUERY_CRASHED"
    status = 500
    template = "The process that ran the statement failed: {reason}."
    default_hint = "Other statements are not affected. If the same statement does it again, report it."


class StorageFull(Unavailable):
    code = "STORAGE_FULL"
    status = 507
    template = "No room on the disk under {path}: {free_bytes} bytes are free. Nothing was written."
    default_hint = (
        "Free some space and send the request again; reads continue meanwhile. storage.free_bytes_min keeps "
        "a reserve: writes stop before the disk is full."
    )


class StorageFailed(Unavailable):
    code = "STORAGE_FAILED"
    status = 500
    template = "Storage at {path} failed: {reason}"
    default_hint = (
        "It is not known whether this write will be there; send it again with the same producer sequence."
    )


class StorageCorrupt(TidegateError):
    code = "STORAGE_CORRUPT"
    template = "Damaged bytes in {place}: {reason}"
    default_hint = "Restore this part from a backup; everything else stays readable."
