"""The client: a running server as Python objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tidegate.errors import TidegateError
from tidegate.sdk.transport import Transport
from tidegate.storage.address import find_server

if TYPE_CHECKING:
    import pyarrow as pa

API = "/api/v1"


def connect(url: str | None = None, *, token: str | None = None, home: str | Path | None = None) -> Client:
    """Give a client of the server at `url`, or of the one that runs in the home folder."""
    try:
        return Client(Transport(*find_server(url, token, home)))
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

    @property
    def url(self) -> str:
        """The server's address."""
        return self._transport.url

    def sql(self, statement: str, params: Sequence[Any] = ()) -> Answer:
        """Run a statement with its parameters bound."""
        body = {"sql": statement, "params": list(params)}
        answer = self._transport.call("POST", f"{API}/sql", body)
        return Answer(answer["columns"], answer["rows"], answer["tookMs"], self._transport, body)

    def status(self) -> dict[str, Any]:
        """Tell what runs, where, and how fresh it is."""
        return _dict(self._transport.call("GET", f"{API}/status"))

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


@dataclass(frozen=True)
class Answer:
    """Rows of a statement."""

    columns: list[dict[str, str]]
    rows: list[list[Any]]
    took_ms: float
    _transport: Transport = field(repr=False)
    _body: dict[str, Any] = field(repr=False)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Give each row as a dictionary."""
        names = [column["name"] for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]

    def to_arrow(self) -> pa.Table:
        """Give the rows as an Arrow table with exact types; asks the server again."""
        import pyarrow as pa

        stream = self._transport.call_arrow("POST", f"{API}/sql", self._body)
        return pa.ipc.open_stream(stream).read_all()


class Topics:
    """All topics of a server."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> list[dict[str, Any]]:
        """List topics with what they hold."""
        return list(self._transport.call("GET", f"{API}/topics")["topics"])

    def create(self, name: str, partitions: int = 1) -> Topic:
        """Make a topic."""
        self._transport.call("POST", f"{API}/topics", {"name": name, "partitions": partitions})
        return Topic(self._transport, name)

    def show(self, name: str) -> dict[str, Any]:
        """Describe a topic."""
        return _dict(self._transport.call("GET", f"{API}/topics/{_quoted(name)}"))

    def delete(self, name: str) -> None:
        """Remove a topic and all of its messages."""
        self._transport.call("DELETE", f"{API}/topics/{_quoted(name)}")


class Pipelines:
    """All pipelines that the worker runs."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> list[dict[str, Any]]:
        """List pipelines with their progress."""
        return list(self._transport.call("GET", f"{API}/pipelines")["pipelines"])

    def show(self, name: str) -> dict[str, Any]:
        """Describe a pipeline."""
        return _dict(self._transport.call("GET", f"{API}/pipelines/{_quoted(name)}"))


class Topic:
    """One topic."""

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self.name = name

    def publish(
        self,
        messages: Iterable[dict[str, Any]],
        *,
        producer_id: str | None = None,
        sequence: int | None = None,
    ) -> list[dict[str, Any]]:
        """Store messages (`{"payload": …, "key": …}`); give each one's place once all are on the disk.

        With a producer id and the sequence number of the first message, sending again what was lost on the
        way stores nothing twice.
        """
        body: dict[str, Any] = {"messages": list(messages)}
        if producer_id is not None:
            body["producerId"] = producer_id
        if sequence is not None:
            body["sequence"] = sequence
        return list(self._transport.call("POST", self._path("publish"), body)["offsets"])

    def consume(
        self,
        start: str | dict[str, Any] = "earliest",
        *,
        partition: int | None = None,
        limit: int = 100,
        wait_ms: int = 0,
    ) -> dict[str, Any]:
        """Give messages from a position on, and `nextOffsets` to go on from; nothing is remembered."""
        body: dict[str, Any] = {"from": start, "limit": limit, "waitMs": wait_ms}
        if partition is not None:
            body["partition"] = partition
        return _dict(self._transport.call("POST", self._path("consume"), body))

    def _path(self, verb: str) -> str:
        return f"{API}/topics/{_quoted(self.name)}/{verb}"


def _quoted(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")


def _dict(answer: Any) -> dict[str, Any]:
    return dict(answer)
