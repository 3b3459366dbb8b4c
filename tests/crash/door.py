"""The door for writers in a crash loop: each statement or request sent once, and its outcome told apart."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.crash.cluster import START_SECONDS, Cluster
from tidegate.storage.home.home import Home

# Long: a statement that we no longer wait for might still be done, after we looked.
ANSWER_SECONDS = 120.0
PAUSE_SECONDS = 0.05
SERVER_FAULTS = 500
TOO_MANY = 429


class UnsureError(Exception):
    """Nobody knows whether the statement was done: the connection broke, or the server says it is leaving."""


class RefusedError(Exception):
    """The server did not do the statement, and says why."""

    def __init__(self, code: str, message: str, details: Mapping[str, Any]) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.details = details


class Door:
    """POSTs with one user's token, wherever the server is now; never sends anything twice."""

    def __init__(self, home: Path, token: str) -> None:
        self._home = Home(home)
        self._client = httpx.Client(timeout=ANSWER_SECONDS, headers={"Authorization": f"Bearer {token}"})

    def ask(self, sql: str, params: Sequence[object] = ()) -> dict[str, Any]:
        """Run a statement; UnsureError or RefusedError where it has no answer."""
        return self.post("sql", {"sql": sql, "params": [*params]})

    def read(self, sql: str, params: Sequence[object] = ()) -> dict[str, Any]:
        """Run a SELECT until it is answered."""
        return self.repeat("sql", {"sql": sql, "params": [*params]})

    def post(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Send a request; UnsureError or RefusedError where it has no answer."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            address = self._home.server_address()
            try:
                if address is not None:
                    return self._post(f"{address.url}/api/v1/{path}", body)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                pass  # it was never sent
            except httpx.TransportError as problem:
                raise UnsureError(repr(problem)) from problem
            if time.monotonic() > deadline:
                raise AssertionError(f"no server to connect to for {START_SECONDS:g} s")
            time.sleep(PAUSE_SECONDS)

    def repeat(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Send a request that may be done twice until it is answered."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return self.post(path, body)
            except UnsureError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE_SECONDS)

    def close(self) -> None:
        """Leave."""
        self._client.close()

    def _post(self, url: str, body: Mapping[str, object]) -> dict[str, Any]:
        reply = self._client.post(url, json=body)
        if reply.status_code >= SERVER_FAULTS or reply.status_code == TOO_MANY:
            raise UnsureError(f"{reply.status_code} {reply.text[:200]}")
        answer: dict[str, Any] = reply.json()
        if reply.is_error:
            error = answer["error"]
            raise RefusedError(error["code"], error["message"], error.get("details") or {})
        return answer


def doors_of(cluster: Cluster, users: Sequence[str]) -> dict[str, Door]:
    """Make users, and give each a door with a token of its own."""
    doors: dict[str, Door] = {}
    with cluster.client() as client:
        for user in users:
            client.users.add(user, ["reader", "writer"])
            doors[user] = Door(cluster.home, client.users.make_token(user)["token"])
    return doors


class Crew:
    """Threads that work until they are told to stop; what goes wrong in one is told at the end."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._crashed: list[BaseException] = []

    def start(self, body: Callable[..., None], *arguments: object) -> None:
        """Start one more."""
        thread = threading.Thread(target=self._guard, args=(body, arguments), daemon=True)
        self._threads.append(thread)
        thread.start()

    def finish(self) -> None:
        """Let each end what it is at."""
        self.stopping.set()
        for thread in self._threads:
            thread.join(START_SECONDS)
        if self._crashed:
            raise self._crashed[0]
        assert not any(thread.is_alive() for thread in self._threads), "a statement was never answered"

    def _guard(self, body: Callable[..., None], arguments: tuple[object, ...]) -> None:
        try:
            body(*arguments)
        except BaseException as problem:  # noqa: BLE001 - told by finish()
            self._crashed.append(problem)
            self.stopping.set()
