"""Tenants, users, tokens and links on the wire."""

from __future__ import annotations

import msgspec

from tidegate.model.wire.struct import WireStruct


class MeResponse(WireStruct):
    """The user whom the token belongs to, in the tenant where they act."""

    tenant: str
    user: str
    roles: list[str]
    expires_at: str | None
    instance_admin: bool


class TenantResponse(WireStruct):
    """A tenant."""

    name: str
    enabled: bool
    created_at: str


class TenantPage(WireStruct):
    """Tenants by name, one page."""

    tenants: list[TenantResponse]
    next: str | None


class QuotaUse(WireStruct):
    """A quota: its limit, 0 for none, and what is used of it; null for what was not measured."""

    limit: int
    used: int | None


class TenantQuotaResponse(WireStruct):
    """The quotas of a tenant; `own` names those that were set for it, the others are from the settings."""

    tenant: str
    requests_per_second: QuotaUse
    published_bytes_per_second: QuotaUse
    topics: QuotaUse
    groups: QuotaUse
    tables: QuotaUse
    disk_bytes: QuotaUse
    own: list[str]


class UserQuotaResponse(WireStruct):
    """The quotas of a user, as those of a tenant."""

    tenant: str
    user: str
    requests_per_second: QuotaUse
    published_bytes_per_second: QuotaUse
    own: list[str]


class QuotaResponse(WireStruct):
    """The quotas of the caller and of the tenant where they act."""

    tenant: TenantQuotaResponse
    user: UserQuotaResponse


class UserResponse(WireStruct):
    """A user of a tenant."""

    name: str
    tenant: str
    roles: list[str]
    enabled: bool
    created_at: str


class UserDeleteResponse(WireStruct):
    """The name of the user who was deleted, and what was removed with them.

    `userRemoved` is false where there was no such user any more. `rows` are rows of USER tables, `logs` are
    files of STREAM tables.
    """

    deleted: str
    user_removed: bool
    rows: int = 0
    logs: int = 0
    tables: list[str] = msgspec.field(default_factory=list)


class UserPage(WireStruct):
    """Users by name, one page."""

    users: list[UserResponse]
    next: str | None


class NewTokenResponse(WireStruct):
    """A new token; its text is shown this once."""

    id: str
    token: str
    label: str
    expires_at: str | None


class TokenResponse(WireStruct):
    """A token without its secret."""

    id: str
    kind: str
    label: str
    created_at: str
    expires_at: str | None
    ended_at: str | None
    last_used_at: str | None


class TokenPage(WireStruct):
    """Tokens by id, one page."""

    tokens: list[TokenResponse]
    next: str | None


class RevokeResponse(WireStruct):
    """The id of the token that was revoked."""

    revoked: str


class LinkResponse(WireStruct):
    """A link that signs in a browser, once."""

    url: str
    expires_at: str
