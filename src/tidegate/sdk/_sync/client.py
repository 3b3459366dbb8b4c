"""The client of a running server.

Made from _async/client.py by scripts/generate_sdk.py: change that one, and run it again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tidegate.errors import TidegateError
from tidegate.sdk._sync.operations import AuditClient, BackupsClient, JobsClient, PipelinesClient
from tidegate.sdk._sync.result import SqlAnswer, answer_of, arrow_rows
from tidegate.sdk._sync.topics import TopicClient, TopicsClient
from tidegate.sdk._sync.transport import Transport
from tidegate.sdk._sync.users import TenantsClient, UsersClient
from tidegate.sdk.live import SubscriptionProtocol
from tidegate.sdk.requests import get, post, with_hint
from tidegate.sdk.retries import RETRY_SECONDS_DEFAULT, RetryPolicy
from tidegate.sdk.statements import arrow_request, insert_request, parameter_list, sql_request
from tidegate.sdk.types import LinkDict, MeDict, QuotaDict
from tidegate.storage.home.address import find_server

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.sdk._sync.subscription import LiveSubscription


def connect(
    url: str | None = None,
    *,
    token: str | None = None,
    home: str | Path | None = None,
    ca_file: str | Path | None = None,
    tenant: str | None = None,
    retry_seconds: float = RETRY_SECONDS_DEFAULT,
) -> Client:
    """Return a client of the server at `url`, or of the one that runs in the home folder.

    `ca_file` holds the certificates by which a server with TLS is trusted; `tenant` is for administrators of
    the instance; `retry_seconds` is how long a call may try again where that is safe (0: not at all).
    """
    find = functools.partial(find_server, url, token, home, ca_file=ca_file)
    try:
        return Client(Transport(find, tenant=tenant, retry_policy=RetryPolicy(retry_seconds)))
    except TidegateError as problem:
        # This is the first call of most programs: its traceback shows the hint, too.
        with_hint(problem)
        raise


class Client:
    """A server. Close it, or use it as a context manager; concurrent callers may share it."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.topics = TopicsClient(transport)
        self.pipelines = PipelinesClient(transport)
        self.tenants = TenantsClient(transport)
        self.users = UsersClient(transport)
        self.audit = AuditClient(transport)
        self.jobs = JobsClient(transport)
        self.backups = BackupsClient(transport)

    @property
    def url(self) -> str:
        """The server's address."""
        return self._transport.url

    def sql(
        self, sql: str, params: Sequence[Any] | None = None, *, idempotency_key: str | None = None
    ) -> SqlAnswer:
        """Run one statement or several, with their parameters bound.

        `params` is a list of values; for an INSERT or UPSERT of many rows a list of lists, one for each row.
        A statement that only reads is sent again when its answer is lost. One that writes is sent once,
        unless an `idempotency_key` lets the server recognise a repetition.
        """
        request = sql_request(sql, params, idempotency_key)
        return answer_of(self._transport.call(request), self._transport, request)

    def sql_arrow(self, sql: str, params: Sequence[Any] | None = None) -> pa.Table:
        """Run a statement that reads and return its rows as an Arrow table with exact types, in one call."""
        return arrow_rows(self._transport, arrow_request(sql, params))

    def insert(
        self,
        table: str,
        rows: object,
        *,
        upsert: bool = False,
        idempotency_key: str | None = None,
    ) -> int:
        """Write rows into a table, all or none; return how many.

        `rows` are dictionaries with the same keys, an Arrow table or record batch, or a frame of pandas or
        Polars. Columns are matched by name; those that are left out get their defaults. `upsert` replaces
        rows whose key exists.
        """
        request = insert_request(table, rows, upsert=upsert, key=idempotency_key)
        if request is None:
            return 0
        answer = self._transport.call(request)
        return int(answer["rowCount"])

    def subscribe(
        self,
        sql: str,
        params: Sequence[Any] | None = None,
        *,
        from_seq: int | None = None,
        snapshot: bool = True,
        reconnect_seconds: float | None = None,
        on_lost: Callable[[TidegateError], object] | None = None,
    ) -> LiveSubscription:
        """Follow a SELECT over one table: the rows that are there, then each change of them, once.

        It begins when its first change is requested, or when its context is entered. A lost connection is
        opened again and resumes after the last change, without a time limit unless `reconnect_seconds` sets
        one; `on_lost` is called with each loss. `from_seq` resumes after a change that was seen before,
        without a snapshot; `snapshot=False` leaves out the rows that are there already.
        """
        from tidegate.sdk._sync.subscription import LiveSubscription

        protocol = SubscriptionProtocol(sql, parameter_list(params), from_seq, snapshot=snapshot)
        return LiveSubscription(
            self._transport, protocol, reconnect_seconds=reconnect_seconds, on_lost=on_lost
        )

    def status(self) -> dict[str, Any]:
        """Return the status of the server, its topics, tables and pipelines."""
        return dict(self._transport.call(get("/status")))

    def me(self) -> MeDict:
        """Return the owner of the token, and their roles."""
        owner: MeDict = self._transport.call(get("/me"))
        return owner

    def quota(self) -> QuotaDict:
        """Return the quotas of the owner of the token and of their tenant, and what is used of them."""
        quota: QuotaDict = self._transport.call(get("/quota"))
        return quota

    def open_link(self) -> LinkDict:
        """Create a link that signs a browser in as the owner of the token; it works once, for minutes."""
        link: LinkDict = self._transport.call(post("/links", {}))
        return link

    def topic(self, name: str) -> TopicClient:
        """Return a topic by name; whether it exists is checked at the first call."""
        return TopicClient(self._transport, name)

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
