"""A peer for tables: SQLite (WAL, synchronous=FULL) behind the same route, HTTP server and JSON library.

One connection, as SQLite takes one writer at a time; a statement is one transaction and runs in a thread.
Run as `python -m benchmarks.sqlite_server FOLDER PORT`.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import uvicorn


class Body(msgspec.Struct):
    """Body of POST sql."""

    sql: str
    params: list[Any] = []


class App:
    """The ASGI application."""

    def __init__(self, folder: Path) -> None:
        self._threads = ThreadPoolExecutor(1)
        self._decode = msgspec.json.Decoder(Body).decode
        self._encode = msgspec.json.Encoder().encode
        self._database = sqlite3.connect(
            folder / "peer.db", check_same_thread=False, isolation_level=None, cached_statements=1000
        )
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        parts, more = [], True
        while more:
            message = await receive()
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        body = self._decode(b"".join(parts))
        loop = asyncio.get_running_loop()
        content = self._encode(await loop.run_in_executor(self._threads, self._run, body))
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def _run(self, body: Body) -> dict[str, Any]:
        many = bool(body.params) and isinstance(body.params[0], list)
        if many:
            self._database.execute("BEGIN")
            cursor = self._database.executemany(body.sql, body.params)
            self._database.execute("COMMIT")
        else:
            cursor = self._database.execute(body.sql, body.params)
        names = [column[0] for column in cursor.description or ()]
        rows = cursor.fetchall() if names else []
        return {"columns": names, "rows": rows, "rowCount": len(rows) or cursor.rowcount}


if __name__ == "__main__":
    app = App(Path(sys.argv[1]))
    uvicorn.run(
        app, host="127.0.0.1", port=int(sys.argv[2]), log_level="error", loop="uvloop", http="httptools"
    )
