"""People: tenants, users and their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from tidegate.sdk._async.operations import listed
from tidegate.sdk._async.transport import Transport
from tidegate.sdk.requests import create, delete, get, patch, post, quoted
from tidegate.sdk.types import Tenant, TokenMade, TokenShown, User

Lifetime = float | Literal["default"] | None
Tokens = list[TokenShown]


class TenantsClient:
    """All tenants, for administrators of the instance."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self) -> list[Tenant]:
        """List tenants."""
        return await listed(self._transport, "/tenants", "tenants")

    async def create(self, name: str) -> Tenant:
        """Make a tenant."""
        made: Tenant = await self._transport.call(create("/tenants", {"name": name}))
        return made

    async def enable(self, name: str) -> Tenant:
        """Let the tenant's users in again."""
        changed: Tenant = await self._transport.call(post(f"/tenants/{quoted(name)}/enable", {}))
        return changed

    async def disable(self, name: str) -> Tenant:
        """Keep the tenant's users out; nothing of theirs is removed."""
        changed: Tenant = await self._transport.call(post(f"/tenants/{quoted(name)}/disable", {}))
        return changed


class UsersClient:
    """The users of a tenant and their tokens, for its administrators."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self) -> list[User]:
        """List users."""
        return await listed(self._transport, "/users", "users")

    async def add(self, name: str, roles: Sequence[str] | None = None) -> User:
        """Add a user, a writer unless roles are named (`reader`, `writer`, `admin` or their full names)."""
        body: dict[str, Any] = {"name": name}
        if roles is not None:
            body["roles"] = [*roles]
        added: User = await self._transport.call(create("/users", body))
        return added

    async def show(self, name: str) -> User:
        """Describe a user."""
        shown: User = await self._transport.call(get(f"/users/{quoted(name)}"))
        return shown

    async def change(
        self, name: str, *, roles: Sequence[str] | None = None, enabled: bool | None = None
    ) -> User:
        """Return a user other roles, or keep one out and let them in again."""
        body: dict[str, Any] = {}
        if roles is not None:
            body["roles"] = [*roles]
        if enabled is not None:
            body["enabled"] = enabled
        changed: User = await self._transport.call(patch(f"/users/{quoted(name)}", body))
        return changed

    async def remove(self, name: str) -> None:
        """Remove a user; their tokens end at once."""
        await self._transport.call(delete(f"/users/{quoted(name)}"))

    async def make_token(
        self, name: str, *, label: str = "", lifetime_seconds: Lifetime = "default"
    ) -> TokenMade:
        """Make a token; its text is in this answer and nowhere else. `None`: it never ends by itself.

        Never sent twice: where the answer is lost, `tokens` shows whether one was made.
        """
        body: dict[str, Any] = {"label": label} if label else {}
        if lifetime_seconds != "default":
            body["lifetimeSeconds"] = lifetime_seconds
        made: TokenMade = await self._transport.call(post(f"/users/{quoted(name)}/tokens", body))
        return made

    async def tokens(self, name: str) -> Tokens:
        """List a user's tokens, without their secrets."""
        return await listed(self._transport, f"/users/{quoted(name)}/tokens", "tokens")

    async def revoke(self, name: str, token_id: str) -> None:
        """End a token at once."""
        await self._transport.call(delete(f"/users/{quoted(name)}/tokens/{quoted(token_id)}"))
