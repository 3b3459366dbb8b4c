"""`tidegate tenant`: list, create, enable, disable, quota."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.commands.quota import SetOption, new_limits, quota_table
from tidegate.cli.completion import complete_tenants
from tidegate.cli.invocation import Invocation, command
from tidegate.cli.output.format import cell_time

if TYPE_CHECKING:
    from rich.console import RenderableType

app = typer.Typer(
    name="tenant",
    help="Tenants: what belongs to one is not seen by another. For administrators of the instance.",
    no_args_is_help=True,
)

TenantArgument = Annotated[
    str, typer.Argument(metavar="TENANT", help="Name of the tenant.", autocompletion=complete_tenants)
]


@command(app, "list")
def list_tenants(call: Invocation) -> None:
    """List the tenants."""
    with call.client() as client:
        tenants = client.tenants.list()
    call.answer({"tenants": tenants}, lambda: tenants_table(tenants))


@command(app, "create")
def create_tenant(
    call: Invocation,
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Name of the new tenant.")],
) -> None:
    """Create a tenant."""
    with call.client() as client:
        made = client.tenants.create(tenant)
    call.answer(made, lambda: f"Tenant {tenant} created. Next: tidegate user add NAME --tenant {tenant}")


@command(app, "enable")
def enable_tenant(call: Invocation, tenant: TenantArgument) -> None:
    """Let the users of a tenant in again."""
    with call.client() as client:
        changed = client.tenants.enable(tenant)
    call.answer(changed, lambda: f"Tenant {tenant} is enabled.")


@command(app, "disable")
def disable_tenant(call: Invocation, tenant: TenantArgument) -> None:
    """Keep the users of a tenant out; nothing of theirs is removed."""
    from tidegate.errors import Conflict, LastAdministrator

    with call.client() as client:
        try:
            changed = client.tenants.disable(tenant)
        except LastAdministrator as refusal:
            reason = f"Tenant '{tenant}' is the first one, and cannot be disabled."
            hint = (
                "The administrators of the instance are in it. Keep one user out: tidegate user disable NAME."
            )
            raise Conflict(reason=reason, hint=hint) from refusal
    call.answer(changed, lambda: f"Tenant {tenant} is disabled: its users are kept out, what it has stays.")


@command(app, "quota")
def tenant_quota(call: Invocation, tenant: TenantArgument, changes: SetOption = None) -> None:
    """Show what a tenant may use and what it has used; --set topics=100 changes a limit."""
    limits = new_limits(changes or ())
    with call.client() as client:
        tenants = client.tenants
        quota = tenants.change_quota(tenant, limits) if limits else tenants.quota(tenant)
    call.answer(quota, lambda: quota_table(quota))


def tenants_table(tenants: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return a table of tenants."""
    from tidegate.cli.output.tables import Listing

    rows = [
        (entry["name"], "yes" if entry["enabled"] else "no", cell_time(entry["createdAt"]))
        for entry in tenants
    ]
    return Listing(("tenant", "enabled", "since (UTC)"), rows)
