"""Endpoints of accounts: the caller, the users of a tenant, and their tokens."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from tidegate.catalog.accounts import User
from tidegate.catalog.idempotency import IdempotencyKey
from tidegate.catalog.tokens import LABEL_CHARS_MAX, LIFETIME_SECONDS_MAX, IssuedToken, Token
from tidegate.errors import NotReady, RequestInvalid, UserNotFound
from tidegate.model.access import Role, parse_role
from tidegate.model.names import check_user_name
from tidegate.model.times import format_time
from tidegate.model.wire.accounts import (
    MeResponse,
    NewTokenResponse,
    RevokeResponse,
    TokenPage,
    TokenResponse,
    UserDeleteResponse,
    UserPage,
    UserResponse,
)
from tidegate.server.http.idempotency import CatalogChange, change_once
from tidegate.server.http.request import HttpRequest, format_optional_time
from tidegate.server.http.responses import json_answer

# There are four roles, in two forms each; a longer list has repetitions.
ROLES_MAX = 16
ROLE_CHARS_MAX = 80
DAY_SECONDS = 86_400
ROWS_DELETED = "user.delete_rows"  # in the audit trail

RoleNames = Annotated[
    list[Annotated[str, Meta(max_length=ROLE_CHARS_MAX)]], Meta(min_length=1, max_length=ROLES_MAX)
]
LifetimeSeconds = Annotated[float, Meta(gt=0, le=LIFETIME_SECONDS_MAX)]


class NewUser(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of POST users."""

    name: str
    roles: RoleNames = msgspec.field(default_factory=lambda: ["writer"])
    take_rows: bool = False


