"""Every error that Tidegate raises on purpose, and what it means outside.

TidegateError
├── RequestRefused                  the caller must change something; asking again changes nothing
│   ├── RequestMalformed            400  the bytes are not what the content type says
│   ├── TokenMissing                401  no bearer token
│   ├── TokenWrong                  401  a bearer token that is not ours
│   ├── EndpointNotFound            404  no such path
│   ├── MethodNotAllowed            405  the path exists, the method does not
│   ├── BodyTooLarge                413  more bytes than the setting allows
│   ├── ContentTypeUnsupported      415  a body in a format the endpoint does not take
│   ├── RequestInvalid              422  well formed, but a value is wrong
│   │   ├── NameInvalid             422  a name that breaks the naming rule
│   │   ├── DurationInvalid         422  text that is not a duration
│   │   ├── TimeRangeInvalid        422  an end before its start, or text that is not a time
│   │   ├── SchemaInvalid           422  a column or a type that cannot be
│   │   ├── SettingInvalid          422  a setting that is unknown, of a wrong type or out of bounds
│   │   ├── SqlInvalid              422  the statement does not parse, bind or run
│   │   └── SqlUnsupported          422  a statement this version does not run
│   ├── NotFound                    404
│   │   ├── TopicNotFound           404
│   │   ├── PartitionNotFound       404
│   │   ├── TableNotFound           404
│   │   └── PipelineNotFound        404
│   ├── Conflict                    409
│   │   ├── TopicExists             409  the name is taken
│   │   ├── TopicReplaced           409  the topic was deleted and made again since
│   │   ├── SequenceGap             409  a producer skipped messages
│   │   └── SequenceTooOld          409  a producer repeats what is no longer remembered
│   └── OffsetOutOfRange            416  an offset that retention removed, or that is not there yet
├── Unavailable                     the world misbehaves; the same call may work later
│   ├── NotReady                    503  starting or stopping
│   ├── ServerNotRunning            503  no server at that address
│   ├── SparkGone                   503  the Java half of the worker ended by itself
│   ├── QueryTimeout                504  a statement ran longer than the setting allows
│   ├── StorageFull                 507  no room on the disk; nothing was written
│   └── StorageFailed               500  the disk refused a read or a write
├── StorageCorrupt                  500  bytes at rest do not match their checksum
├── StartRefused                    a process cannot start here
│   ├── PortInUse                   500
│   ├── HomeLocked                  500
│   ├── HomeTooNew                  500
│   ├── HomeUnusable                500
│   ├── JavaMissing                 500
│   ├── JarsMissing                 500
│   └── PipelineInvalid             500  a pipeline file that cannot be loaded
└── InvariantBroken                 500  we are wrong: a bug, never the caller's fault

A class carries a stable `code`, the HTTP `status`, a message template and a default hint. An instance
carries the values that fill the template. `to_wire` and `from_wire` carry an error over HTTP, so that a
client raises the class that the server raised.
"""

from __future__ import annotations

from typing import Any, ClassVar


class TidegateError(Exception):
    """The root of all our errors; `str(error)` is one sentence for a person."""

    code: ClassVar[str] = "TIDEGATE_ERROR"
    status: ClassVar[int] = 500
    template: ClassVar[str] = "{reason}"
    default_hint: ClassVar[str] = ""
    retryable: ClassVar[bool] = False

    def __init__(self, *, hint: str | None = None, **values: Any) -> None:
        self.values = values
        self.hint = self.default_hint.format_map(_Blank(values)) if hint is None else hint
        self.message = self.template.format_map(_Blank(values))
        super().__init__(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.hint, self.values)

    def to_wire(self) -> dict[str, Any]:
        """Give the body that HTTP answers with."""
        error = {"code": self.code, "message": self.message, "hint": self.hint, "details": self.values}
        return {"error": error}


class _Blank(dict[str, Any]):
    """Lets a template name a value that was not given."""

    def __missing__(self, key: str) -> str:
        return f"({key} not given)"


def _rebuild(kind: type[TidegateError], hint: str, values: dict[str, Any]) -> TidegateError:
    return kind(hint=hint, **values)


class RequestRefused(TidegateError):
    code = "REQUEST_REFUSED"
    status = 400


class RequestMalformed(RequestRefused):
    code = "REQUEST_MALFORMED"
    status = 400
    template = "The request body is malformed: {reason}"
    default_hint = "Send UTF-8 JSON of the shape that docs/reference/http.md shows for this endpoint."


