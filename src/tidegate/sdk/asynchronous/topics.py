"""Topics: make, list, show and delete them, publish and consume."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from tidegate.sdk.arrow import ArrowPage, page_of, stream_of
from tidegate.sdk.asynchronous.paging import listed
from tidegate.sdk.asynchronous.producer import Producer
from tidegate.sdk.asynchronous.transport import Transport
from tidegate.sdk.numbering import Numbering, producer_name
from tidegate.sdk.requests import API, ARROW_STREAM, Request, create, delete, encoded, get, post, quoted
from tidegate.sdk.shapes import MessagePage, Outgoing, Placed, TopicShown

if TYPE_CHECKING:
    import pyarrow as pa


class Topics:
    """All topics of a tenant."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self) -> list[TopicShown]:
        """List topics with what they hold."""
        return await listed(self._transport, "/topics", "topics")

    async def create(self, name: str, partitions: int = 1) -> Topic:
        """Make a topic."""
        await self._transport.call(create("/topics", {"name": name, "partitions": partitions}))
        return Topic(self._transport, name)

    async def show(self, name: str) -> TopicShown:
        """Describe a topic."""
        shown: TopicShown = await self._transport.call(get(f"/topics/{quoted(name)}"))
        return shown

    async def delete(self, name: str) -> None:
        """Remove a topic and all of its messages."""
        await self._transport.call(delete(f"/topics/{quoted(name)}"))


class Topic:
    """One topic."""

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self.name = name

    async def publish(
        self,
        messages: Iterable[Outgoing | dict[str, Any]],
        *,
        producer_id: str | None = None,
        sequence: int | None = None,
    ) -> list[Placed]:
        """Store messages (`{"payload": …, "key": …}`); give each one's place once all are on the disk.

        With a producer id and the sequence number of the first message, sending again what was lost on the
        way stores nothing twice, and is done here. `producer()` does the numbering.
        """
        body: dict[str, Any] = {"messages": list(messages)}
        if producer_id is not None:
            body["producerId"] = producer_id
        if sequence is not None:
            body["sequence"] = sequence
        numbered = producer_id is not None and sequence is not None
        answer = await self._transport.call(post(self._path("publish"), body, repeatable=numbered))
        placed: list[Placed] = answer["offsets"]
        return placed

    async def publish_arrow(
        self, table: pa.Table | pa.RecordBatch, *, producer_id: str | None = None, sequence: int | None = None
    ) -> list[Placed]:
        """Store the rows of a table: columns `payload` (JSON text), and if need be `key` and `partition`.

        A table from `consume_arrow` is taken as it is; what the server gives out anew is left away.
        """
        numbered = producer_id is not None and sequence is not None
        number = {"producerId": producer_id, "sequence": sequence}
        query = urlencode({name: value for name, value in number.items() if value is not None})
        path = f"{API}{self._path('publish')}" + (f"?{query}" if query else "")
        content = stream_of(table)
        request = Request("POST", path, content, content_type=ARROW_STREAM, repeatable=numbered)
        answer = await self._transport.call(request)
        placed: list[Placed] = answer["offsets"]
        return placed

    def producer(self, producer_id: str | None = None, *, sequence: int = 0) -> Producer:
        """Give a producer that numbers its messages, so that each is stored exactly once.

        Without an id it takes a random one. A program that starts again goes on under its id with the number
        that follows its last acknowledged message (`producer.sequence`).
        """
        numbering = Numbering(producer_id or producer_name(), sequence)
        return Producer(self._transport, self._path("publish"), numbering)

    async def consume(
        self,
        start: str | dict[str, Any] = "earliest",
        *,
        partition: int | None = None,
        limit: int = 100,
        wait_ms: int = 0,
    ) -> MessagePage:
        """Give messages from a position on, and `nextOffsets` to go on from; nothing is remembered."""
        body = _question(start, partition, limit, wait_ms)
        path = self._path("consume")
        page: MessagePage = await self._transport.call(
            post(path, body, repeatable=True, wait_seconds=wait_ms / 1000)
        )
        return page

    async def consume_arrow(
        self,
        start: str | dict[str, Any] = "earliest",
        *,
        partition: int | None = None,
        limit: int = 100,
        wait_ms: int = 0,
    ) -> ArrowPage:
        """Give messages as an Arrow table, and `next_offsets` to go on from; nothing is remembered."""
        content = encoded(_question(start, partition, limit, wait_ms))
        request = Request(
            "POST",
            f"{API}{self._path('consume')}",
            content,
            accept=ARROW_STREAM,
            repeatable=True,
            wait_seconds=wait_ms / 1000,
        )
        reply = await self._transport.send(request)
        return page_of(reply.content)

    def _path(self, verb: str) -> str:
        return f"/topics/{quoted(self.name)}/{verb}"


def _question(start: str | dict[str, Any], partition: int | None, limit: int, wait_ms: int) -> dict[str, Any]:
    body: dict[str, Any] = {"from": start, "limit": limit, "waitMs": wait_ms}
    if partition is not None:
        body["partition"] = partition
    return body
