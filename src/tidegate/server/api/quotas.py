"""Endpoints of quotas: the limits of a tenant and of a user, what is used of them, and changes."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import asdict
from starlette.responses import Response

from tidegate.errors import RequestInvalid
from tidegate.model.quotas import LIMIT_MAX, TENANT_QUOTAS, USER_QUOTAS
from tidegate.model.wire.accounts import QuotaResponse, QuotaUse, TenantQuotaResponse, UserQuotaResponse
from tidegate.server.api.tenants import instance_actor
from tidegate.server.http.request import HttpRequest
from tidegate.server.http.responses import json_answer
from tidegate.server.runtime.runtime import Runtime

Limit = Annotated[int, Meta(ge=0, le=LIMIT_MAX)] | UnsetType | None


class UserQuotaChange(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of PATCH users/{user}/quota.

    An omitted field does not change; 0 is no limit, null what the settings say.
    """

    requests_per_second: Limit = UNSET
    published_bytes_per_second: Limit = UNSET


class TenantQuotaChange(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of PATCH tenants/{tenant}/quota; fields as for a user."""

    requests_per_second: Limit = UNSET
    published_bytes_per_second: Limit = UNSET
    topics: Limit = UNSET
    groups: Limit = UNSET
    tables: Limit = UNSET
    disk_bytes: Limit = UNSET


_user_change = msgspec.json.Decoder(UserQuotaChange)
_tenant_change = msgspec.json.Decoder(TenantQuotaChange)


async def show_quota(request: HttpRequest) -> Response:
    """The quotas of the caller and of the tenant where they act, and what is used of them."""
    runtime, principal = request.runtime, request.principal
    tenant = await _tenant_quota(runtime, request.tenant)
    return json_answer(QuotaResponse(tenant, _user_quota(runtime, principal.own_tenant, principal.user)))


async def show_tenant_quota(request: HttpRequest) -> Response:
    """The quotas of a tenant, and what is used of them."""
    runtime, name = request.runtime, request.params["tenant"]
    await runtime.threads.catalog(runtime.catalog.accounts.get_tenant, name)
    return json_answer(await _tenant_quota(runtime, name))


async def change_tenant_quota(request: HttpRequest) -> Response:
    """Change quotas of a tenant, at once; what is there stays, also where it is more than the limit."""
    runtime, name = request.runtime, request.params["tenant"]
    body = await request.json(_tenant_change)
    changes, change = _changes(body), runtime.catalog.quotas.change_tenant
    await runtime.threads.catalog(change, instance_actor(request), name, changes)
    await runtime.refresh_quotas()
    return json_answer(await _tenant_quota(runtime, name))


async def show_user_quota(request: HttpRequest) -> Response:
    """The quotas of a user, and what is used of them."""
    runtime, name = request.runtime, request.params["user"]
    await runtime.threads.catalog(runtime.catalog.accounts.get_user, request.tenant, name)
    return json_answer(_user_quota(runtime, request.tenant, name))


async def change_user_quota(request: HttpRequest) -> Response:
    """Change quotas of a user, at once."""
    runtime, name = request.runtime, request.params["user"]
    body = await request.json(_user_change)
    changes, change = _changes(body), runtime.catalog.quotas.change_user
    await runtime.threads.catalog(change, request.actor(), request.tenant, name, changes)
    await runtime.refresh_quotas()
    return json_answer(_user_quota(runtime, request.tenant, name))


def _changes(body: UserQuotaChange | TenantQuotaChange) -> dict[str, int | None]:
    found = {name: limit for name, limit in asdict(body).items() if not isinstance(limit, UnsetType)}
    if not found:
        names = ", ".join(body.__struct_encode_fields__)
        raise RequestInvalid(reason="Nothing is to be changed.", hint=f"Give one of {names}.")
    return found


async def _tenant_quota(runtime: Runtime, tenant: str) -> TenantQuotaResponse:
    limits, topics = runtime.quotas.of_tenant(tenant), runtime.topics
    requests, published = runtime.quotas.used_rates(tenant)
    used = {
        "requests_per_second": requests,
        "published_bytes_per_second": published,
        "topics": topics.directory.count(tenant),
        "groups": await runtime.threads.read(topics.groups.count, tenant),
        "tables": runtime.tables.directory.count(tenant),
        "disk_bytes": await runtime.tenant_disks.measure(runtime, tenant),
    }
    return TenantQuotaResponse(
        tenant=tenant,
        own=_own(runtime, tenant, ""),
        **{name: QuotaUse(getattr(limits, name), used[name]) for name in TENANT_QUOTAS},
    )


def _user_quota(runtime: Runtime, tenant: str, user: str) -> UserQuotaResponse:
    limits = runtime.quotas.of_user(tenant, user)
    used = dict(zip(USER_QUOTAS, runtime.quotas.used_rates(tenant, user), strict=True))
    return UserQuotaResponse(
        tenant=tenant,
        user=user,
        own=_own(runtime, tenant, user),
        **{name: QuotaUse(getattr(limits, name), used[name]) for name in USER_QUOTAS},
    )


def _own(runtime: Runtime, tenant: str, user: str) -> list[str]:
    """Return the names, as on the wire, of the limits that were set for an account."""
    overrides: Any = runtime.quotas.overrides.get((tenant, user), {})
    wire_names = dict(
        zip(TenantQuotaChange.__struct_fields__, TenantQuotaChange.__struct_encode_fields__, strict=True)
    )
    return [wire_names[name] for name in TENANT_QUOTAS if name in overrides]
