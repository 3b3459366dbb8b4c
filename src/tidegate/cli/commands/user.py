"""`tidegate user`: add, list, show, role, enable, disable, remove, quota; token, tokens, revoke."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.commands.quota import USER_QUOTAS, SetOption, new_limits, quota_table
from tidegate.cli.completion import complete_roles, complete_tokens, complete_users
from tidegate.cli.hints import UsageRefused
from tidegate.cli.invocation import Invocation, YesOption, command, confirm
from tidegate.cli.output.format import cell_time, time_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tidegate.model.access import Role

DAY_SECONDS = 86_400.0

app = typer.Typer(name="user", help="Users of a tenant, their roles and their tokens.", no_args_is_help=True)

UserArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the user.", autocompletion=complete_users)
]
ROLE_HELP = (
    "reader, writer, admin, or the full name such as AdminPanelManagement; more than once for several."
)


@command(app, "add", tenant=True)
def add_user(
    call: Invocation,
    user: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new user.")],
    role: Annotated[
        list[str] | None,
        typer.Option("--role", metavar="ROLE", help=ROLE_HELP, autocompletion=complete_roles),
    ] = None,
    take_rows: Annotated[
        bool, typer.Option("--take-rows", help="The user gets the rows that are there under this name.")
    ] = False,
) -> None:
    """Add a user, a writer unless a role is named; a token lets them in."""
    roles = _roles(role) or None
    with call.client() as client:
        added = client.users.add(user, roles, take_rows=take_rows)
    next_command = f"tidegate user token {user}{call.tenant_flag}"
    call.answer(added, lambda: f"User {user} added, as {_roles_text(added)}. Next: {next_command}")


@command(app, "list", tenant=True)
def list_users(call: Invocation) -> None:
    """List the users."""
    with call.client() as client:
        users = client.users.list()
    call.answer({"users": users}, lambda: users_table(users))


@command(app, "show", tenant=True)
def show_user(call: Invocation, user: UserArgument) -> None:
    """Show one user and the roles."""
    with call.client() as client:
        found = client.users.show(user)
    call.answer(found, lambda: users_table([found]))


@command(app, "role", tenant=True)
def change_roles(
    call: Invocation,
    user: UserArgument,
    role: Annotated[
        list[str], typer.Option("--role", metavar="ROLE", help=ROLE_HELP, autocompletion=complete_roles)
    ],
) -> None:
    """Replace the roles of a user by these."""
    roles = _roles(role)
    with call.client() as client:
        changed = client.users.change(user, roles=roles)
    call.answer(changed, lambda: f"User {user} is {_roles_text(changed)} from now on.")


@command(app, "enable", tenant=True)
def enable_user(call: Invocation, user: UserArgument) -> None:
    """Let a user in again."""
    with call.client() as client:
        changed = client.users.change(user, enabled=True)
    call.answer(changed, lambda: f"User {user} is let in again.")


@command(app, "disable", tenant=True)
def disable_user(call: Invocation, user: UserArgument) -> None:
    """Keep a user out; their tokens stay, and work again after `user enable`."""
    with call.client() as client:
        changed = client.users.change(user, enabled=False)
    call.answer(changed, lambda: f"User {user} is kept out.")


@command(app, "remove", tenant=True)
def remove_user(
    call: Invocation,
    user: UserArgument,
    with_rows: Annotated[
        bool,
        typer.Option("--with-rows", help="Their rows in USER and STREAM tables, too, also of a former user."),
    ] = False,
    yes: YesOption = False,
) -> None:
    """Remove a user and end their tokens; asks first, and without a terminal needs --yes."""
    if not yes:
        call.require_terminal(f"whether user {user} may go: add --yes to remove them.")
    with call.client() as client:
        if not yes:
            if not with_rows:
                client.users.show(user)  # an unknown user is refused before the question
            rows = ", and remove their rows in all USER and STREAM tables" if with_rows else ""
            confirm(f"Remove user {user} and end their tokens{rows}?", "Nothing was removed.")
        removed = client.users.remove(user, with_rows=with_rows)
    shown: dict[str, Any] = {"removed": user}
    if with_rows:
        shown |= {name: removed[name] for name in ("userRemoved", "rows", "logs", "tables")}
    call.answer(shown, lambda: _removed_text(removed, with_rows=with_rows, flag=call.tenant_flag))


@command(app, "token", tenant=True)
def make_token(
    call: Invocation,
    user: UserArgument,
    label: Annotated[str, typer.Option(help="What it is for, such as ci or laptop.")] = "",
    days: Annotated[
        float | None, typer.Option(min=0.001, help="Days that it is valid; auth.token_days_default.")
    ] = None,
    no_end: Annotated[bool, typer.Option("--no-end", help="Valid until it is revoked.")] = False,
) -> None:
    """Make a token and print it, alone, on stdout: TOKEN=$(tidegate user token alice)."""
    if days is not None and no_end:
        raise UsageRefused("--days and --no-end exclude each other.")
    lifetime: dict[str, Any] = {}
    if no_end:
        lifetime["lifetime_seconds"] = None
    elif days is not None:
        lifetime["lifetime_seconds"] = days * DAY_SECONDS
    with call.client() as client:
        made = client.users.make_token(user, label=label, **lifetime)
    if call.as_json:
        call.line(made)
        return
    typer.echo(made["token"])
    until = f"valid until {time_text(made['expiresAt'])}" if made["expiresAt"] else "without an end"
    typer.echo(f"Token {made['id']} of {user}, {until}. It is shown once: keep it now.", err=True)


@command(app, "tokens", tenant=True)
def list_tokens(call: Invocation, user: UserArgument) -> None:
    """List the tokens of a user, without their secrets."""
    with call.client() as client:
        tokens = client.users.tokens(user)
    call.answer({"tokens": tokens}, lambda: tokens_table(user, tokens))


@command(app, "revoke", tenant=True)
def revoke_token(
    call: Invocation,
    user: UserArgument,
    token: Annotated[
        str,
        typer.Argument(metavar="TOKEN_ID", help="As 'user tokens' lists it.", autocompletion=complete_tokens),
    ],
) -> None:
    """End a token at once."""
    with call.client() as client:
        client.users.revoke(user, token)
    call.answer({"revoked": token}, lambda: f"Token {token} of {user} is revoked.")


@command(app, "quota", tenant=True)
def user_quota(call: Invocation, user: UserArgument, changes: SetOption = None) -> None:
    """Show what a user may use and what they have used; --set requests-per-second=50 changes a limit."""
    limits = new_limits(changes or (), USER_QUOTAS)
    with call.client() as client:
        users = client.users
        quota = users.change_quota(user, limits) if limits else users.quota(user)
    call.answer(quota, lambda: quota_table(quota))


def _removed_text(removed: Mapping[str, Any], *, with_rows: bool, flag: str) -> str:
    user = removed["deleted"]
    if not with_rows:
        again = f"tidegate user remove {user} --with-rows{flag}"
        return f"User {user} is removed. Rows of USER and STREAM tables stay; {again} removes them."
    first = f"User {user} is removed" if removed["userRemoved"] else f"There was no user {user} any more"
    if not removed["tables"]:
        return f"{first}; no rows of that name were there."
    tables = ", ".join(removed["tables"])
    return (
        f"{first}, with {removed['rows']:,} rows of USER tables and {removed['logs']:,} log files of STREAM "
        f"tables: {tables}."
    )


def users_table(users: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return a table of users."""
    from tidegate.cli.output.tables import Listing

    if not users:
        return "No users yet. Add one: tidegate user add NAME"
    rows = [
        (
            entry["name"],
            ", ".join(entry["roles"]),
            "yes" if entry["enabled"] else "no",
            cell_time(entry["createdAt"]),
        )
        for entry in users
    ]
    return Listing(("user", "roles", "let in", "since (UTC)"), rows, spare=(3,))


def tokens_table(user: str, tokens: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return a table of tokens."""
    from tidegate.cli.output.tables import Listing

    if not tokens:
        return f"{user} has no tokens. Make one: tidegate user token {user}"
    rows = [
        (
            entry["id"],
            entry["kind"],
            entry["label"],
            cell_time(entry["createdAt"]),
            cell_time(entry["lastUsedAt"]) or "never",
            cell_time(entry["expiresAt"]) or "never",
            cell_time(entry["endedAt"]),
        )
        for entry in tokens
    ]
    headings = ("token", "kind", "label", "made (UTC)", "last used", "ends", "ended")
    note = "Times are UTC; 'last used' is exact to the hour."
    return Listing(headings, rows, spare=(3,), note=note)


def _roles(words: Sequence[str] | None) -> list[str]:
    """Return the full names of roles; raise for an unknown one, before any request."""
    from tidegate.model.access import parse_role

    parsed: list[Role] = [parse_role(word) for word in words or ()]
    return [str(role) for role in dict.fromkeys(parsed)]


def _roles_text(user: Mapping[str, Any]) -> str:
    return ", ".join(user["roles"])
