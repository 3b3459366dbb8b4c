"""Refused requests: the caller must change something; the same request fails again."""

from __future__ import annotations

from tidegate.errors.root import TidegateError


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
    default_hint = (
        "Give a token of this server (TIDEGATE_TOKEN), or ask an administrator for one "
        "('tidegate user token NAME'). The owner of the home has one in admin.token; for a browser, "
        "'tidegate open' makes a link."
    )


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
    default_hint = "docs/reference/sql.md shows how statements are written."


class SqlUnsupported(RequestInvalid):
    code = "SQL_UNSUPPORTED"
    template = "{reason}"
    default_hint = "docs/reference/sql.md lists every statement."


class QueryMemory(RequestInvalid):
    code = "QUERY_MEMORY"
    template = "The statement needs more than {memory_mb} MB of memory and was stopped."
    default_hint = "Ask for less at a time, or raise query.memory_mb."


class ValueInvalid(RequestInvalid):
    code = "VALUE_INVALID"
    template = "{place}: {reason}."
    default_hint = "docs/reference/types.md shows what each type takes."


class NotFound(RequestRefused):
    code = "NOT_FOUND"
    status = 404


class TopicNotFound(NotFound):
    code = "TOPIC_NOT_FOUND"
    template = "There is no topic '{topic}'."
    default_hint = (
        "Create it with 'tidegate topic create {topic}', or list the topics: 'tidegate topic list'."
    )


class PartitionNotFound(NotFound):
    code = "PARTITION_NOT_FOUND"
    template = "Topic '{topic}' has no partition {partition}."
    default_hint = "Its partitions are 0 to {last}."


class GroupNotFound(NotFound):
    code = "GROUP_NOT_FOUND"
    template = "Topic '{topic}' has no consumer group '{group}'."
    default_hint = "A group begins with its first consume; 'tidegate topic groups {topic}' lists them."


class RouteNotFound(NotFound):
    code = "ROUTE_NOT_FOUND"
    template = "Topic '{topic}' takes no {op} of '{table}'."
    default_hint = "DESCRIBE TOPIC {topic} shows its sources."


class TableNotFound(NotFound):
    code = "TABLE_NOT_FOUND"
    template = "There is no table '{table}'."
    default_hint = "Tables: {known}."


class NamespaceNotFound(NotFound):
    code = "NAMESPACE_NOT_FOUND"
    template = "There is no namespace '{namespace}'."
    default_hint = "SHOW NAMESPACES lists them; CREATE NAMESPACE {namespace}; makes it."


class ColumnNotFound(NotFound):
    code = "COLUMN_NOT_FOUND"
    template = "Table '{table}' has no column '{column}'."
    default_hint = "Its columns: {known}."


class IndexNotFound(NotFound):
    code = "INDEX_NOT_FOUND"
    template = "Table '{table}' has no index '{index}'."
    default_hint = "DESCRIBE TABLE {table} shows its indexes."


class PipelineNotFound(NotFound):
    code = "PIPELINE_NOT_FOUND"
    template = "There is no pipeline '{pipeline}'."
    default_hint = "'tidegate pipeline list' lists them; 'tidegate pipeline run FILE.py' adds one."


class Conflict(RequestRefused):
    code = "CONFLICT"
    status = 409


class TopicExists(Conflict):
    code = "TOPIC_EXISTS"
    template = "Topic '{topic}' already exists, with {partitions} partitions."
    default_hint = (
        "Use it as it is, choose another name, or delete it first with 'tidegate topic delete {topic}'."
    )


class RouteExists(Conflict):
    code = "ROUTE_EXISTS"
    template = "Topic '{topic}' takes every {op} of '{table}' already."
    default_hint = "Drop it first: ALTER TOPIC {topic} DROP SOURCE {table} ON {op};"


class RouteCycle(Conflict):
    code = "ROUTE_CYCLE"
    template = (
        "'{source}' is a topic, and a topic takes changes of tables only: topics cannot feed each other."
    )
    default_hint = "Name a table. A pipeline or a consumer carries messages from one topic to another."


class TopicReplaced(Conflict):
    code = "TOPIC_REPLACED"
    template = "Topic '{topic}' was deleted and created again: old offsets mean nothing in the new one."
    default_hint = "For a pipeline: stop it, remove its table and its checkpoint, and run it again."


class SequenceGap(Conflict):
    code = "SEQUENCE_GAP"
    template = "Producer '{producer}' sent sequence {sequence}, but {expected} comes next."
    default_hint = "Send the missing messages first, or start again under another producer id."


class SequenceTooOld(Conflict):
    code = "SEQUENCE_TOO_OLD"
    template = "Producer '{producer}' repeats sequence {sequence}, whose answer is no longer kept."
    default_hint = "It was stored; only the answers of the last {kept} requests are remembered."


class SequenceReused(Conflict):
    code = "SEQUENCE_REUSED"
    template = "Producer '{producer}' sends other messages under numbers that it used before ({sequence})."
    default_hint = "Continue after the last number, or under another producer id. Nothing was stored."


class TableExists(Conflict):
    code = "TABLE_EXISTS"
    template = "Table '{table}' already exists."
    default_hint = "Write IF NOT EXISTS, choose another name, or remove it first: DROP TABLE {table};"


class NamespaceExists(Conflict):
    code = "NAMESPACE_EXISTS"
    template = "Namespace '{namespace}' already exists."
    default_hint = "Write IF NOT EXISTS."


class NamespaceNotEmpty(Conflict):
    code = "NAMESPACE_NOT_EMPTY"
    template = "Namespace '{namespace}' has tables: {tables}."
    default_hint = "Drop its tables first."


class ColumnExists(Conflict):
    code = "COLUMN_EXISTS"
    template = "Table '{table}' has a column '{column}' already."
    default_hint = "Choose another name."


class IndexExists(Conflict):
    code = "INDEX_EXISTS"
    template = "Table '{table}' has an index '{index}' already."
    default_hint = "Write IF NOT EXISTS, or choose another name."


class RowExists(Conflict):
    code = "ROW_EXISTS"
    template = "Table '{table}' has a row with {key} already."
    default_hint = "UPSERT writes a row whether it exists or not. Nothing was written."


class TableChanged(Conflict):
    code = "TABLE_CHANGED"
    template = "Table '{table}' was changed or dropped while the statement ran."
    default_hint = "Run it again. Nothing was written."


class WriteConflict(Conflict):
    code = "WRITE_CONFLICT"
    template = "Rows of '{table}' kept changing while the statement looked at them."
    default_hint = "Run it again. Nothing was written."
    retryable = True


class OffsetOutOfRange(RequestRefused):
    code = "OFFSET_OUT_OF_RANGE"
    status = 416
    template = (
        "Topic '{topic}', partition {partition}: offset {offset} is not between {earliest} and {latest}."
    )
    default_hint = "Read from {earliest}, the earliest that is kept, or from 'latest'."
