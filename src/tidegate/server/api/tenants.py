"""Endpoints of tenants: list, make, keep out and let in again. For administrators of the instance."""

from __future__ import annotations

from functools import partial

import msgspec
from starlette.responses import Response

from tidegate.catalog.accounts import Tenant
from tidegate.catalog.audit import Actor
from tidegate.model.timeranges import format_time
from tidegate.server.http.idempotency import Making, make_once
from tidegate.server.http.request import Call, list_page
from tidegate.server.http.responses import json_answer


class NewTenant(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of POST tenants."""

    name: str


class TenantAnswer(msgspec.Struct, rename="camel"):
    """A tenant."""

    name: str
    enabled: bool
    created_at: str


class TenantPage(msgspec.Struct, rename="camel"):
    """Tenants by name."""

    tenants: list[TenantAnswer]
    next: str | None


_new_tenant = msgspec.json.Decoder(NewTenant)


def instance_actor(call: Call) -> Actor:
    """Return who is written down for a deed that is the whole instance's: in their own tenant's trail.

    The tenant they act in at the moment has no part in it, and need not read of it.
    """
    mine = call.principal
    return Actor(mine.own_tenant, mine.user, call.request_id)


async def list_tenants(call: Call) -> Response:
    """Every tenant, by name, a page at a time."""
    page, people = list_page(call), call.running.catalog.people
    found = await call.running.threads.catalog(people.list_tenants, page)
    return json_answer(TenantPage([_tenant(tenant) for tenant in found.rows], found.next))


async def create_tenant(call: Call) -> Response:
    """A new tenant without users, durable on return."""
    body = await call.json(_new_tenant)
    deed = partial(call.running.catalog.people.create_tenant, instance_actor(call), body.name)
    return await make_once(call, Making(deed, _tenant))


async def enable_tenant(call: Call) -> Response:
    """The users of a tenant are let in again."""
    return await _set_enabled(call, enabled=True)


async def disable_tenant(call: Call) -> Response:
    """The users of a tenant are kept out, those who are in as well; what the tenant has stays."""
    return await _set_enabled(call, enabled=False)


async def _set_enabled(call: Call, *, enabled: bool) -> Response:
    running = call.running
    change = running.catalog.people.set_tenant_enabled
    tenant = await running.threads.catalog(change, instance_actor(call), call.params["tenant"], enabled)
    await running.identities.refresh()
    return json_answer(_tenant(tenant))


def _tenant(tenant: Tenant) -> TenantAnswer:
    return TenantAnswer(tenant.name, tenant.enabled, format_time(tenant.created_us))
