"""Endpoints of tenants: list, create, disable and enable. For administrators of the instance."""

from __future__ import annotations

from functools import partial

import msgspec
from starlette.responses import Response

from tidegate.catalog.accounts import Tenant
from tidegate.catalog.audit import Actor
from tidegate.model.times import format_time
from tidegate.model.wire.accounts import TenantPage, TenantResponse
from tidegate.server.http.idempotency import CatalogChange, change_once
from tidegate.server.http.request import HttpRequest
from tidegate.server.http.responses import json_answer


class NewTenant(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of POST tenants."""

    name: str


_new_tenant = msgspec.json.Decoder(NewTenant)


def instance_actor(request: HttpRequest) -> Actor:
    """Return the actor of a change to the whole instance: it goes into the trail of their own tenant.

    The tenant in which they act at the moment has no part in it and need not read about it.
    """
    principal = request.principal
    return Actor(principal.own_tenant, principal.user, request.id)


async def list_tenants(request: HttpRequest) -> Response:
    """Every tenant, by name, in pages."""
    page, accounts = request.page(), request.runtime.catalog.accounts
    found = await request.runtime.threads.catalog(accounts.list_tenants, page)
    return json_answer(TenantPage([_tenant(tenant) for tenant in found.rows], found.next))


async def create_tenant(request: HttpRequest) -> Response:
    """Create a tenant without users, durable on return."""
    body = await request.json(_new_tenant)
    change = partial(request.runtime.catalog.accounts.create_tenant, instance_actor(request), body.name)
    return await change_once(request, CatalogChange(change, _tenant))


async def enable_tenant(request: HttpRequest) -> Response:
    """Enable a tenant: its users can sign in again."""
    return await _set_enabled(request, enabled=True)


async def disable_tenant(request: HttpRequest) -> Response:
    """Disable a tenant: its users are locked out at once; its data stays."""
    return await _set_enabled(request, enabled=False)


async def _set_enabled(request: HttpRequest, *, enabled: bool) -> Response:
    runtime = request.runtime
    change = runtime.catalog.accounts.set_tenant_enabled
    tenant = await runtime.threads.catalog(change, instance_actor(request), request.params["tenant"], enabled)
    await runtime.tokens.refresh()
    return json_answer(_tenant(tenant))


def _tenant(tenant: Tenant) -> TenantResponse:
    return TenantResponse(tenant.name, tenant.enabled, format_time(tenant.created_us))
