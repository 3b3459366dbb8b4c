"""Someone who sends statements to a real server."""

from __future__ import annotations

from typing import Any

import httpx

from tidegate.testing.server import RunningServer


class Client:
    """Someone who sends statements."""

    def __init__(self, server: RunningServer, token: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {token or server.token}"}
        self.http = httpx.Client(
            base_url=f"{server.url}/api/v1", headers=headers, trust_env=False, timeout=60
        )

    def send(
        self, sql: str, params: list[Any] | None = None, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        body: dict[str, Any] = {"sql": sql} if params is None else {"sql": sql, "params": params}
        return self.http.post("/sql", json=body, headers=headers)

    def run(self, sql: str, params: list[Any] | None = None) -> dict[str, Any]:
        answer = self.send(sql, params)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def rows(self, sql: str, params: list[Any] | None = None) -> list[list[Any]]:
        found: list[list[Any]] = self.run(sql, params)["rows"]
        return found

    def refused(self, sql: str, params: list[Any] | None = None) -> dict[str, Any]:
        answer = self.send(sql, params)
        assert answer.status_code >= 400, answer.text
        error: dict[str, Any] = answer.json()["error"]
        return error


def person(server: RunningServer, admin: Client, name: str, *roles: str) -> Client:
    answer = admin.http.post("/users", json={"name": name, "roles": list(roles)})
    assert answer.status_code == 201, answer.text
    made = admin.http.post(f"/users/{name}/tokens", json={})
    return Client(server, made.json()["token"])
