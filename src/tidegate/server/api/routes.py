"""Every endpoint: method, path, the function that answers, what it takes and gives, who may call it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from tidegate.model.access import Operation
from tidegate.server import (
    backups,
    batch_parts,
    consume,
    docs_page,
    groups,
    metrics,
    pages,
    people,
    publish,
    ranges,
    records,
    shapes,
    sql,
    status,
    tenant_calls,
    topics,
    work_shapes,
)
from tidegate.server.call import Call

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
    Route("GET", "/health", status.health, None, answer=shapes.Health, exempt=True),
    Route("GET", "/ready", status.ready, None, answer=shapes.Ready, exempt=True),
    Route("GET", "/metrics", metrics.metrics, Operation.METRICS_SHOW, answer=shapes.METRICS, exempt=True),
    Route("GET", f"{API}/status", status.status, Operation.STATUS_SHOW, answer=shapes.Status),
    Route("GET", f"{API}/pipelines", status.list_pipelines, Operation.PIPELINE_LIST, answer=shapes.Pipelines),
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
        shapes.ReportTaken,
    ),
    Route(
        "GET",
        f"{API}/topics",
        topics.list_topics,
        Operation.TOPIC_LIST,
        answer=shapes.Topics,
        query=("limit", "after"),
    ),
    Route(
        "POST",
        f"{API}/topics",
        topics.create_topic,
        Operation.TOPIC_CREATE,
        topics.NewTopic,
        shapes.Topic,
        status=201,
        keyed=True,
    ),
    Route("GET", f"{API}/topics/{{topic}}", topics.show_topic, Operation.TOPIC_SHOW, answer=shapes.Topic),
    Route(
        "DELETE",
        f"{API}/topics/{{topic}}",
        topics.delete_topic,
        Operation.TOPIC_DELETE,
        answer=shapes.TopicDeleted,
    ),
    Route(
        "PATCH",
        f"{API}/topics/{{topic}}",
        topics.change_topic,
        Operation.TOPIC_CHANGE,
        topics.TopicChange,
        shapes.TopicChanged,
    ),
    Route(
        "POST",
        f"{API}/topics/{{topic}}/clear",
        topics.clear_topic,
        Operation.TOPIC_CLEAR,
        answer=shapes.TopicCleared,
    ),
    Route(
        "POST",
        f"{API}/topics/{{topic}}/publish",
        publish.publish,
        Operation.TOPIC_PUBLISH,
        publish.PublishBody,
        shapes.Published,
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
        shapes.Consumed,
        arrow_out=True,
        reads=True,
    ),
    Route(
        "POST",
        f"{API}/topics/{{topic}}/plan",
        ranges.plan,
        Operation.TOPIC_PLAN,
        ranges.PlanBody,
        shapes.Plan,
        reads=True,
    ),
    Route(
        "POST",
        f"{API}/topics/{{topic}}/read",
        ranges.read,
        Operation.TOPIC_READ,
        ranges.ReadBody,
        arrow_out=True,
        reads=True,
    ),
    *(
        Route("POST", f"{API}/topics/{{topic}}/{verb}", endpoint, Operation.TOPIC_ACK, body, answer)
        for verb, endpoint, body, answer in (
            ("ack", groups.ack, groups.AckBody, shapes.Acked),
            ("nack", groups.nack, groups.NackBody, shapes.Nacked),
            ("extend", groups.extend, groups.ExtendBody, shapes.Extended),
        )
    ),
    Route(
        "POST",
        f"{API}/topics/{{topic}}/parts",
        batch_parts.store_part,
        Operation.TOPIC_PUBLISH,
        answer=batch_parts.PartStored,
        query=batch_parts.QUERY,
        arrow_in=True,
    ),
    Route(
        "POST",
        f"{API}/topics/{{topic}}/commit",
        batch_parts.commit_batch,
        Operation.TOPIC_PUBLISH,
        batch_parts.CommitBody,
        batch_parts.BatchCommitted,
    ),
    Route(
        "POST",
        f"{API}/topics/{{topic}}/abort",
        batch_parts.abort_batch,
        Operation.TOPIC_PUBLISH,
        batch_parts.AbortBody,
        batch_parts.BatchAborted,
    ),
    Route(
        "POST",
        f"{API}/topics/{{topic}}/reset",
        groups.reset,
        Operation.TOPIC_RESET,
        groups.ResetBody,
        shapes.GroupMoved,
    ),
    Route(
        "GET",
        f"{API}/topics/{{topic}}/groups",
        groups.list_groups,
        Operation.TOPIC_GROUPS,
        answer=shapes.Groups,
    ),
    Route(
        "DELETE",
        f"{API}/topics/{{topic}}/groups/{{group}}",
        groups.delete_group,
        Operation.TOPIC_RESET,
        answer=shapes.GroupDeleted,
    ),
    Route(
        "POST",
        f"{API}/sql",
        sql.run_sql,
        Operation.SQL_RUN,
        sql.SqlBody,
        shapes.SqlRows,
        query=("sql",),
        arrow_in=True,
        arrow_out=True,
        keyed=True,
    ),
    Route("GET", f"{API}/me", people.me, Operation.ME_SHOW, answer=people.MeAnswer),
    Route(
        "GET",
        f"{API}/users",
        people.list_users,
        Operation.USER_LIST,
        answer=people.UserPage,
        query=("limit", "after"),
    ),
    Route(
        "POST",
        f"{API}/users",
        people.create_user,
        Operation.USER_CREATE,
        people.NewUser,
        people.UserAnswer,
        201,
        keyed=True,
    ),
    Route("GET", f"{API}/users/{{user}}", people.show_user, Operation.USER_SHOW, answer=people.UserAnswer),
    Route(
        "PATCH",
        f"{API}/users/{{user}}",
        people.change_user,
        Operation.USER_CHANGE,
        people.UserChange,
        people.UserAnswer,
    ),
    Route(
        "DELETE",
        f"{API}/users/{{user}}",
        people.delete_user,
        Operation.USER_DELETE,
        answer=people.UserDeleted,
    ),
    Route(
        "GET",
        f"{API}/users/{{user}}/tokens",
        people.list_tokens,
        Operation.TOKEN_LIST,
        answer=people.TokenPage,
        query=("limit", "after"),
    ),
    Route(
        "POST",
        f"{API}/users/{{user}}/tokens",
        people.create_token,
        Operation.TOKEN_CREATE,
        people.NewToken,
        people.MadeTokenAnswer,
        201,
        keyed=True,
    ),
    Route(
        "DELETE",
        f"{API}/users/{{user}}/tokens/{{token}}",
        people.revoke_token,
        Operation.TOKEN_REVOKE,
        answer=people.TokenRevokedAnswer,
    ),
    Route(
        "GET",
        f"{API}/tenants",
        tenant_calls.list_tenants,
        Operation.TENANT_LIST,
        answer=tenant_calls.TenantPage,
        query=("limit", "after"),
    ),
    Route(
        "POST",
        f"{API}/tenants",
        tenant_calls.create_tenant,
        Operation.TENANT_CREATE,
        tenant_calls.NewTenant,
        tenant_calls.TenantAnswer,
        201,
        keyed=True,
    ),
    Route(
        "POST",
        f"{API}/tenants/{{tenant}}/enable",
        tenant_calls.enable_tenant,
        Operation.TENANT_ENABLE,
        answer=tenant_calls.TenantAnswer,
    ),
    Route(
        "POST",
        f"{API}/tenants/{{tenant}}/disable",
        tenant_calls.disable_tenant,
        Operation.TENANT_DISABLE,
        answer=tenant_calls.TenantAnswer,
    ),
    Route(
        "GET",
        f"{API}/audit",
        records.list_events,
        Operation.AUDIT_LIST,
        answer=records.AuditPage,
        query=("limit", "after", "user", "action"),
    ),
    Route(
        "GET",
        f"{API}/jobs",
        records.list_jobs,
        Operation.JOB_LIST,
        answer=records.JobPage,
        query=("limit", "after", "kind", "state"),
    ),
    Route("GET", f"{API}/jobs/{{job}}", records.show_job, Operation.JOB_SHOW, answer=records.JobAnswer),
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
    Route("GET", "/enter", pages.show_enter, None, answer=shapes.PAGE, query=("code",)),
    Route("POST", "/enter", pages.use_enter, None, answer=shapes.REDIRECT, status=303),
    Route("POST", "/leave", pages.leave, Operation.ME_SHOW, answer=shapes.PAGE),
    Route("GET", "/", pages.home, Operation.STATUS_SHOW, answer=shapes.PAGE),
    Route("GET", "/docs", docs_page.show_docs, Operation.DOCS_SHOW, answer=shapes.API_PAGE),
    Route("GET", "/docs/{file}", docs_page.show_file, Operation.DOCS_SHOW, answer=shapes.FILE),
    Route("GET", "/openapi.json", docs_page.show_description, Operation.DOCS_SHOW, answer=shapes.DESCRIPTION),
]
