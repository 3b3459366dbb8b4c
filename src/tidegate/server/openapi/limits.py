"""The limits of the fields and parameters of requests, for the OpenAPI document.

The endpoints check these limits themselves, with errors that explain more than a schema can. Tests send
values beyond a limit that is listed here, and fail when they are accepted.
"""

from __future__ import annotations

from typing import Any

from tidegate.model.access import ROLE_SHORTS, Role
from tidegate.model.json_limits import DEPTH_MAX, NUMBER_CHARS_MAX
from tidegate.model.names import (
    PIPELINE_NAME_CHARS_MAX,
    TENANT_NAME_CHARS_MAX,
    TOPIC_NAME_CHARS_MAX,
    TOPIC_SEGMENTS_MAX,
    USER_NAME_CHARS_MAX,
)
from tidegate.query.statements.topic_messages import DELAY_MS_MAX, REASON_CHARS_MAX
from tidegate.server.api.audit_and_jobs import FILTER_CHARS_MAX, JOB_STATES
from tidegate.server.api.long_poll import CONSUME_LIMIT
from tidegate.server.api.publish import PRODUCER_ID_CHARS_MAX
from tidegate.server.api.staged_batches import PARTS_MAX
from tidegate.server.http.request import IDEMPOTENCY_KEY_CHARS_MAX, PAGE_ROWS
from tidegate.settings import Settings
from tidegate.storage.keys import I64_MAX
from tidegate.topics.dedup import DEDUP_KEY_CHARS_MAX
from tidegate.topics.definitions import DEDUP_SECONDS_MAX, RETENTION_SECONDS_MAX
from tidegate.topics.groups.types import NAME_CHARS_MAX
from tidegate.topics.staged_batches import BATCH_MAX, WRITER_CHARS_MAX

Schema = dict[str, Any]

_SEGMENT = "[A-Za-z_][A-Za-z0-9_-]*"
TOPIC_NAME: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": TOPIC_NAME_CHARS_MAX,
    "pattern": f"^{_SEGMENT}(\\.{_SEGMENT}){{0,{TOPIC_SEGMENTS_MAX - 1}}}$",
    "examples": ["app.events"],
}
TENANT_NAME: Schema = {
    "type": "string",
    "pattern": f"^[a-z][a-z0-9-]{{0,{TENANT_NAME_CHARS_MAX - 1}}}$",
    "examples": ["acme"],
}
USER_NAME: Schema = {
    "type": "string",
    "pattern": f"^[A-Za-z0-9][A-Za-z0-9._@-]{{0,{USER_NAME_CHARS_MAX - 1}}}$",
    "examples": ["alice"],
}
PIPELINE_NAME: Schema = {
    "type": "string",
    "pattern": f"^[a-z][a-z0-9_-]{{0,{PIPELINE_NAME_CHARS_MAX - 1}}}$",
    "examples": ["meters"],
}
ROLES: Schema = {"items": {"type": "string", "enum": [*ROLE_SHORTS, *(str(role) for role in Role)]}}
_FILTER: Schema = {"type": "string", "minLength": 1, "maxLength": FILTER_CHARS_MAX}
_COUNT: Schema = {"minimum": 0}
_GROUP: Schema = {
    "minLength": 1,
    "maxLength": NAME_CHARS_MAX,
    "pattern": "^[ -~]+$",
    "examples": ["ai-service"],
}
_WRITER: Schema = {**_GROUP, "maxLength": WRITER_CHARS_MAX, "examples": ["9f2c"]}
_LEASE_EXAMPLE = "0.1f3c9a0b2c4d1000c2ef3a919be0d7f5.17"
_LEASE: Schema = {
    "pattern": r"^(0|[1-9][0-9]{0,8})\.[0-9a-f]{16}([0-9a-f]{16})?\.(0|[1-9][0-9]{0,17})$",
    "examples": [_LEASE_EXAMPLE],
}
_WITH_ROWS: Schema = {
    "type": "string",
    "enum": ["true", "false"],
    "default": "false",
    "description": "Whether the user's rows in USER and STREAM tables are removed, too.",
}
_BY_PARTITION: Schema = {"propertyNames": {"pattern": "^(0|[1-9][0-9]{0,8})$"}, "examples": [{"0": 5}]}
_ENDS: Schema = {"enum": ["earliest", "latest"]}

