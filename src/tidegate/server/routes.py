"""The routes of the HTTP API, each with its endpoint, its body and answer, and the operation to check."""

from __future__ import annotations

from dataclasses import replace

from tidegate.model.access import Operation
from tidegate.model.wire import accounts, operations
from tidegate.model.wire import groups as group_wire
from tidegate.model.wire import sql as sql_wire
from tidegate.model.wire import status as status_wire
from tidegate.model.wire import topics as topic_wire
from tidegate.model.wire.struct import DeleteResponse
from tidegate.server.api import (
    audit_and_jobs,
    backups,
    consume,
    groups,
    metrics,
    offset_ranges,
    publish,
    quotas,
    sql,
    staged_batches,
    status,
    tenants,
    topics,
    users,
)
from tidegate.server.http.request import Endpoint
from tidegate.server.openapi import media, swagger
from tidegate.server.pages import pages

API = "/api/v1"
PAGE = ("limit", "after")  # the query of a list

# The routes below API.
_API_ROUTES = [
    Endpoint("GET", "/status", status.status, Operation.STATUS_SHOW, answer=status_wire.StatusResponse),
    Endpoint(
        "GET", "/pipelines", status.list_pipelines, Operation.PIPELINE_LIST, answer=status_wire.PipelineList
    ),
    Endpoint(
        "GET",
        "/pipelines/{name}",
        status.show_pipeline,
        Operation.PIPELINE_SHOW,
        answer=status_wire.PipelineResponse,
    ),
    Endpoint(
        "POST",
        "/worker/report",
        status.take_report,
        Operation.WORKER_REPORT,
        status_wire.WorkerReport,
        status_wire.WorkerReportResponse,
    ),
    Endpoint(
        "GET", "/topics", topics.list_topics, Operation.TOPIC_LIST, answer=topic_wire.TopicPage, query=PAGE
    ),
    Endpoint(
        "POST",
        "/topics",
        topics.create_topic,
        Operation.TOPIC_CREATE,
        topics.NewTopic,
        topic_wire.TopicResponse,
        status=201,
        keyed=True,
    ),
    Endpoint(
        "GET", "/topics/{topic}", topics.show_topic, Operation.TOPIC_SHOW, answer=topic_wire.TopicResponse
    ),
    Endpoint("DELETE", "/topics/{topic}", topics.delete_topic, Operation.TOPIC_DELETE, answer=DeleteResponse),
    Endpoint(
        "PATCH",
        "/topics/{topic}",
        topics.change_topic,
        Operation.TOPIC_CHANGE,
        topics.TopicChange,
        topic_wire.TopicChangeResponse,
    ),
    Endpoint(
        "POST",
        "/topics/{topic}/clear",
        topics.clear_topic,
        Operation.TOPIC_CLEAR,
        answer=topic_wire.ClearResponse,
    ),
    Endpoint(
        "POST",
        "/topics/{topic}/publish",
        publish.publish,
        Operation.TOPIC_PUBLISH,
        publish.PublishBody,
        topic_wire.PublishResponse,
        query=("producerId", "sequence"),
        arrow_in=True,
        keyed=True,
    ),
    Endpoint(
        "POST",
        "/topics/{topic}/consume",
        consume.consume,
        Operation.TOPIC_CONSUME,
        consume.ConsumeBody,
        topic_wire.MessagePage,
        arrow_out=True,
        reads=True,
    ),
    Endpoint(
        "POST",
        "/topics/{topic}/plan",
        offset_ranges.plan,
        Operation.TOPIC_PLAN,
        offset_ranges.PlanBody,
        topic_wire.OffsetRangesResponse,
        reads=True,
    ),
    Endpoint(
        "POST",
        "/topics/{topic}/read",
        offset_ranges.read,
        Operation.TOPIC_READ,
        offset_ranges.ReadBody,
        arrow_out=True,
        reads=True,
    ),
    *(
        Endpoint("POST", f"/topics/{{topic}}/{verb}", endpoint, Operation.TOPIC_ACK, body, answer)
        for verb, endpoint, body, answer in (
            ("ack", groups.ack, groups.AckBody, group_wire.AckResponse),
            ("nack", groups.nack, groups.NackBody, group_wire.NackResponse),
            ("extend", groups.extend, groups.ExtendBody, group_wire.ExtendResponse),
        )
    ),
    Endpoint(
        "POST",
        "/topics/{topic}/parts",
        staged_batches.store_part,
        Operation.TOPIC_PUBLISH,
        answer=topic_wire.PartResponse,
        query=staged_batches.QUERY,
        arrow_in=True,
    ),
    Endpoint(
        "POST",
        "/topics/{topic}/commit",
        staged_batches.commit_batch,
        Operation.TOPIC_PUBLISH,
        staged_batches.CommitBody,
        topic_wire.CommitResponse,
    ),
    Endpoint(
        "POST",
        "/topics/{topic}/abort",
        staged_batches.abort_batch,
        Operation.TOPIC_PUBLISH,
        staged_batches.AbortBody,
        topic_wire.AbortResponse,
    ),
    Endpoint(
        "POST",
        "/topics/{topic}/reset",
        groups.reset,
        Operation.TOPIC_RESET,
        groups.ResetBody,
        group_wire.ResetResponse,
    ),
    Endpoint(
        "GET",
        "/topics/{topic}/groups",
        groups.list_groups,
        Operation.TOPIC_GROUPS,
        answer=group_wire.GroupList,
    ),
    Endpoint(
        "DELETE",
        "/topics/{topic}/groups/{group}",
        groups.delete_group,
        Operation.TOPIC_RESET,
        answer=DeleteResponse,
    ),
    Endpoint(
        "POST",
        "/sql",
        sql.run_sql,
        Operation.SQL_RUN,
        sql.SqlBody,
        sql_wire.SqlResponse,
        query=("sql",),
        arrow_in=True,
        arrow_out=True,
        keyed=True,
    ),
    Endpoint("GET", "/me", users.me, Operation.ME_SHOW, answer=accounts.MeResponse),
    Endpoint("GET", "/users", users.list_users, Operation.USER_LIST, answer=accounts.UserPage, query=PAGE),
    Endpoint(
        "POST",
        "/users",
        users.create_user,
        Operation.USER_CREATE,
        users.NewUser,
        accounts.UserResponse,
        201,
        keyed=True,
    ),
    Endpoint("GET", "/users/{user}", users.show_user, Operation.USER_SHOW, answer=accounts.UserResponse),
    Endpoint(
        "PATCH",
        "/users/{user}",
        users.change_user,
        Operation.USER_CHANGE,
        users.UserChange,
        accounts.UserResponse,
    ),
    Endpoint(
        "DELETE",
        "/users/{user}",
        users.delete_user,
        Operation.USER_DELETE,
        answer=accounts.UserDeleteResponse,
        query=("withRows",),
    ),
    Endpoint(
        "GET",
        "/users/{user}/tokens",
        users.list_tokens,
        Operation.TOKEN_LIST,
        answer=accounts.TokenPage,
        query=PAGE,
    ),
    Endpoint(
        "POST",
        "/users/{user}/tokens",
        users.create_token,
        Operation.TOKEN_CREATE,
        users.NewToken,
        accounts.NewTokenResponse,
        201,
        keyed=True,
        bearer_only=True,
    ),
    Endpoint(
        "DELETE",
        "/users/{user}/tokens/{token}",
        users.revoke_token,
        Operation.TOKEN_REVOKE,
        answer=accounts.RevokeResponse,
    ),
    Endpoint(
        "GET", "/tenants", tenants.list_tenants, Operation.TENANT_LIST, answer=accounts.TenantPage, query=PAGE
    ),
    Endpoint(
        "POST",
        "/tenants",
        tenants.create_tenant,
        Operation.TENANT_CREATE,
        tenants.NewTenant,
        accounts.TenantResponse,
        201,
        keyed=True,
    ),
    Endpoint(
        "POST",
        "/tenants/{tenant}/enable",
        tenants.enable_tenant,
        Operation.TENANT_ENABLE,
        answer=accounts.TenantResponse,
    ),
    Endpoint(
        "POST",
        "/tenants/{tenant}/disable",
        tenants.disable_tenant,
        Operation.TENANT_DISABLE,
        answer=accounts.TenantResponse,
    ),
    Endpoint(
        "GET",
        "/tenants/{tenant}/quota",
        quotas.show_tenant_quota,
        Operation.TENANT_LIST,
        answer=accounts.TenantQuotaResponse,
    ),
    Endpoint(
        "PATCH",
        "/tenants/{tenant}/quota",
        quotas.change_tenant_quota,
        Operation.TENANT_CHANGE,
        quotas.TenantQuotaChange,
        accounts.TenantQuotaResponse,
    ),
    Endpoint(
        "GET",
        "/users/{user}/quota",
        quotas.show_user_quota,
        Operation.USER_SHOW,
        answer=accounts.UserQuotaResponse,
    ),
    Endpoint(
        "PATCH",
        "/users/{user}/quota",
        quotas.change_user_quota,
        Operation.USER_CHANGE,
        quotas.UserQuotaChange,
        accounts.UserQuotaResponse,
    ),
    Endpoint("GET", "/quota", quotas.show_quota, Operation.QUOTA_SHOW, answer=accounts.QuotaResponse),
    Endpoint(
        "GET",
        "/audit",
        audit_and_jobs.list_events,
        Operation.AUDIT_LIST,
        answer=operations.AuditPage,
        query=(*PAGE, "user", "action"),
    ),
    Endpoint(
        "GET",
        "/jobs",
        audit_and_jobs.list_jobs,
        Operation.JOB_LIST,
        answer=operations.JobPage,
        query=(*PAGE, "kind", "state"),
    ),
    Endpoint(
        "GET", "/jobs/{job}", audit_and_jobs.show_job, Operation.JOB_SHOW, answer=operations.JobResponse
    ),
    Endpoint(
        "POST",
        "/links",
        pages.create_link,
        Operation.LINK_CREATE,
        answer=accounts.LinkResponse,
        status=201,
        bearer_only=True,
    ),
    Endpoint(
        "POST",
        "/backups",
        backups.start_backup,
        Operation.BACKUP_CREATE,
        backups.StartBody,
        operations.BackupStartResponse,
        status=201,
    ),
    Endpoint(
        "POST",
        "/backups/{backup}/finish",
        backups.finish_backup,
        Operation.BACKUP_CHANGE,
        backups.FinishBody,
        operations.BackupFinishResponse,
    ),
    Endpoint(
        "DELETE",
        "/backups/{backup}",
        backups.give_up_backup,
        Operation.BACKUP_CHANGE,
        answer=operations.BackupAbortResponse,
    ),
]

