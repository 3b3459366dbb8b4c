"""Topics: create, change, list, show and delete them; publish and consume, alone or as a group."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import urlencode

from msgspec import UNSET, UnsetType

from tidegate.errors import TopicExists
from tidegate.sdk._async.operations import list_all
from tidegate.sdk._async.producer import Producer
from tidegate.sdk._async.transport import Transport
from tidegate.sdk.agent_policy import LEASE_MS, ConsumerOptions, Retry, Tuning, member_name
from tidegate.sdk.arrow import ArrowPage, page_of, stream_of
from tidegate.sdk.message_page import decode_page
from tidegate.sdk.requests import (
    API,
    ARROW_STREAM,
    Request,
    create,
    delete,
    get,
    lease_list,
    message_list,
    patch,
    post,
    quoted,
)
from tidegate.sdk.sequence import ProducerSequence, producer_name
from tidegate.sdk.types import (
    AckDict,
    ExtendDict,
    GroupDict,
    MessagePageDict,
    NackDict,
    NewMessageDict,
    PublishedMessageDict,
    TopicChangeDict,
    TopicDict,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.sdk._async.agent import Agent
    from tidegate.sdk._async.consumer import Consumer

Start = str | dict[str, Any]

logger = logging.getLogger("tidegate.topics")


class TopicsClient:
    """All topics of a tenant."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self) -> list[TopicDict]:
        """List topics with their partitions and limits."""
        return await list_all(self._transport, "/topics", "topics")

    async def create(
        self,
        name: str,
        partitions: int | None = None,
        *,
        retention_seconds: int | None = None,
        retention_max_bytes: int | None = None,
        dedup_seconds: int | None = None,
        if_not_exists: bool = False,
    ) -> TopicClient:
        """Create a topic, with 1 partition by default; messages beyond its retention are removed.

        With `dedup_seconds` it accepts messages with a `dedupKey`, and stores one of each key in that time.

        With `if_not_exists` a topic of that name is used as it is; a warning in the log names the options
        that differ.
        """
        limits = {"retentionSeconds": retention_seconds, "retentionMaxBytes": retention_max_bytes}
        options = _without_none({"partitions": partitions, **limits, "dedupSeconds": dedup_seconds})
        try:
            await self._transport.call(create("/topics", {"name": name, **options}))
        except TopicExists:
            if not if_not_exists:
                raise
            differences = _differences(await self.show(name), options)
            if differences:
                logger.warning("topic exists with other options topic=%s differences=%r", name, differences)
        return TopicClient(self._transport, name)

    async def change(
        self,
        name: str,
        *,
        partitions: int | None = None,
        retention_seconds: int | UnsetType | None = UNSET,
        retention_max_bytes: int | UnsetType | None = UNSET,
        dedup_seconds: int | UnsetType | None = UNSET,
    ) -> TopicChangeDict:
        """Set more partitions or another retention (None: no limit); what is left out stays.

        With `dedup_seconds=None` the topic forgets its dedup keys, and accepts no more of them.
        """
        body = _without_none({"partitions": partitions})
        limits = {
            "retentionSeconds": retention_seconds,
            "retentionMaxBytes": retention_max_bytes,
            "dedupSeconds": dedup_seconds,
        }
        body |= {key: value for key, value in limits.items() if value is not UNSET}
        changed: TopicChangeDict = await self._transport.call(patch(f"/topics/{quoted(name)}", body))
        return changed

    async def clear(self, name: str) -> int:
        """Remove all messages of a topic, and return how many; offsets continue where they were."""
        answer = await self._transport.call(post(f"/topics/{quoted(name)}/clear", {}))
        return int(answer["cleared"])

    async def show(self, name: str) -> TopicDict:
        """Describe a topic."""
        shown: TopicDict = await self._transport.call(get(f"/topics/{quoted(name)}"))
        return shown

    async def delete(self, name: str) -> None:
        """Remove a topic and all of its messages."""
        await self._transport.call(delete(f"/topics/{quoted(name)}"))


