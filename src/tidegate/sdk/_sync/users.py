"""People: tenants, users and their tokens.

Made from _async/users.py by scripts/generate_sdk.py: change that one, and run it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from tidegate.sdk._sync.operations import listed
from tidegate.sdk._sync.transport import Transport
from tidegate.sdk.requests import create, delete, get, patch, post, quoted
from tidegate.sdk.types import Tenant, TokenMade, TokenShown, User

Lifetime = float | Literal["default"] | None
Tokens = list[TokenShown]


class TenantsClient:
    """All tenants, for administrators of the instance."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> list[Tenant]:
        """List tenants."""
        return listed(self._transport, "/tenants", "tenants")

    def create(self, name: str) -> Tenant:
        """Make a tenant."""
        made: Tenant = self._transport.call(create("/tenants", {"name": name}))
        return made

    def enable(self, name: str) -> Tenant:
        """Let the tenant's users in again."""
        changed: Tenant = self._transport.call(post(f"/tenants/{quoted(name)}/enable", {}))
        return changed

    def disable(self, name: str) -> Tenant:
        """Keep the tenant's users out; nothing of theirs is removed."""
        changed: Tenant = self._transport.call(post(f"/tenants/{quoted(name)}/disable", {}))
        return changed


class UsersClient:
    """The users of a tenant and their tokens, for its administrators."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> list[User]:
        """List users."""
        return listed(self._transport, "/users", "users")

    def add(self, name: str, roles: Sequence[str] | None = None) -> User:
        """Add a user, a writer unless roles are named (`reader`, `writer`, `admin` or their full names)."""
        body: dict[str, Any] = {"name": name}
        if roles is not None:
            body["roles"] = [*roles]
        added: User = self._transport.call(create("/users", body))
        return added

    def show(self, name: str) -> User:
        """Describe a user."""
        shown: User = self._transport.call(get(f"/users/{quoted(name)}"))
        return shown

    def change(self, name: str, *, roles: Sequence[str] | None = None, enabled: bool | None = None) -> User:
        """Return a user other roles, or keep one out and let them in again."""
        body: dict[str, Any] = {}
        if roles is not None:
            body["roles"] = [*roles]
        if enabled is not None:
            body["enabled"] = enabled
        changed: User = self._transport.call(patch(f"/users/{quoted(name)}", body))
        return changed

    def remove(self, name: str) -> None:
        """Remove a user; their tokens end at once."""
        self._transport.call(delete(f"/users/{quoted(name)}"))

    def make_token(self, name: str, *, label: str = "", lifetime_seconds: Lifetime = "default") -> TokenMade:
        """Make a token; its text is in this answer and nowhere else. `None`: it never ends by itself.

        Never sent twice: where the answer is lost, `tokens` shows whether one was made.
        """
        body: dict[str, Any] = {"label": label} if label else {}
        if lifetime_seconds != "default":
            body["lifetimeSeconds"] = lifetime_seconds
        made: TokenMade = self._transport.call(post(f"/users/{quoted(name)}/tokens", body))
        return made

    def tokens(self, name: str) -> Tokens:
        """List a user's tokens, without their secrets."""
        return listed(self._transport, f"/users/{quoted(name)}/tokens", "tokens")

    def revoke(self, name: str, token_id: str) -> None:
        """End a token at once."""
        self._transport.call(delete(f"/users/{quoted(name)}/tokens/{quoted(token_id)}"))
