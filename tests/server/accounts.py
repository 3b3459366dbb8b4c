"""The office of a server under test: makes tenants, users and tokens over HTTP, and keeps every secret."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from tidegate.catalog.database import Catalog
from tidegate.catalog.database_url import DatabaseAddress
from tidegate.model.clock import SystemClock
from tidegate.testing.server import RunningServer

WAIT_SECONDS = 60.0
_numbers = itertools.count()


@dataclass(frozen=True)
class Person:
    """A user with a token."""

    tenant: str
    name: str
    token_id: str
    token: str
    http: httpx.Client


class Office:
    """Does what an administrator of the instance does."""

    def __init__(self, server: RunningServer, verify: ssl.SSLContext | bool = True) -> None:
        self.server = server
        self._verify = verify
        self.secrets = [server.token]
        self._clients: list[httpx.Client] = []
        self.admin = self.client(server.token)

    def client(self, token: str | None = None, **headers: str) -> httpx.Client:
        """Return someone's own connection; without a token nobody's."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        made = httpx.Client(
            base_url=self.server.url, headers=sent, verify=self._verify, trust_env=False, timeout=60
        )
        self._clients.append(made)
        return made

    def tenant(self) -> str:
        """Make a tenant."""
        name = f"tenant-{next(_numbers)}"
        self.ask("POST", "/api/v1/tenants", json={"name": name})
        return name

    def person(self, *roles: str, tenant: str = "default", lifetime_seconds: float | None = None) -> Person:
        """Make a user with a token."""
        name = f"user-{next(_numbers)}"
        where = {"X-Tenant": tenant}
        self.ask("POST", "/api/v1/users", json={"name": name, "roles": list(roles)}, headers=where)
        return self.token_of(tenant, name, lifetime_seconds)

    def token_of(self, tenant: str, name: str, lifetime_seconds: float | None = None) -> Person:
        """Make another token of a user."""
        body = {"label": "test", "lifetimeSeconds": lifetime_seconds}
        made = self.ask("POST", f"/api/v1/users/{name}/tokens", json=body, headers={"X-Tenant": tenant})
        self.secrets.append(made["token"])
        return Person(tenant, name, made["id"], made["token"], self.client(made["token"]))

    def revoke(self, person: Person) -> None:
        """End someone's token."""
        path = f"/api/v1/users/{person.name}/tokens/{person.token_id}"
        self.ask("DELETE", path, headers={"X-Tenant": person.tenant})

    def disable(self, person: Person) -> None:
        """Keep someone out."""
        where = {"X-Tenant": person.tenant}
        self.ask("PATCH", f"/api/v1/users/{person.name}", json={"enabled": False}, headers=where)

    def ask(self, method: str, path: str, **more: Any) -> Any:
        """Ask as the administrator, and take no refusal."""
        answer = self.admin.request(method, path, **more)
        assert answer.status_code < 300, answer.text
        return answer.json()

    @contextlib.contextmanager
    def catalog(self) -> Iterator[Catalog]:
        """Open the server's catalog beside the server, for what no endpoint makes."""
        place = DatabaseAddress(
            url=f"sqlite:///{self.server.home / 'catalog' / 'catalog.db'}",
            connections_max=2,
            timeout_seconds=30.0,
        )
        catalog = Catalog.open(place, SystemClock(), random_bytes=secrets.token_bytes)
        try:
            yield catalog
        finally:
            catalog.close()

    def close(self) -> None:
        """Let go of every connection."""
        for client in self._clients:
            client.close()


def refusal(answer: httpx.Response) -> tuple[int, str]:
    """Return the status and the code of a refusal."""
    return answer.status_code, answer.json()["error"]["code"]


def wait_for_refusal(person: Person) -> httpx.Response:
    """Ask who I am until the answer is no longer yes."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        answer = person.http.get("/api/v1/me")
        if answer.status_code != 200:
            return answer
        time.sleep(0.1)
    raise AssertionError(f"{person.name} is still let in")
