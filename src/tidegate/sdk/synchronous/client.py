"""The client: a running server as Python objects.

Made from asynchronous/client.py by scripts/generate_sdk.py: change that one, and run it again.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tidegate.errors import TidegateError
from tidegate.sdk.requests import API, Request, encoded, get, post
from tidegate.sdk.retries import RETRY_SECONDS_DEFAULT, Retrying
from tidegate.sdk.shapes import Link, Me
from tidegate.sdk.synchronous.answer import Answer, arrow_rows
from tidegate.sdk.synchronous.operating import Audit, Backups, Jobs, Pipelines
from tidegate.sdk.synchronous.people import Tenants, Users
from tidegate.sdk.synchronous.topics import Topic, Topics
from tidegate.sdk.synchronous.transport import Transport
from tidegate.storage.address import find_server

if TYPE_CHECKING:
    import pyarrow as pa


def connect(
    url: str | None = None,
    *,
    token: str | None = None,
    home: str | Path | None = None,
    ca_file: str | Path | None = None,
    tenant: str | None = None,
    retry_seconds: float = RETRY_SECONDS_DEFAULT,
) -> Client:
    """Give a client of the server at `url`, or of the one that runs in the home folder.

    `ca_file` holds the certificates by which a server with TLS is trusted; `tenant` is for administrators of
    the instance; `retry_seconds` is how long a call may try again where that is safe (0: not at all).
    """
    find = functools.partial(find_server, url, token, home, ca_file=ca_file)
    try:
        return Client(Transport(find, tenant=tenant, retrying=Retrying(retry_seconds)))
    except TidegateError as problem:
        # This is the first call of most programs: its traceback says what to do, too.
        problem.add_note(problem.hint)
        raise


class Client:
    """A server. Close it, or use it in a `with`; threads may share it."""

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

    def sql(self, statement: str, params: Sequence[Any] = ()) -> Answer:
        """Run a statement with its parameters bound."""
        content = encoded({"sql": statement, "params": list(params)})
        answer = self._transport.call(Request("POST", f"{API}/sql", content))
        return Answer(answer["columns"], answer["rows"], answer["tookMs"], self._transport, content)

    def sql_arrow(self, statement: str, params: Sequence[Any] = ()) -> pa.Table:
        """Run a statement and give its rows as an Arrow table with exact types, in one call."""
        return arrow_rows(self._transport, encoded({"sql": statement, "params": list(params)}))

    def status(self) -> dict[str, Any]:
        """Tell what runs, where, and how fresh it is."""
        return dict(self._transport.call(get("/status")))

    def me(self) -> Me:
        """Tell whom the token belongs to, and what they may do."""
        known: Me = self._transport.call(get("/me"))
        return known

    def open_link(self) -> Link:
        """Make a link that signs a browser in as the owner of the token; it works once, and not for long."""
        made: Link = self._transport.call(post("/links", {}))
        return made

    def topic(self, name: str) -> Topic:
        """Give a topic by name; it is looked for at the first call."""
        return Topic(self._transport, name)

    def close(self) -> None:
        """Let the connections go."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
