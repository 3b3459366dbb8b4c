"""The client: a running server as Python objects."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tidegate.errors import TidegateError
from tidegate.sdk.asynchronous.answer import Answer, arrow_rows
from tidegate.sdk.asynchronous.operating import Audit, Backups, Jobs, Pipelines
from tidegate.sdk.asynchronous.people import Tenants, Users
from tidegate.sdk.asynchronous.topics import Topic, Topics
from tidegate.sdk.asynchronous.transport import Transport
from tidegate.sdk.requests import API, Request, encoded, get, post
from tidegate.sdk.retries import RETRY_SECONDS_DEFAULT, Retrying
from tidegate.sdk.shapes import Link, Me
from tidegate.storage.address import find_server

if TYPE_CHECKING:
    import pyarrow as pa


def connect_async(
    url: str | None = None,
    *,
    token: str | None = None,
    home: str | Path | None = None,
    ca_file: str | Path | None = None,
    tenant: str | None = None,
    retry_seconds: float = RETRY_SECONDS_DEFAULT,
) -> AsyncClient:
    """Give a client of the server at `url`, or of the one that runs in the home folder.

    `ca_file` holds the certificates by which a server with TLS is trusted; `tenant` is for administrators of
    the instance; `retry_seconds` is how long a call may try again where that is safe (0: not at all).
    """
    find = functools.partial(find_server, url, token, home, ca_file=ca_file)
    try:
        return AsyncClient(Transport(find, tenant=tenant, retrying=Retrying(retry_seconds)))
    except TidegateError as problem:
        # This is the first call of most programs: its traceback says what to do, too.
        problem.add_note(problem.hint)
        raise


class AsyncClient:
    """A server. Close it, or use it in an `async with`; tasks may share it."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.topics = Topics(transport)
        self.pipelines = Pipelines(transport)
        self.tenants = Tenants(transport)
        self.users = Users(transport)
        self.audit = Audit(transport)
        self.jobs = Jobs(transport)
        self.backups = Backups(transport)

    @property
    def url(self) -> str:
        """The server's address."""
        return self._transport.url

    async def sql(self, statement: str, params: Sequence[Any] = ()) -> Answer:
        """Run a statement with its parameters bound."""
        content = encoded({"sql": statement, "params": list(params)})
        answer = await self._transport.call(Request("POST", f"{API}/sql", content))
        return Answer(answer["columns"], answer["rows"], answer["tookMs"], self._transport, content)

    async def sql_arrow(self, statement: str, params: Sequence[Any] = ()) -> pa.Table:
        """Run a statement and give its rows as an Arrow table with exact types, in one call."""
        return await arrow_rows(self._transport, encoded({"sql": statement, "params": list(params)}))

    async def status(self) -> dict[str, Any]:
        """Tell what runs, where, and how fresh it is."""
        return dict(await self._transport.call(get("/status")))

    async def me(self) -> Me:
        """Tell whom the token belongs to, and what they may do."""
        known: Me = await self._transport.call(get("/me"))
        return known

    async def open_link(self) -> Link:
        """Make a link that signs a browser in as the owner of the token; it works once, and not for long."""
        made: Link = await self._transport.call(post("/links", {}))
        return made

    def topic(self, name: str) -> Topic:
        """Give a topic by name; it is looked for at the first call."""
        return Topic(self._transport, name)

    async def close(self) -> None:
        """Let the connections go."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