class TopicClient:
    """One topic."""

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self.name = name

    async def publish(
        self,
        messages: Iterable[NewMessageDict | dict[str, Any]],
        *,
        producer_id: str | None = None,
        sequence: int | None = None,
    ) -> list[PublishedMessageDict]:
        """Store messages (`{"payload": …, "key": …}`); return their positions once all are on the disk.

        A message with a `dedupKey` that the topic accepted within its time is dropped: its position is that
        of the first one, with `duplicate`.

        With a producer id and the sequence number of the first message, a request whose answer was lost is
        sent again, and nothing is stored twice. `producer()` does the numbering.
        """
        body: dict[str, Any] = {"messages": message_list(messages)}
        if producer_id is not None:
            body["producerId"] = producer_id
        if sequence is not None:
            body["sequence"] = sequence
        numbered = producer_id is not None and sequence is not None
        answer = await self._transport.call(post(self._path("publish"), body, repeatable=numbered))
        positions: list[PublishedMessageDict] = answer["offsets"]
        return positions

    async def publish_arrow(
        self, table: pa.Table | pa.RecordBatch, *, producer_id: str | None = None, sequence: int | None = None
    ) -> list[PublishedMessageDict]:
        """Store the rows of a table: `payload` (JSON text), optionally `key`, `partition` and `dedupKey`.

        A table from `consume_arrow` is accepted as it is; columns that the server assigns are left out.
        """
        numbered = producer_id is not None and sequence is not None
        query = urlencode(_without_none({"producerId": producer_id, "sequence": sequence}))
        path = f"{API}{self._path('publish')}" + (f"?{query}" if query else "")
        content = stream_of(table)
        request = Request("POST", path, content, content_type=ARROW_STREAM, repeatable=numbered)
        answer = await self._transport.call(request)
        positions: list[PublishedMessageDict] = answer["offsets"]
        return positions

    def producer(self, producer_id: str | None = None, *, sequence: int = 0) -> Producer:
        """Return a producer that numbers its messages, so that each is stored exactly once.

        Without an id it gets a random one. A program that restarts continues under its id with the number
        after its last acknowledged message (`producer.sequence`).
        """
        number = ProducerSequence(producer_id or producer_name(), sequence)
        return Producer(self._transport, self._path("publish"), number)

    async def consume(
        self,
        start: Start = "earliest",
        *,
        partition: int | None = None,
        limit: int = 100,
        wait_ms: int = 0,
        group: str | None = None,
        member: str | None = None,
        lease_ms: int | None = None,
    ) -> MessagePageDict:
        """Return messages. Without a group: from a position on, with `nextOffsets` to continue from.

        With a group: the next messages that no member holds; they are delivered again unless they are
        acknowledged before their leases end. `start` then says where a new group begins. `consumer()` does
        all this by itself. A message that cannot be decoded has its payload as text, and `unreadable`.
        """
        optional = {"partition": partition, "group": group, "member": member, "leaseMs": lease_ms}
        request = self._consume(start, limit, wait_ms, optional)
        reply = await self._transport.send(request)
        return decode_page(reply.content, f"{self._transport.url}{request.path}")

    async def consume_arrow(
        self,
        start: Start = "earliest",
        *,
        partition: int | None = None,
        limit: int = 100,
        wait_ms: int = 0,
        group: str | None = None,
        member: str | None = None,
        lease_ms: int | None = None,
    ) -> ArrowPage:
        """Return messages as an Arrow table, otherwise like `consume`."""
        optional = {"partition": partition, "group": group, "member": member, "leaseMs": lease_ms}
        request = replace(self._consume(start, limit, wait_ms, optional), accept=ARROW_STREAM)
        reply = await self._transport.send(request)
        return page_of(reply.content)

    async def ack(
        self,
        group: str,
        leases: Sequence[str] | None = None,
        *,
        upto: Mapping[int, int] | None = None,
        member: str | None = None,
    ) -> AckDict:
        """Acknowledge messages by their leases, or all that the member holds up to an offset, inclusive.

        `upto` names the offset by partition. LeaseLost names the leases that were not held any more; the
        others are acknowledged.
        """
        body: dict[str, Any] = {"group": group, **_without_none({"member": member})}
        if leases is not None:
            body["leases"] = lease_list(leases)
        if upto is not None:
            body["acks"] = [{"partition": part, "uptoOffset": offset} for part, offset in upto.items()]
        acked: AckDict = await self._transport.call(post(self._path("ack"), body, repeatable=True))
        return acked

    async def nack(
        self,
        group: str,
        leases: Sequence[str],
        *,
        member: str | None = None,
        delay_ms: int = 0,
        reason: str | None = None,
        release: bool = False,
        dead: bool = False,
    ) -> NackDict:
        """Nack messages that failed: they are delivered again after the delay.

        `release` returns messages that were not begun, and counts no delivery; `dead` makes them dead letters
        at once.
        """
        body: dict[str, Any] = {"group": group, "leases": lease_list(leases), "delayMs": delay_ms}
        body |= _without_none({"member": member, "reason": reason})
        # Only flags that are set are sent: an older server knows fewer of them.
        body |= {flag: True for flag, is_set in (("release", release), ("dead", dead)) if is_set}
        nacked: NackDict = await self._transport.call(post(self._path("nack"), body, repeatable=True))
        return nacked

    async def extend(
        self,
        group: str,
        leases: Sequence[str] = (),
        *,
        member: str | None = None,
        lease_ms: int | None = None,
    ) -> ExtendDict:
        """Extend leases from now on; without leases it only keeps the member in the group."""
        body: dict[str, Any] = {"group": group, "leases": lease_list(leases)}
        body |= _without_none({"member": member, "leaseMs": lease_ms})
        extended: ExtendDict = await self._transport.call(post(self._path("extend"), body, repeatable=True))
        return extended

    async def reset(self, group: str, to: Start, *, partition: int | None = None) -> dict[str, int]:
        """Set the position of a group: "earliest", "latest", {"offset": n} or {"timestamp": "…"}."""
        body = {"group": group, "to": to, **_without_none({"partition": partition})}
        answer = await self._transport.call(post(self._path("reset"), body, repeatable=True))
        return dict(answer["position"])

    async def groups(self) -> list[GroupDict]:
        """List the groups with their positions, their members and the leases of each."""
        answer = await self._transport.call(get(self._path("groups")))
        groups: list[GroupDict] = answer["groups"]
        return groups

    async def delete_group(self, group: str) -> None:
        """Delete a group; the next consume under its name creates a new one."""
        await self._transport.call(delete(f"{self._path('groups')}/{quoted(group)}"))

    def consumer(
        self,
        group: str,
        *,
        member: str | None = None,
        start: Start = "earliest",
        partition: int | None = None,
        **tuning: Unpack[Tuning],
    ) -> Consumer:
        """Return a consumer of a group: a context manager that is iterated inside its context.

        `start` is where a new group begins. Every consumer has a name of its own unless `member` sets one.
        """
        from tidegate.sdk._async.consumer import Consumer

        options = ConsumerOptions(group, member or member_name(), start, partition, **tuning)
        return Consumer(self._transport, self._path("").rstrip("/"), options)

    def agent(
        self,
        group: str,
        *,
        answers: str | None = None,
        retry: Retry | None = None,
        workers: int = 4,
        member: str | None = None,
        start: Start = "earliest",
        lease_ms: int = LEASE_MS,
    ) -> Agent:
        """Return an agent that runs a function on each message, `workers` at once.

        What the function returns is published to the topic `answers`, once for a message.
        """
        from tidegate.sdk._async.agent import Agent, AgentOptions

        consumer = ConsumerOptions(
            *(group, member or member_name(), start),
            limit=max(1, workers),
            prefetch=0,
            lease_ms=lease_ms,
            retry=retry or Retry(),
        )
        return Agent(self._transport, AgentOptions(self._path("").rstrip("/"), consumer, workers, answers))

    def _consume(self, start: Start, limit: int, wait_ms: int, optional: dict[str, Any]) -> Request:
        body = {"from": start, "limit": limit, "waitMs": wait_ms, **_without_none(optional)}
        return post(self._path("consume"), body, repeatable=True, wait_seconds=wait_ms / 1000)

    def _path(self, verb: str) -> str:
        return f"/topics/{quoted(self.name)}/{verb}"


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _differences(shown: TopicDict, options: dict[str, Any]) -> str:
    """Return the options in which a topic differs, in words."""
    have = {**shown, "partitions": len(shown["partitions"])}
    return ", ".join(
        f"{name} is {have[name]}, not {value}" for name, value in options.items() if have[name] != value
    )