class TokenMissing(RequestRefused):
    code = "TOKEN_MISSING"
    status = 401
    template = "This endpoint needs a bearer token."
    default_hint = (
        "Send 'Authorization: Bearer <token>'; the admin's token is in admin.token in the home folder."
    )


class TokenWrong(RequestRefused):
    code = "TOKEN_WRONG"
    status = 401
    template = "The bearer token is not valid here."
    default_hint = "Read the token again from admin.token in the home folder of the server you are calling."


class EndpointNotFound(RequestRefused):
    code = "ENDPOINT_NOT_FOUND"
    status = 404
    template = "There is no endpoint at {path}."
    default_hint = "docs/reference/http.md lists every endpoint."


class MethodNotAllowed(RequestRefused):
    code = "METHOD_NOT_ALLOWED"
    status = 405
    template = "{path} does not take {method}."
    default_hint = "It takes: {allowed}."


class BodyTooLarge(RequestRefused):
    code = "BODY_TOO_LARGE"
    status = 413
    template = "The request body is larger than {limit_bytes} bytes."
    default_hint = "Send fewer messages in a request, or raise server.body_bytes_max."


class ContentTypeUnsupported(RequestRefused):
    code = "CONTENT_TYPE_UNSUPPORTED"
    status = 415
    template = "This endpoint does not take a body of type '{content_type}'."
    default_hint = "Send 'Content-Type: {supported}'."


class RequestInvalid(RequestRefused):
    code = "REQUEST_INVALID"
    status = 422
    template = "{reason}"


class NameInvalid(RequestInvalid):
    code = "NAME_INVALID"
    template = "'{name}' is not a valid {noun} name: {reason}."
    default_hint = "{rule}"


class DurationInvalid(RequestInvalid):
    code = "DURATION_INVALID"
    template = "'{text}' is not a duration: {reason}."
    default_hint = (
        "Write a number and a unit ('5 s', '15 min', '24 h', '100 days') or ISO 8601 ('PT5S', 'P100D')."
    )


class TimeRangeInvalid(RequestInvalid):
    code = "TIME_RANGE_INVALID"
    template = "Not a time range: {reason}."
    default_hint = "Ranges are half-open: the start is in, the end is not, and the end comes after the start."


class SchemaInvalid(RequestInvalid):
    code = "SCHEMA_INVALID"
    template = "Not a valid schema: {reason}."
    default_hint = (
        "Types are BOOLEAN, INT, BIGINT, DOUBLE, DECIMAL(p,s), TEXT, BYTES, JSON, UUID, DATE and TIMESTAMP."
    )


class SettingInvalid(RequestInvalid):
    code = "SETTING_INVALID"
    template = "Setting '{setting}' ({origin}): {reason}."
    default_hint = "docs/reference/settings.md lists every setting with its unit and its bounds."


class SqlInvalid(RequestInvalid):
    code = "SQL_INVALID"
    template = "The statement cannot run: {reason}"
    default_hint = "Tables of the lake are written lake.<name>; 'tidegate status' lists them."


class SqlUnsupported(RequestInvalid):
    code = "SQL_UNSUPPORTED"
    template = "{reason}"
    default_hint = "This version runs one SELECT at a time over lake tables."


class NotFound(RequestRefused):
    code = "NOT_FOUND"
    status = 404


class TopicNotFound(NotFound):
    code = "TOPIC_NOT_FOUND"
    template = "There is no topic '{topic}'."
    default_hint = (
        "Create it with 'tidegate topic create {topic}', or list what is there: 'tidegate topic list'."
    )


class PartitionNotFound(NotFound):
    code = "PARTITION_NOT_FOUND"
    template = "Topic '{topic}' has no partition {partition}."
    default_hint = "Its partitions are 0 to {last}."


class TableNotFound(NotFound):
    code = "TABLE_NOT_FOUND"
    template = "There is no table '{table}'."
    default_hint = "Tables in the lake: {known}."


class PipelineNotFound(NotFound):
    code = "PIPELINE_NOT_FOUND"
    template = "There is no pipeline '{pipeline}'."
    default_hint = "'tidegate pipeline list' shows what is there; 'tidegate pipeline run FILE.py' adds one."


class Conflict(RequestRefused):
    code = "CONFLICT"
    status = 409


class TopicExists(Conflict):
    code = "TOPIC_EXISTS"
    template = "Topic '{topic}' is there already, with {partitions} partitions."
    default_hint = (
        "Use it as it is, choose another name, or delete it first with 'tidegate topic delete {topic}'."
    )


