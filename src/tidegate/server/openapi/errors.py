"""The errors that each endpoint can answer with, for the OpenAPI document.

They follow from what an endpoint is (does it need a token, does it take a body, can it be repeated) and from
what it does. Tests send real requests and fail on an error that is not listed here.
"""

from __future__ import annotations

# A table of most of the errors: the type checker knows each name.
# ruff: noqa: F403, F405
from tidegate.errors import *
from tidegate.model.access import Operation
from tidegate.server.http.request import Endpoint

Kinds = tuple[type[TidegateError], ...]

_GUARDED: Kinds = (
    TokenMissing,
    TokenWrong,
    TokenExpired,
    TokenRevoked,
    Forbidden,
    UserDisabled,
    TenantDisabled,
    TenantNotFound,
    TooManyGuesses,
    RateQuotaReached,
    CatalogUnavailable,
)
_BODY: Kinds = (RequestMalformed, RequestTimeout, BodyTooLarge, ContentTypeUnsupported, RequestInvalid)
_QUERY: Kinds = (RequestMalformed, RequestInvalid)
_KEYED: Kinds = (RequestInvalid, IdempotencyKeyReused)
_STATEMENTS = (
    *(SqlInvalid, SqlUnsupported, ValueInvalid, SchemaInvalid, NameInvalid, QueryTimeout),
    *(NamespaceNotFound, TableNotFound, ColumnNotFound, IndexNotFound),
    *(NamespaceExists, NamespaceNotEmpty, TableExists, ColumnExists, IndexExists),
    *(RowExists, TableChanged, WriteConflict),
    *(TopicNotFound, TopicExists, PartitionNotFound, OffsetOutOfRange, TopicReplaced, TimeRangeInvalid),
    *(GroupNotFound, LeaseLost, RouteExists, RouteNotFound, RouteCycle, DurationInvalid),
    *(SequenceGap, SequenceReused, SequenceTooOld, OwnedByAnother),
)
_READS: Kinds = (StorageFailed, StorageCorrupt)
_WRITES: Kinds = (StorageFull, StorageFailed)
_LOG: Kinds = (TopicNotFound, PartitionNotFound, OffsetOutOfRange, TopicReplaced, *_READS)

_OF: dict[Operation, Kinds] = {
    Operation.STATUS_SHOW: _READS,
    Operation.PIPELINE_SHOW: (PipelineNotFound,),
    Operation.TOPIC_SHOW: (TopicNotFound,),
    Operation.TOPIC_CREATE: (NameInvalid, TopicExists, QuotaReached, *_WRITES),
    Operation.TOPIC_DELETE: (TopicNotFound, *_WRITES),
    Operation.TOPIC_PUBLISH: (
        TopicNotFound,
        PartitionNotFound,
        SequenceGap,
        SequenceReused,
        SequenceTooOld,
        OwnedByAnother,
        TopicReplaced,
        QuotaReached,
        StorageCorrupt,
        *_WRITES,
    ),
    Operation.TOPIC_CHANGE: (TopicNotFound, *_WRITES),
    Operation.TOPIC_CLEAR: (TopicNotFound, *_WRITES),
    Operation.TOPIC_GROUPS: (TopicNotFound, *_READS),
    Operation.TOPIC_ACK: (
        *(TopicNotFound, PartitionNotFound, GroupNotFound, LeaseLost, OffsetOutOfRange),
        *(NameInvalid, StorageFull),
        *_READS,
    ),
    Operation.TOPIC_RESET: (*_LOG, GroupNotFound, NameInvalid, TimeRangeInvalid, StorageFull),
    Operation.TOPIC_CONSUME: (*_LOG, NameInvalid, TimeRangeInvalid, QuotaReached, StorageFull),
    Operation.TOPIC_PLAN: _LOG,
    Operation.TOPIC_READ: _LOG,
    Operation.SQL_RUN: (*_STATEMENTS, *_READS, QuotaReached, StorageFull, RowsBeingRemoved),
    Operation.QUOTA_SHOW: _READS,
    Operation.USER_SHOW: (UserNotFound,),
    Operation.USER_CREATE: (NameInvalid, UserExists, UserHasRows, RowsBeingRemoved, *_READS),
    Operation.USER_CHANGE: (UserNotFound, LastAdministrator),
    Operation.USER_DELETE: (UserNotFound, LastAdministrator, NameInvalid, NotReady, *_READS, *_WRITES),
    Operation.TOKEN_LIST: (UserNotFound,),
    Operation.TOKEN_CREATE: (UserNotFound, IdempotencyAnswerHidden),
    Operation.TOKEN_REVOKE: (UserNotFound, TokenNotFound),
    Operation.JOB_SHOW: (JobNotFound,),
    Operation.TENANT_LIST: _READS,
    Operation.TENANT_CHANGE: _READS,
    Operation.TENANT_CREATE: (NameInvalid, TenantExists),
    Operation.TENANT_DISABLE: (LastAdministrator,),
    Operation.LINK_CREATE: (IdempotencyAnswerHidden,),
    Operation.BACKUP_CREATE: (LeaseHeld, LeaseLost, JobStateWrong, NotReady, *_WRITES),
    Operation.BACKUP_CHANGE: (BackupNotFound, LeaseLost, JobNotFound, JobStateWrong, *_WRITES),
}
# By endpoint, where it is open to everyone or shares its operation with others.
_AT: dict[str, Kinds] = {
    "GET /ready": (NotReady,),
    "GET /enter": (LinkWrong, RequestMalformed),
    "POST /enter": (
        LinkWrong,
        OriginRefused,
        UserDisabled,
        TenantDisabled,
        CatalogUnavailable,
        RequestMalformed,
        RequestTimeout,
        BodyTooLarge,
        ContentTypeUnsupported,
    ),
    "POST /leave": (RequestInvalid,),
    "POST /api/v1/topics/{topic}/parts": _BODY,
    "GET /docs/{file}": (EndpointNotFound,),
}


def errors_of(endpoint: Endpoint) -> list[type[TidegateError]]:
    """Return the errors that an endpoint can answer with, ordered by status and code."""
    kinds: list[type[TidegateError]] = [InvariantBroken, *_AT.get(f"{endpoint.method} {endpoint.path}", ())]
    if endpoint.operation is not None:
        kinds += [*_GUARDED, *_OF.get(endpoint.operation, ())]
        if endpoint.method != "GET":
            kinds.append(OriginRefused)
        if endpoint.bearer_only:
            kinds.append(SessionInsufficient)
    if not endpoint.exempt:
        kinds.append(TooManyRequests)
    kinds += _BODY if endpoint.body is not None else ()
    kinds += _QUERY if endpoint.query else ()
    kinds += _KEYED if endpoint.keyed else ()
    return sorted(set(kinds), key=lambda kind: (kind.status, kind.code))
