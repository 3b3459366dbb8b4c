"""A peer for tables: our server, whose POST sql is run by SQLite (WAL, synchronous=FULL) in place of ours.

Door, token, limits, HTTP server and JSON library are the same; what differs is who keeps the rows. One
connection, as SQLite takes one writer at a time; a statement is one transaction and runs in a thread.
Run as `python -m benchmarks.tables.sqlite_server HOME PORT`.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from starlette.responses import Response

from tidegate.cli.main import run as run_command
from tidegate.server import routes
from tidegate.server.api.sql import SqlBody
from tidegate.server.http.request import HttpRequest
from tidegate.server.http.responses import JSON, ready_answer

_decoder = msgspec.json.Decoder(SqlBody)
_encode = msgspec.json.Encoder().encode


class Peer:
    """SQLite behind the route."""

    def __init__(self, file: Path) -> None:
        self._threads = ThreadPoolExecutor(1)
        self._database = sqlite3.connect(
            file, check_same_thread=False, isolation_level=None, cached_statements=1000
        )
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")

    async def run_sql(self, call: HttpRequest) -> Response:
        """Answer POST sql."""
        body = await call.json(_decoder)
        loop = asyncio.get_running_loop()
        return ready_answer(_encode(await loop.run_in_executor(self._threads, self._run, body)), JSON)

    def _run(self, body: SqlBody) -> dict[str, Any]:
        if body.params and isinstance(body.params[0], list):
            self._database.execute("BEGIN")
            cursor = self._database.executemany(body.sql, body.params)
            self._database.execute("COMMIT")
        else:
            cursor = self._database.execute(body.sql, body.params)
        names = [column[0] for column in cursor.description or ()]
        rows = cursor.fetchall() if names else []
        return {"columns": names, "rows": rows, "rowCount": len(rows) or cursor.rowcount}


def main() -> None:
    """Serve until a signal comes."""
    home, port = Path(sys.argv[1]), sys.argv[2]
    peer = Peer(home.with_suffix(".db"))
    for index, route in enumerate(routes.ROUTES):
        if route.path == f"{routes.API}/sql":
            routes.ROUTES[index] = replace(route, function=peer.run_sql)
    sys.argv = ["tidegate", "serve", "--home", str(home), "--port", port]
    run_command()


if __name__ == "__main__":
    main()