PATH_PARAMETERS: dict[str, Schema] = {
    "topic": TOPIC_NAME,
    "name": PIPELINE_NAME,
    "tenant": TENANT_NAME,
    "user": USER_NAME,
    "token": {"type": "string", "minLength": 1},
    "job": {"type": "string", "minLength": 1},
    "backup": {"type": "string", "minLength": 1},
    "group": {**_GROUP, "type": "string"},
    "file": {"type": "string", "enum": ["start.js", "style.css", "swagger-ui-bundle.js", "swagger-ui.css"]},
}

IDEMPOTENCY_KEY: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": IDEMPOTENCY_KEY_CHARS_MAX,
    "pattern": "^[!-~]([ -~]*[!-~])?$",
}


def query_parameters(settings: Settings) -> dict[str, Schema]:
    """Return the schema of each query parameter; a name means the same on every endpoint."""
    rows_max = settings.server.page_rows_max
    return {
        "limit": {
            "type": "integer",
            "minimum": 1,
            "maximum": rows_max,
            "default": min(PAGE_ROWS, rows_max),
            "description": "Entries in one page.",
        },
        "after": {"type": "string", "description": "`next` of the page before; left out: the beginning."},
        "user": {**_FILTER, "description": "Only what this user did."},
        "action": {**_FILTER, "description": "Only this action, such as `topic.create`."},
        "kind": {**_FILTER, "description": "Only jobs of this kind."},
        "state": {
            "type": "string",
            "enum": list(JOB_STATES),
            "description": "Only jobs in this state.",
        },
        "withRows": _WITH_ROWS,
        "code": {"type": "string", "description": "The code of a one-time link."},
        "producerId": {
            "type": "string",
            "minLength": 1,
            "maxLength": PRODUCER_ID_CHARS_MAX,
            "description": "For Arrow bodies, with `sequence`: makes a retry safe. JSON bodies have a field.",
        },
        "sequence": {
            "type": "integer",
            "minimum": 0,
            "maximum": 10**18 - 1,
            "description": "For Arrow bodies: number of the first message, counted per message from 0.",
        },
        "writer": {**_WRITER, "type": "string", "description": "Who writes, such as the id of a query."},
        "batch": {
            "type": "integer",
            "minimum": 0,
            "maximum": BATCH_MAX,
            "description": "The batch's number.",
        },
        "topicId": {
            "type": "integer",
            "minimum": 0,
            "description": "Refuses a topic that was deleted and created again.",
        },
    }


def field_limits(settings: Settings) -> dict[str, dict[str, Schema]]:
    """Return the limits of the fields of bodies beyond their types, by struct and field."""
    server, topics = settings.server, settings.topics
    return {
        "NewTopic": {"name": TOPIC_NAME, **_topic_limits(settings)},
        "TopicChange": _topic_limits(settings),
        "NewMessage": {
            "payload": {
                "description": f"Any JSON value, nested at most {DEPTH_MAX} levels deep, numbers of at most "
                f"{NUMBER_CHARS_MAX} characters in it; with its key {topics.message_bytes_max} bytes at most."
            },
            "partition": _COUNT,
            "dedupKey": {"minLength": 1, "maxLength": DEDUP_KEY_CHARS_MAX},
        },
        "PublishBody": {
            "messages": {"minItems": 1, "maxItems": server.messages_max},
            "producerId": {"minLength": 1, "maxLength": PRODUCER_ID_CHARS_MAX},
            "sequence": {"minimum": 0, "maximum": 2**62 - 1},
        },
        "FromBody": {
            "offset": _COUNT,
            "after": {"minimum": -1},
            "timestamp": {"examples": ["2026-01-31T12:00:00Z"]},
            "offsets": _BY_PARTITION,
        },
        "ConsumeBody": {
            "from": _ENDS,
            "partition": _COUNT,
            "limit": {
                "minimum": 1,
                "maximum": server.messages_max,
                "default": min(CONSUME_LIMIT, server.messages_max),
            },
            "waitMs": {"minimum": 0, "maximum": server.wait_ms_max},
            **_member_limits(settings, "leaseMs"),
        },
        **_group_limits(settings),
        "PlanBody": {"start": {**_ENDS, **_BY_PARTITION}, "messagesMax": {"minimum": 1}},
        "ReadBody": {"partition": _COUNT, "from": _COUNT, "to": _COUNT},
        "SqlBody": {"sql": {"minLength": 1}},
        "NewTenant": {"name": TENANT_NAME},
        "NewUser": {"name": USER_NAME, "roles": ROLES},
        "UserChange": {"roles": ROLES},
    }


