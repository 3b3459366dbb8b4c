"""A topic on a real server, and a wire that breaks: what the tests of the pipeline share."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tidegate.pipeline.topic.client import ServerClient, ServerLocation
from tidegate.testing.server import RunningServer


@dataclass(frozen=True)
class TopicClient:
    """Makes and fills topics on a server under test."""

    server: RunningServer

    @property
    def wire(self) -> ServerClient:
        return ServerClient(ServerLocation(self.server.url, self.server.token), retry_seconds=5)

    def create(self, topic: str, partitions: int = 1) -> None:
        self.wire.post_json("topics", {"name": topic, "partitions": partitions})

    def publish(self, topic: str, numbers: Sequence[int], partition: int | None = None) -> None:
        where = {} if partition is None else {"partition": partition}
        for start in range(0, len(numbers), 10_000):
            messages = [
                {"key": f"k{n}", "payload": {"n": n}, **where} for n in numbers[start : start + 10_000]
            ]
            self.wire.post_json(f"topics/{topic}/publish", {"messages": messages})

    def delete(self, topic: str) -> None:
        self._call("DELETE", f"topics/{topic}")

    def clear(self, topic: str) -> None:
        self.wire.post_json(f"topics/{topic}/clear", {})

    def widen(self, topic: str, partitions: int) -> None:
        self._call("PATCH", f"topics/{topic}", {"partitions": partitions})

    def payloads(self, topic: str) -> list[Any]:
        """Return everything that a topic holds, by partition and offset."""
        body = {"from": "earliest", "limit": 50_000}
        return [
            message["payload"] for message in self.wire.post_json(f"topics/{topic}/consume", body)["messages"]
        ]

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> None:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.server.url}/api/v1/{path}", content, method=method)
        request.add_header("Authorization", f"Bearer {self.server.token}")
        request.add_header("Content-Type", "application/json")
        urllib.request.urlopen(request).close()

    def sql(self, statement: str) -> list[list[Any]]:
        rows = self.wire.post_json("sql", {"sql": statement})["rows"]
        return list(rows)


@contextlib.contextmanager
def cut_wire(url: str, cuts_after_bytes: Sequence[int]) -> Iterator[str]:
    """Return an address of the server at which the first answers break off, each after so many bytes."""
    target = urlsplit(url)
    listener = socket.create_server(("127.0.0.1", 0))
    left = list(cuts_after_bytes)

    def carry(inward: socket.socket) -> None:
        limit = left.pop(0) if left else None
        with inward, socket.create_connection((target.hostname or "", target.port or 0)) as outward:
            outward.sendall(_request(inward))
            carried = 0
            while chunk := outward.recv(65_536):
                if limit is not None and carried + len(chunk) > limit:
                    inward.sendall(chunk[: limit - carried])
                    return
                inward.sendall(chunk)
                carried += len(chunk)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                inward, _ = listener.accept()
                threading.Thread(target=carry, args=(inward,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def _request(inward: socket.socket) -> bytes:
    """Read one request: `http.client` sends its head and its body, and nothing after that."""
    taken = b""
    while b"\r\n\r\n" not in taken:
        taken += inward.recv(65_536)
    head, _, body = taken.partition(b"\r\n\r\n")
    lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    wanted = int(lengths[0].split(b":")[1])
    while len(body) < wanted:
        body += inward.recv(65_536)
    closing = head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
    return closing + b"\r\n\r\n" + body
