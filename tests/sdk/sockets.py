"""Live sockets that misbehave: one that says what it is told to, and a way to a real one that can be cut."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

COLUMNS = [{"name": "id", "type": "BIGINT"}, {"name": "text", "type": "TEXT"}]
SCHEMA = {"type": "schema", "id": "s", "columns": COLUMNS}
LAGGED = {"type": "lagged", "id": "s"}


def page(*rows: list[Any], seq: int, last: bool = True) -> dict[str, Any]:
    return {"type": "snapshot", "id": "s", "rows": list(rows), "last": last, "seq": seq}


def change(op: str, row: list[Any], seq: int, old: list[Any] | None = None) -> dict[str, Any]:
    told = {"type": "change", "id": "s", "op": op, "row": row, "seq": seq}
    return told if old is None else {**told, "old": old}


def error(code: str, **details: Any) -> dict[str, Any]:
    return {"type": "error", "id": "s", "error": {"code": code, "hint": "", "details": details}}


@dataclass(frozen=True)
class Refuse:
    """Answer the handshake with this instead."""

    status: int
    body: dict[str, Any]


# What one connection says; then it is cut (`None` at the end) or left open.
Script = list[dict[str, Any] | None] | Refuse


@dataclass
class Scripted:
    """Follows its scripts, one a connection; a refusal at the end is for all that come."""

    url: str
    scripts: list[Script]
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)


@contextlib.contextmanager
def scripted(*scripts: Script, context: ssl.SSLContext | None = None) -> Iterator[Scripted]:
    """Serve the scripts on a free port."""
    told = Scripted("", list(scripts))

    def greet(connection: ServerConnection, request: Request) -> Response | None:
        told.headers.append({name.lower(): value for name, value in request.headers.raw_items()})
        script = told.scripts[0]
        if isinstance(script, Refuse):
            del told.scripts[: 1 if len(told.scripts) > 1 else 0]
            return connection.respond(HTTPStatus(script.status), json.dumps(script.body))
        return None

    def speak(connection: ServerConnection) -> None:
        script = told.scripts.pop(0)
        assert isinstance(script, list)
        told.asked.append(json.loads(connection.recv()))
        for message in script:
            if message is None:
                connection.socket.close()
                return
            connection.send(json.dumps(message))
        with contextlib.suppress(ConnectionClosed):
            connection.recv()
        told.gone.set()

    with serve(speak, "127.0.0.1", 0, process_request=greet, ssl=context) as server:
        scheme = "https" if context else "http"
        told.url = f"{scheme}://127.0.0.1:{server.socket.getsockname()[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield told
        finally:
            server.shutdown()
            thread.join()


class Passage:
    """A way to a server that can be cut, as a cable can."""

    def __init__(self, upstream: str) -> None:
        place = urlsplit(upstream)
        self._upstream = str(place.hostname), int(place.port or 0)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._pairs: list[socket.socket] = []
        self.count = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break all connections; new ones are let through."""
        pairs, self._pairs = self._pairs, []
        for one in pairs:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(self._upstream)
                self.count += 1
                self._pairs += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    @staticmethod
    def _carry(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(65_536):
                target.sendall(content)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