def _group_limits(settings: Settings) -> dict[str, dict[str, Schema]]:
    return {
        "UptoBody": {"partition": _COUNT, "uptoOffset": _COUNT},
        "AckBody": _member_limits(settings, "leases"),
        "NackBody": {
            "delayMs": {"minimum": 0, "maximum": DELAY_MS_MAX},
            "reason": {"maxLength": REASON_CHARS_MAX},
            **_member_limits(settings, "leases"),
        },
        "ExtendBody": _member_limits(settings, "leases", "leaseMs"),
        "ResetBody": {"group": _GROUP, "to": _ENDS, "partition": _COUNT},
        "CommitBody": _batch_limits(),
        "AbortBody": _batch_limits(),
    }


def _topic_limits(settings: Settings) -> dict[str, Schema]:
    return {
        "partitions": {"minimum": 1, "maximum": settings.topics.partitions_max},
        "retentionSeconds": {"minimum": 1, "maximum": RETENTION_SECONDS_MAX},
        "retentionMaxBytes": {"minimum": 1, "maximum": I64_MAX},
        "dedupSeconds": {"minimum": 1, "maximum": DEDUP_SECONDS_MAX},
    }


def _member_limits(settings: Settings, *more: str) -> dict[str, Schema]:
    known: dict[str, Schema] = {
        "leases": {"maxItems": settings.server.messages_max, "items": {"type": "string", **_LEASE}},
        "leaseMs": {"minimum": 1, "maximum": settings.topics.lease_ms_max},
    }
    return {"group": _GROUP, "member": _GROUP, **{name: known[name] for name in more}}


def _batch_limits() -> dict[str, Schema]:
    return {
        "writer": _WRITER,
        "batch": {"minimum": 0, "maximum": BATCH_MAX},
        "parts": {"maxItems": PARTS_MAX, "items": {"type": "string", "pattern": "^[0-9]{1,19}$"}},
    }


BODY_EXAMPLES: dict[str, Any] = {
    "NewTopic": {"name": "app.events", "partitions": 2},
    "PublishBody": {"messages": [{"key": "meter-1", "payload": {"volts": 230.1}}]},
    "TopicChange": {"retentionSeconds": 604800},
    "ConsumeBody": {"from": "earliest", "limit": 10},
    "AckBody": {"group": "ai-service", "acks": [{"partition": 0, "uptoOffset": 41}]},
    "NackBody": {"group": "ai-service", "leases": [_LEASE_EXAMPLE], "reason": "not now"},
    "ExtendBody": {"group": "ai-service", "leases": [_LEASE_EXAMPLE]},
    "ResetBody": {"group": "ai-service", "to": "earliest"},
    "CommitBody": {"writer": "9f2c", "batch": 7, "parts": []},
    "AbortBody": {"writer": "9f2c", "batch": 7, "parts": []},
    "PlanBody": {"start": "earliest", "messagesMax": 1000},
    "ReadBody": {"partition": 0, "from": 0, "to": 1},
    "SqlBody": {"sql": "SELECT ? AS answer", "params": [42]},
    "WorkerReport": {"pid": 4711, "state": "running"},
    "NewTenant": {"name": "acme"},
    "NewUser": {"name": "alice", "roles": ["reader"]},
    "UserChange": {"roles": ["reader", "writer"]},
    "NewToken": {"label": "laptop", "lifetimeSeconds": 86400},
    "FinishBody": {"file": "/backups/tidegate.tar", "bytes": 1048576},
}

# Bodies that an HTML form sends, by endpoint.
FORMS: dict[str, Schema] = {
    "POST /enter": {
        "type": "object",
        "properties": {"code": {"type": "string", "minLength": 1}},
        "required": ["code"],
    }
}

# Keywords that apply to one type: they go into the branch of a union that has that type.
TYPE_OF_KEYWORD = {
    "minimum": ("integer", "number"),
    "maximum": ("integer", "number"),
    "minLength": ("string",),
    "maxLength": ("string",),
    "pattern": ("string",),
    "enum": ("string",),
    "minItems": ("array",),
    "maxItems": ("array",),
    "propertyNames": ("object",),
}