class TopicReplaced(Conflict):
    code = "TOPIC_REPLACED"
    template = "Topic '{topic}' was deleted and made again: old offsets mean nothing in the new one."
    default_hint = "For a pipeline: stop it, remove its table and its checkpoint, and run it again."


class SequenceGap(Conflict):
    code = "SEQUENCE_GAP"
    template = "Producer '{producer}' sent sequence {sequence}, but {expected} comes next."
    default_hint = "Send the missing messages first, or start again under another producer id."


class SequenceTooOld(Conflict):
    code = "SEQUENCE_TOO_OLD"
    template = "Producer '{producer}' repeats sequence {sequence}, whose answer is no longer kept."
    default_hint = "It was stored; only the answers of the last {kept} requests are remembered."


class OffsetOutOfRange(RequestRefused):
    code = "OFFSET_OUT_OF_RANGE"
    status = 416
    template = (
        "Topic '{topic}', partition {partition}: offset {offset} is not between {earliest} and {latest}."
    )
    default_hint = "Read from {earliest}, the earliest that is kept, or from 'latest'."


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


class SparkGone(Unavailable):
    code = "SPARK_GONE"
    template = "Spark's Java process ended by itself with exit code {exit_code}."
    default_hint = "Its last words are in the worker's log; out of memory: raise worker.driver_memory_mb."


class QueryTimeout(Unavailable):
    code = "QUERY_TIMEOUT"
    status = 504
    template = "The statement ran longer than {limit_seconds} s and was stopped."
    default_hint = "Narrow the time range, or raise query.timeout_seconds."


class StorageFull(Unavailable):
    code = "STORAGE_FULL"
    status = 507
    template = "No room on the disk under {path}: {free_bytes} bytes are free. Nothing was written."
    default_hint = "Free some space and send the request again; reads go on meanwhile."


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


class StartRefused(TidegateError):
    code = "START_REFUSED"


class PortInUse(StartRefused):
    code = "PORT_IN_USE"
    template = "Port {port} on {host} is taken."
    default_hint = "Stop what uses it, or choose another: --port {other}."


class HomeLocked(StartRefused):
    code = "HOME_LOCKED"
    template = "A {kind} runs already in {home} (process {pid})."
    default_hint = "Stop it first (kill {pid}), or give this one another home: --home DIR."


class HomeTooNew(StartRefused):
    code = "HOME_TOO_NEW"
    template = "{home} has layout {found}; this version knows layouts up to {known}."
    default_hint = "Install a newer Tidegate, or use another home: --home DIR."


class HomeUnusable(StartRefused):
    code = "HOME_UNUSABLE"
    template = "{home} cannot be used as a home folder: {reason}."
    default_hint = "Name an empty folder, or one that Tidegate made: --home DIR."


class JavaMissing(StartRefused):
    code = "JAVA_MISSING"
    template = "No Java 17 or newer was found: {reason}."
    default_hint = "apt-get install openjdk-17-jre-headless, or set JAVA_HOME."


class JarsMissing(StartRefused):
    code = "JARS_MISSING"
    template = "Spark's Delta jars could not be fetched: {reason}"
    default_hint = "Run 'make setup' once with a connection to a Maven repository."


class PipelineInvalid(StartRefused):
    code = "PIPELINE_INVALID"
    template = "{file} is not a pipeline: {reason}"
    default_hint = "A pipeline file has one function under @tide.pipeline; see docs/guide/pipelines.md."


class InvariantBroken(TidegateError):
    code = "INVARIANT_BROKEN"
    template = "A promise inside Tidegate does not hold: {reason}"
    default_hint = "This is a bug in Tidegate. Please report it with the log of the process."


def every_error(root: type[TidegateError] = TidegateError) -> list[type[TidegateError]]:
    """List every error class as the tree draws them: a family, then its members."""
    return [root, *(kind for child in root.__subclasses__() for kind in every_error(child))]


def from_wire(body: dict[str, Any]) -> TidegateError:
    """Give the error that `to_wire` wrote; a code we do not know becomes a plain TidegateError."""
    error = body["error"]
    kinds = {kind.code: kind for kind in every_error()}
    kind = kinds.get(error.get("code", ""), TidegateError)
    details = dict(error.get("details") or {})
    for taken in ("self", "hint"):  # names that the constructor has for itself
        details.pop(taken, None)
    if kind is TidegateError:
        details.setdefault("reason", error.get("message", "unknown error"))
    return kind(hint=error.get("hint", ""), **details)
