"""Accounts: tenants, users and their tokens.

Made from _async/users.py by scripts/generate_sdk.py: change that one, and run it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tidegate.sdk._sync.operations import list_all
from tidegate.sdk._sync.transport import Transport
from tidegate.sdk.requests import create, delete, get, patch, post, quoted
from tidegate.sdk.types import (
    NewTokenDict,
    TenantDict,
    TenantQuotaDict,
    TokenDict,
    UserDeleteDict,
    UserDict,
    UserQuotaDict,
)

# Rows are removed before the answer; millions take minutes.
ERASE_SECONDS_MAX = 3_600.0
Lifetime = float | Literal["default"] | None
Tokens = list[TokenDict]


class TenantsClient:
    """All tenants, for administrators of the instance."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> list[TenantDict]:
        """List tenants."""
        return list_all(self._transport, "/tenants", "tenants")

    def create(self, name: str) -> TenantDict:
        """Create a tenant."""
        made: TenantDict = self._transport.call(create("/tenants", {"name": name}))
        return made

    def enable(self, name: str) -> TenantDict:
        """Admit the tenant's users again."""
        changed: TenantDict = self._transport.call(post(f"/tenants/{quoted(name)}/enable", {}))
        return changed

    def disable(self, name: str) -> TenantDict:
        """Refuse the tenant's users; none of their data is removed."""
        changed: TenantDict = self._transport.call(post(f"/tenants/{quoted(name)}/disable", {}))
        return changed

    def quota(self, name: str) -> TenantQuotaDict:
        """Return the quotas of a tenant, and what is used of them."""
        quota: TenantQuotaDict = self._transport.call(get(f"/tenants/{quoted(name)}/quota"))
        return quota

    def change_quota(self, name: str, limits: Mapping[str, int | None]) -> TenantQuotaDict:
        """Set limits by their names in `quota`: 0 is no limit, None the limit of the settings."""
        quota: TenantQuotaDict = self._transport.call(patch(f"/tenants/{quoted(name)}/quota", {**limits}))
        return quota


class UsersClient:
    """The users of a tenant and their tokens, for its administrators."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> list[UserDict]:
        """List users."""
        return list_all(self._transport, "/users", "users")

    def add(self, name: str, roles: Sequence[str] | None = None, *, take_rows: bool = False) -> UserDict:
        """Add a user, a writer unless roles are named (`reader`, `writer`, `admin` or their full names).

        A name that has rows from before is UserHasRows, unless the user is to take them.
        """
        body: dict[str, Any] = {"name": name}
        if roles is not None:
            body["roles"] = [*roles]
        if take_rows:
            body["takeRows"] = True
        added: UserDict = self._transport.call(create("/users", body))
        return added

    def show(self, name: str) -> UserDict:
        """Describe a user."""
        shown: UserDict = self._transport.call(get(f"/users/{quoted(name)}"))
        return shown

    def change(
        self, name: str, *, roles: Sequence[str] | None = None, enabled: bool | None = None
    ) -> UserDict:
        """Change a user's roles, or disable or enable the user."""
        body: dict[str, Any] = {}
        if roles is not None:
            body["roles"] = [*roles]
        if enabled is not None:
            body["enabled"] = enabled
        changed: UserDict = self._transport.call(patch(f"/users/{quoted(name)}", body))
        return changed

    def quota(self, name: str) -> UserQuotaDict:
        """Return the quotas of a user, and what is used of them."""
        quota: UserQuotaDict = self._transport.call(get(f"/users/{quoted(name)}/quota"))
        return quota

    def change_quota(self, name: str, limits: Mapping[str, int | None]) -> UserQuotaDict:
        """Set limits by their names in `quota`: 0 is no limit, None the limit of the settings."""
        quota: UserQuotaDict = self._transport.call(patch(f"/users/{quoted(name)}/quota", {**limits}))
        return quota

    def remove(self, name: str, *, with_rows: bool = False) -> UserDeleteDict:
        """Remove a user; their tokens end at once. Their rows in USER and STREAM tables go only if told.

        With rows, the call may be repeated: it removes what is left, also of a user who is gone.
        """
        path = f"/users/{quoted(name)}"
        request = delete(path)
        if with_rows:
            request = delete(f"{path}?withRows=true", wait_seconds=ERASE_SECONDS_MAX)
        removed: UserDeleteDict = self._transport.call(request)
        return removed

    def make_token(
        self, name: str, *, label: str = "", lifetime_seconds: Lifetime = "default"
    ) -> NewTokenDict:
        """Create a token; its text is in this answer and nowhere else. `None`: it does not expire.

        The request is never sent twice: where the answer is lost, `tokens` shows whether one was created.
        """
        body: dict[str, Any] = {"label": label} if label else {}
        if lifetime_seconds != "default":
            body["lifetimeSeconds"] = lifetime_seconds
        made: NewTokenDict = self._transport.call(post(f"/users/{quoted(name)}/tokens", body))
        return made

    def tokens(self, name: str) -> Tokens:
        """List a user's tokens, without their secrets."""
        return list_all(self._transport, f"/users/{quoted(name)}/tokens", "tokens")

    def revoke(self, name: str, token_id: str) -> None:
        """Revoke a token at once."""
        self._transport.call(delete(f"/users/{quoted(name)}/tokens/{quoted(token_id)}"))