class UserChange(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of PATCH users; an omitted field does not change."""

    roles: RoleNames | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET


class NewToken(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of POST tokens; a lifetime of null never ends, an omitted one is that of the settings."""

    label: Annotated[str, Meta(max_length=LABEL_CHARS_MAX)] = ""
    lifetime_seconds: LifetimeSeconds | UnsetType | None = UNSET


_new_user = msgspec.json.Decoder(NewUser)
_user_change = msgspec.json.Decoder(UserChange)
_new_token = msgspec.json.Decoder(NewToken)


async def me(request: HttpRequest) -> Response:
    """The user of the token, the tenant where they act, and when the token expires."""
    principal = request.principal
    return json_answer(
        MeResponse(
            tenant=principal.tenant,
            user=principal.user,
            roles=role_names(principal.roles),
            expires_at=format_optional_time(principal.expires_us),
            instance_admin=principal.is_instance_admin,
        )
    )


async def list_users(request: HttpRequest) -> Response:
    """The users of the tenant, by name, in pages."""
    page, accounts = request.page(), request.runtime.catalog.accounts
    found = await request.runtime.threads.catalog(accounts.list_users, request.tenant, page)
    return json_answer(UserPage([_user(user) for user in found.rows], found.next))


async def create_user(request: HttpRequest) -> Response:
    """Create a user of the tenant, durable on return; without a token nobody can sign in as this user.

    A name that has rows in USER or STREAM tables is refused, unless the user is to take these rows.
    """
    body = await request.json(_new_user)
    runtime, tenant, name = request.runtime, request.tenant, check_user_name(body.name)
    runtime.row_owners.check((tenant, name))
    tables: list[str] = []
    if not body.take_rows:
        tables = await runtime.threads.read(runtime.tables.erasure.tables_with_rows, tenant, name)
    add = partial(runtime.catalog.accounts.add_user, tables_with_rows=tables)
    change = partial(add, request.actor(), tenant, name, _roles(body.roles))
    return await change_once(request, CatalogChange(change, _user))


async def show_user(request: HttpRequest) -> Response:
    """One user."""
    accounts = request.runtime.catalog.accounts
    return json_answer(
        _user(
            await request.runtime.threads.catalog(accounts.get_user, request.tenant, request.params["user"])
        )
    )


async def change_user(request: HttpRequest) -> Response:
    """Change the roles of a user, disable or enable them; all their tokens are affected at once."""
    body = await request.json(_user_change)
    if body.roles is UNSET and body.enabled is UNSET:
        raise RequestInvalid(reason="Nothing is to be changed.", hint="Give roles, or enabled, or both.")
    runtime = request.runtime
    change = partial(
        runtime.catalog.accounts.change_user,
        request.actor(),
        request.tenant,
        request.params["user"],
        roles=None if body.roles is UNSET else _roles(body.roles),
        enabled=None if body.enabled is UNSET else body.enabled,
    )
    user = await runtime.threads.catalog(change)
    await runtime.tokens.refresh()
    return json_answer(_user(user))


async def delete_user(request: HttpRequest) -> Response:
    """Delete a user, and end every token of theirs; with `withRows=true` their rows are removed, too.

    With rows, a user who was deleted before is no error: the rows that are still there are removed.
    """
    request.check_query()
    name = request.params["user"]
    if request.choice("withRows", ("true", "false")) == "true":
        return await _delete_with_rows(request, check_user_name(name))
    await _delete_account(request, name)
    return json_answer(UserDeleteResponse(name, user_removed=True))


async def _delete_account(request: HttpRequest, name: str) -> None:
    runtime = request.runtime
    await runtime.threads.catalog(runtime.catalog.accounts.remove_user, request.actor(), request.tenant, name)
    await runtime.tokens.refresh()


async def _delete_with_rows(request: HttpRequest, name: str) -> Response:
    runtime, owner, user_removed = request.runtime, (request.tenant, name), True

    def pause() -> None:
        if runtime.stopping:
            raise NotReady(reason="it is stopping; the same call removes the rest of the rows")

    # 1. from here on nobody writes rows of this user
    async with runtime.row_owners.erasing(owner):
        # 2. the user and their tokens; a call that was interrupted has removed them before
        try:
            await _delete_account(request, name)
        except UserNotFound:
            user_removed = False
        # 3. the statements that were let in before
        await runtime.row_owners.wait_idle(owner)
        # 4. the rows
        audited = runtime.audited(request.actor(), ROWS_DELETED, f"user/{name}")
        async with runtime.row_owners.turn, audited as outcome:
            erased = await runtime.threads.upkeep(runtime.tables.erasure.erase, *owner, pause)
            outcome |= {"rows": erased.rows, "logs": erased.logs, "tables": list(erased.tables)}
    return json_answer(
        UserDeleteResponse(name, user_removed, rows=erased.rows, logs=erased.logs, tables=list(erased.tables))
    )


async def list_tokens(request: HttpRequest) -> Response:
    """The tokens of a user, ended ones too; without their texts."""
    page, tokens = request.page(), request.runtime.catalog.tokens
    found = await request.runtime.threads.catalog(tokens.list, request.tenant, request.params["user"], page)
    return json_answer(TokenPage([_token(token) for token in found.rows], found.next))


async def create_token(request: HttpRequest) -> Response:
    """Create a token of a user; its text is in this answer alone and stored nowhere."""
    body = await request.json(_new_token)
    runtime = request.runtime
    days = runtime.settings.auth.token_days_default
    seconds = body.lifetime_seconds
    if isinstance(seconds, UnsetType):
        seconds = days * DAY_SECONDS if days else None

    actor, tenant, user = request.actor(), request.tenant, request.params["user"]

    # No cache knows a new token yet, so nothing has to be refreshed.
    def change(key: IdempotencyKey | None) -> IssuedToken:
        return runtime.catalog.tokens.make(
            actor, tenant, user, label=body.label, lifetime_seconds=seconds, key=key
        )

    def response_of(issued: IssuedToken) -> NewTokenResponse:
        return NewTokenResponse(issued.id, issued.text, body.label, format_optional_time(issued.expires_us))

    return await change_once(request, CatalogChange(change, response_of, is_secret=True))


async def revoke_token(request: HttpRequest) -> Response:
    """End a token now, in running requests, too."""
    runtime, params = request.runtime, request.params
    revoke = runtime.catalog.tokens.revoke
    await runtime.threads.catalog(revoke, request.actor(), request.tenant, params["user"], params["token"])
    await runtime.tokens.refresh()
    return json_answer(RevokeResponse(params["token"]))


def role_names(roles: frozenset[Role]) -> list[str]:
    """Return the names of roles in the order of their definition."""
    return [str(role) for role in Role if role in roles]


def _roles(names: list[str]) -> frozenset[Role]:
    return frozenset(parse_role(name) for name in names)


def _user(user: User) -> UserResponse:
    return UserResponse(
        name=user.name,
        tenant=user.tenant,
        roles=role_names(user.roles),
        enabled=user.enabled,
        created_at=format_time(user.created_us),
    )


def _token(token: Token) -> TokenResponse:
    return TokenResponse(
        id=token.id,
        kind=token.kind,
        label=token.label,
        created_at=format_time(token.created_us),
        expires_at=format_optional_time(token.expires_us),
        ended_at=format_optional_time(token.ended_us),
        last_used_at=format_optional_time(token.last_used_us),
    )