ROUTES: list[Endpoint] = [
    Endpoint("GET", "/health", status.health, None, answer=status_wire.HealthResponse, exempt=True),
    Endpoint("GET", "/ready", status.ready, None, answer=status_wire.ReadyResponse, exempt=True),
    Endpoint("GET", "/metrics", metrics.metrics, Operation.METRICS_SHOW, answer=media.METRICS, exempt=True),
    *(replace(route, path=f"{API}{route.path}") for route in _API_ROUTES),
    Endpoint("GET", "/enter", pages.show_enter, None, answer=media.PAGE, query=("code",)),
    Endpoint("POST", "/enter", pages.use_enter, None, answer=media.REDIRECT, status=303),
    Endpoint("POST", "/leave", pages.leave, Operation.ME_SHOW, answer=media.PAGE),
    Endpoint("GET", "/", pages.home, Operation.STATUS_SHOW, answer=media.PAGE),
    Endpoint("GET", "/docs", swagger.show_docs, Operation.DOCS_SHOW, answer=media.API_PAGE),
    Endpoint("GET", "/docs/{file}", swagger.show_file, Operation.DOCS_SHOW, answer=media.FILE),
    Endpoint("GET", "/openapi.json", swagger.show_description, Operation.DOCS_SHOW, answer=media.DESCRIPTION),
]
