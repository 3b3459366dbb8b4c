"""Endpoints of people: who I am, the users of a tenant, and their tokens."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from tidegate.catalog.accounts import User
from tidegate.catalog.idempotency import Once
from tidegate.catalog.tokens import LABEL_CHARS_MAX, LIFETIME_SECONDS_MAX, MadeToken, Token
from tidegate.errors import RequestInvalid
from tidegate.model.access import Role, parse_role
from tidegate.model.timeranges import format_time
from tidegate.server.http.idempotency import Making, make_once
from tidegate.server.http.request import Call, list_page, moment
from tidegate.server.http.responses import json_answer

# There are four roles, in two forms each; a longer list repeats itself.
ROLES_MAX = 16
ROLE_CHARS_MAX = 80
DAY_SECONDS = 86_400

RoleNames = Annotated[
    list[Annotated[str, Meta(max_length=ROLE_CHARS_MAX)]], Meta(min_length=1, max_length=ROLES_MAX)
]
LifetimeSeconds = Annotated[float, Meta(gt=0, le=LIFETIME_SECONDS_MAX)]


class NewUser(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of POST users."""

    name: str
    roles: RoleNames = msgspec.field(default_factory=lambda: ["writer"])


class UserChange(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of PATCH users; what is left out stays."""

    roles: RoleNames | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET


class NewToken(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of POST tokens; a lifetime of null has no end, one left out is the setting's."""

    label: Annotated[str, Meta(max_length=LABEL_CHARS_MAX)] = ""
    lifetime_seconds: LifetimeSeconds | UnsetType | None = UNSET


class MeAnswer(msgspec.Struct, rename="camel"):
    """Who calls, and in which tenant."""

    tenant: str
    user: str
    roles: list[str]
    expires_at: str | None
    instance_admin: bool


class UserAnswer(msgspec.Struct, rename="camel"):
    """A user."""

    name: str
    tenant: str
    roles: list[str]
    enabled: bool
    created_at: str


class UserPage(msgspec.Struct, rename="camel"):
    """Users by name."""

    users: list[UserAnswer]
    next: str | None


class UserDeleted(msgspec.Struct, rename="camel"):
    """The name of a user who is gone."""

    deleted: str


class MadeTokenAnswer(msgspec.Struct, rename="camel"):
    """A new token: the one time that its text is shown."""

    id: str
    token: str
    label: str
    expires_at: str | None


class TokenAnswer(msgspec.Struct, rename="camel"):
    """A token without its text."""

    id: str
    kind: str
    label: str
    created_at: str
    expires_at: str | None
    ended_at: str | None
    last_used_at: str | None


class TokenPage(msgspec.Struct, rename="camel"):
    """Tokens by id."""

    tokens: list[TokenAnswer]
    next: str | None


class TokenRevokedAnswer(msgspec.Struct, rename="camel"):
    """The id of a token that ended."""

    revoked: str


_new_user = msgspec.json.Decoder(NewUser)
_user_change = msgspec.json.Decoder(UserChange)
_new_token = msgspec.json.Decoder(NewToken)


async def me(call: Call) -> Response:
    """Who the caller is, where they act, and until when."""
    mine = call.principal
    return json_answer(
        MeAnswer(
            tenant=mine.tenant,
            user=mine.user,
            roles=role_names(mine.roles),
            expires_at=moment(mine.expires_us),
            instance_admin=mine.is_instance_admin,
        )
    )


async def list_users(call: Call) -> Response:
    """The users of the tenant, by name, a page at a time."""
    page, people = list_page(call), call.running.catalog.people
    found = await call.running.threads.catalog(people.list_users, call.tenant, page)
    return json_answer(UserPage([_user(user) for user in found.rows], found.next))


async def create_user(call: Call) -> Response:
    """A new user of the tenant, durable on return; without a token nobody gets in as them."""
    body = await call.json(_new_user)
    people = call.running.catalog.people
    deed = partial(people.add_user, call.actor(), call.tenant, body.name, _roles(body.roles))
    return await make_once(call, Making(deed, _user))


async def show_user(call: Call) -> Response:
    """One user."""
    people = call.running.catalog.people
    return json_answer(
        _user(await call.running.threads.catalog(people.get_user, call.tenant, call.params["user"]))
    )


async def change_user(call: Call) -> Response:
    """Other roles, or kept out, or let in again; holds for every token of the user at once."""
    body = await call.json(_user_change)
    if body.roles is UNSET and body.enabled is UNSET:
        raise RequestInvalid(reason="Nothing is to be changed.", hint="Give roles, or enabled, or both.")
    running = call.running
    change = partial(
        running.catalog.people.change_user,
        call.actor(),
        call.tenant,
        call.params["user"],
        roles=None if body.roles is UNSET else _roles(body.roles),
        enabled=None if body.enabled is UNSET else body.enabled,
    )
    user = await running.threads.catalog(change)
    await running.identities.refresh()
    return json_answer(_user(user))


async def delete_user(call: Call) -> Response:
    """A user goes, and every token of theirs ends."""
    running, name = call.running, call.params["user"]
    await running.threads.catalog(running.catalog.people.remove_user, call.actor(), call.tenant, name)
    await running.identities.refresh()
    return json_answer(UserDeleted(name))


async def list_tokens(call: Call) -> Response:
    """The tokens of a user, those that ended too; none with its text."""
    page, tokens = list_page(call), call.running.catalog.tokens
    found = await call.running.threads.catalog(tokens.list, call.tenant, call.params["user"], page)
    return json_answer(TokenPage([_token(token) for token in found.rows], found.next))


async def create_token(call: Call) -> Response:
    """A new token of a user; its text is answered once and kept nowhere."""
    body = await call.json(_new_token)
    running = call.running
    days = running.settings.auth.token_days_default
    seconds = body.lifetime_seconds
    if isinstance(seconds, UnsetType):
        seconds = days * DAY_SECONDS if days else None

    actor, tenant, user = call.actor(), call.tenant, call.params["user"]

    # A token that is new is nowhere known yet, so that nothing has to be forgotten for it.
    def deed(once: Once | None) -> MadeToken:
        return running.catalog.tokens.make(
            actor, tenant, user, label=body.label, lifetime_seconds=seconds, once=once
        )

    def shape(made: MadeToken) -> MadeTokenAnswer:
        return MadeTokenAnswer(made.id, made.text, body.label, moment(made.expires_us))

    return await make_once(call, Making(deed, shape, is_secret=True))


async def revoke_token(call: Call) -> Response:
    """A token ends now, in calls that run, too."""
    running, params = call.running, call.params
    revoke = running.catalog.tokens.revoke
    await running.threads.catalog(revoke, call.actor(), call.tenant, params["user"], params["token"])
    await running.identities.refresh()
    return json_answer(TokenRevokedAnswer(params["token"]))


def role_names(roles: frozenset[Role]) -> list[str]:
    """Return the names of roles in the order in which they are defined."""
    return [str(role) for role in Role if role in roles]


def _roles(names: list[str]) -> frozenset[Role]:
    return frozenset(parse_role(name) for name in names)


def _user(user: User) -> UserAnswer:
    return UserAnswer(
        name=user.name,
        tenant=user.tenant,
        roles=role_names(user.roles),
        enabled=user.enabled,
        created_at=format_time(user.created_us),
    )


def _token(token: Token) -> TokenAnswer:
    return TokenAnswer(
        id=token.id,
        kind=token.kind,
        label=token.label,
        created_at=format_time(token.created_us),
        expires_at=moment(token.expires_us),
        ended_at=moment(token.ended_us),
        last_used_at=moment(token.last_used_us),
    )
