"""Every endpoint: method, path, the function that answers, what it takes and gives, who may call it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from tidegate.model.access import Operation
from tidegate.server.api import (
    audit_and_jobs,
    backups,
    consume,
    groups,
    metrics,
    offset_ranges,
    publish,
    sql,
    staged_batches,
    status,
    tenants,
    topics,
    users,
)
from tidegate.server.http.request import Call
from tidegate.server.openapi import schemas, swagger
from tidegate.server.openapi import schemas as work_shapes
from tidegate.server.pages import pages

Endpoint = Callable[[Call], Awaitable[Response]]
API = "/api/v1"


@dataclass(frozen=True, slots=True)
class Route:
    """One endpoint; without an operation it is open to everyone."""

    method: str
    path: str
    endpoint: Endpoint
    operation: Operation | None
    body: type | None = None  # the struct of the JSON body
    answer: Any = None  # the type of the JSON answer
    status: int = 200
    query: tuple[str, ...] = ()  # names of query parameters
    arrow_in: bool = False
    arrow_out: bool = False
    keyed: bool = False  # takes an Idempotency-Key
    reads: bool = False  # changes nothing, whatever its method: a repeat needs no key
    exempt: bool = False  # answers however much is going on

    @property
    def refuses_keys(self) -> bool:
        """Whether an Idempotency-Key would promise what this endpoint does not do."""
        return self.method in ("POST", "PATCH") and not self.keyed and not self.reads


ROUTES: list[Route] = [
    Route("GET", "/health", status.health, None, answer=schemas.Health, exempt=True),
    Route("GET", "/ready", status.ready, None, answer=schemas.Ready, exempt=True),
    Route("GET", "/metrics", metrics.metrics, Operation.METRICS_SHOW, answer=schemas.METRICS, exempt=True),
    Route("GET", f"{API}/status", status.status, Operation.STATUS_SHOW, answer=schemas.Status),
    Route(
        "GET", f"{API}/pipelines", status.list_pipelines, Operation.PIPELINE_LIST, answer=schemas.Pipelines
    ),
    Route(
        "GET",
        f"{API}/pipelines/{{name}}",
        status.show_pipeline,
        Operation.PIPELINE_SHOW,
        answer=work_shapes.Pipeline,
    ),
    Route(
        "POST",
        f"{API}/worker/report",
        status.take_report,
        Operation.WORKER_REPORT,
        status.WorkerBody,
        schemas.ReportTaken,
    ),
    Route(
        "GET",
        f"{API}/topics",
        topics.list_topics,
        Operation.TOPIC_LIST,
        answer=schemas.Topics,
        query=("limit", "after"),
    ),
    Route(
        "POST",
        f"{API}/topics",
        topics.create_topic,
        Operation.TOPIC_CREATE,
        topics.NewTopic,
        schemas.Topic,
        status=201,
        keyed=True,
    ),
    Route("GET", f"{API}/topics/{{topic}}", topics.show_topic, Operation.TOPIC_SHOW, answer=schemas.Topic),
    Route(
        "DELETE",
        f"{API}/topics/{{topic}}",
        topics.delete_topic,
        Operation.TOPIC_DELETE,
        answer=schemas.TopicDeleted,
    ),
    Route(
        "PATCH",
        f"{API}/topics/{{topic}}",
        topics.change_topic,
        Operation.TOPIC_CHANGE,
        topics.TopicChange,
        schemas.TopicChanged,
    ),
    Route(
        "POST",
        f"{API}/topics/{{topic}}/clear",
        topics.clear_topic,
        Operation.TOPIC_CLEAR,
        answer=schemas.TopicCleared,
    ),
    Route(
        "POST",
        f"{API}/topics/{{topic}}/publish",
        publish.publish,
        Operation.TOPIC_PUBLISH,
        publish.PublishBody,
        schemas.Published,
        query=("producerId", "sequence"),
        arrow_in=True,
        keyed=True,
    ),
    Route(
        "POST",
        f"{API}/topics/{{topic}}/consume",
        consume.consume,
        Operation.TOPIC_CONSUME,
        consume.ConsumeBody,
        schemas.Consumed,
        arrow_out=True,
        reads=True,
    ),
    Route(
        "POST",
        f"{API}/topics/{{topic}}/plan",
        offset_ranges.plan,
        Operation.TOPIC_PLAN,
        offset_ranges.PlanBody,
        schemas.Plan,
        reads=True,
    ),
    Route(
        "POST",
        f"{API}/topics/{{topic}}/read",
        offset_ranges.read,
        Operation.TOPIC_READ,
        offset_ranges.ReadBody,
        arrow_out=True,
        reads=True,
    ),
    *(
        Route("POST", f"{API}/topics/{{topic}}/{verb}", endpoint, Operation.TOPIC_ACK, body, answer)
        for verb, endpoint, body, answer in (
            ("ack", groups.ack, groups.AckBody, schemas.Acked),
            ("nack", groups.nack, groups.NackBody, schemas.Nacked),
            ("extend", groups.extend, groups.ExtendBody, schemas.Extended),
        )
    ),
    Route(
        "POST",
        f"{API}/topics/{{topic}}/parts",
        staged_batches.store_part,
        Operation.TOPIC_PUBLISH,
        answer=staged_batches.PartStored,
        query=staged_batches.QUERY,
        arrow_in=True,
    ),
    Route(
        "POST",
        f"{API}/topics/{{topic}}/commit",
        staged_batches.commit_batch,
        Operation.TOPIC_PUBLISH,
        staged_batches.CommitBody,
        staged_batches.BatchCommitted,
    ),
    Route(
        "POST",
        f"{API}/topics/{{topic}}/abort",
        staged_batches.abort_batch,
        Operation.TOPIC_PUBLISH,
        staged_batches.AbortBody,
        staged_batches.BatchAborted,
    ),
    Route(
        "POST",
        f"{API}/topics/{{topic}}/reset",
        groups.reset,
        Operation.TOPIC_RESET,
        groups.ResetBody,
        schemas.GroupMoved,
    ),
    Route(
        "GET",
        f"{API}/topics/{{topic}}/groups",
        groups.list_groups,
        Operation.TOPIC_GROUPS,
        answer=schemas.Groups,
    ),
    Route(
        "DELETE",
        f"{API}/topics/{{topic}}/groups/{{group}}",
        groups.delete_group,
        Operation.TOPIC_RESET,
        answer=schemas.GroupDeleted,
    ),
    Route(
        "POST",
        f"{API}/sql",
        sql.run_sql,
        Operation.SQL_RUN,
        sql.SqlBody,
        schemas.SqlRows,
        query=("sql",),
        arrow_in=True,
        arrow_out=True,
        keyed=True,
    ),
    Route("GET", f"{API}/me", users.me, Operation.ME_SHOW, answer=users.MeAnswer),
    Route(
        "GET",
        f"{API}/users",
        users.list_users,
        Operation.USER_LIST,
        answer=users.UserPage,
        query=("limit", "after"),
    ),
    Route(
        "POST",
        f"{API}/users",
        users.create_user,
        Operation.USER_CREATE,
        users.NewUser,
        users.UserAnswer,
        201,
        keyed=True,
    ),
    Route("GET", f"{API}/users/{{user}}", users.show_user, Operation.USER_SHOW, answer=users.UserAnswer),
    Route(
        "PATCH",
        f"{API}/users/{{user}}",
        users.change_user,
        Operation.USER_CHANGE,
        users.UserChange,
        users.UserAnswer,
    ),
    Route(
        "DELETE",
        f"{API}/users/{{user}}",
        users.delete_user,
        Operation.USER_DELETE,
        answer=users.UserDeleted,
    ),
    Route(
        "GET",
        f"{API}/users/{{user}}/tokens",
        users.list_tokens,
        Operation.TOKEN_LIST,
        answer=users.TokenPage,
        query=("limit", "after"),
    ),
    Route(
        "POST",
        f"{API}/users/{{user}}/tokens",
        users.create_token,
        Operation.TOKEN_CREATE,
        users.NewToken,
        users.MadeTokenAnswer,
        201,
        keyed=True,
    ),
    Route(
        "DELETE",
        f"{API}/users/{{user}}/tokens/{{token}}",
        users.revoke_token,
        Operation.TOKEN_REVOKE,
        answer=users.TokenRevokedAnswer,
    ),
    Route(
        "GET",
        f"{API}/tenants",
        tenants.list_tenants,
        Operation.TENANT_LIST,
        answer=tenants.TenantPage,
        query=("limit", "after"),
    ),
    Route(
        "POST",
        f"{API}/tenants",
        tenants.create_tenant,
        Operation.TENANT_CREATE,
        tenants.NewTenant,
        tenants.TenantAnswer,
        201,
        keyed=True,
    ),
    Route(
        "POST",
        f"{API}/tenants/{{tenant}}/enable",
        tenants.enable_tenant,
        Operation.TENANT_ENABLE,
        answer=tenants.TenantAnswer,
    ),
    Route(
        "POST",
        f"{API}/tenants/{{tenant}}/disable",
        tenants.disable_tenant,
        Operation.TENANT_DISABLE,
        answer=tenants.TenantAnswer,
    ),
    Route(
        "GET",
        f"{API}/audit",
        audit_and_jobs.list_events,
        Operation.AUDIT_LIST,
        answer=audit_and_jobs.AuditPage,
        query=("limit", "after", "user", "action"),
    ),
    Route(
        "GET",
        f"{API}/jobs",
        audit_and_jobs.list_jobs,
        Operation.JOB_LIST,
        answer=audit_and_jobs.JobPage,
        query=("limit", "after", "kind", "state"),
    ),
    Route(
        "GET",
        f"{API}/jobs/{{job}}",
        audit_and_jobs.show_job,
        Operation.JOB_SHOW,
        answer=audit_and_jobs.JobAnswer,
    ),
    Route(
        "POST", f"{API}/links", pages.create_link, Operation.LINK_CREATE, answer=pages.LinkAnswer, status=201
    ),
    Route(
        "POST",
        f"{API}/backups",
        backups.start_backup,
        Operation.BACKUP_CREATE,
        backups.StartBody,
        backups.StartedAnswer,
        status=201,
    ),
    Route(
        "POST",
        f"{API}/backups/{{backup}}/finish",
        backups.finish_backup,
        Operation.BACKUP_CHANGE,
        backups.FinishBody,
        backups.FinishedAnswer,
    ),
    Route(
        "DELETE",
        f"{API}/backups/{{backup}}",
        backups.give_up_backup,
        Operation.BACKUP_CHANGE,
        answer=backups.RemovedAnswer,
    ),
    Route("GET", "/enter", pages.show_enter, None, answer=schemas.PAGE, query=("code",)),
    Route("POST", "/enter", pages.use_enter, None, answer=schemas.REDIRECT, status=303),
    Route("POST", "/leave", pages.leave, Operation.ME_SHOW, answer=schemas.PAGE),
    Route("GET", "/", pages.home, Operation.STATUS_SHOW, answer=schemas.PAGE),
    Route("GET", "/docs", swagger.show_docs, Operation.DOCS_SHOW, answer=schemas.API_PAGE),
    Route("GET", "/docs/{file}", swagger.show_file, Operation.DOCS_SHOW, answer=schemas.FILE),
    Route("GET", "/openapi.json", swagger.show_description, Operation.DOCS_SHOW, answer=schemas.DESCRIPTION),
]
