"""Topics: make, change, list, show and delete them, publish and consume, alone or as a group.

Made from _async/topics.py by scripts/generate_sdk.py: change that one, and run it again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import urlencode

from msgspec import UNSET, UnsetType

from tidegate.errors import TopicExists
from tidegate.sdk._sync.operations import listed
from tidegate.sdk._sync.producer import Producer
from tidegate.sdk._sync.transport import Transport
from tidegate.sdk.agent_policy import LEASE_MS, ConsumerOptions, Retry, Tuning, member_name
from tidegate.sdk.arrow import ArrowPage, page_of, stream_of
from tidegate.sdk.requests import (
    API,
    ARROW_STREAM,
    Request,
    create,
    delete,
    encoded,
    get,
    lease_list,
    message_list,
    patch,
    post,
    quoted,
)
from tidegate.sdk.sequence import ProducerSequence, producer_name
from tidegate.sdk.types import (
    Acked,
    Extended,
    GroupShown,
    MessagePage,
    Nacked,
    Outgoing,
    Placed,
    TopicChanged,
    TopicShown,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.sdk._sync.agent import Agent
    from tidegate.sdk._sync.consumer import Consumer

Start = str | dict[str, Any]

logger = logging.getLogger("tidegate.topics")


class TopicsClient:
    """All topics of a tenant."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> list[TopicShown]:
        """List topics with what they hold."""
        return listed(self._transport, "/topics", "topics")

    def create(
        self,
        name: str,
        partitions: int | None = None,
        *,
        retention_seconds: int | None = None,
        retention_max_bytes: int | None = None,
        dedup_seconds: int | None = None,
        if_not_exists: bool = False,
    ) -> TopicClient:
        """Make a topic, of 1 partition unless it says else; what is beyond its retention is removed.

        With `dedup_seconds` it takes messages with a `dedupKey`, and stores one of each key in that time.

        With `if_not_exists` a topic of that name is taken as it is; what was asked for and differs is in the
        log as a warning.
        """
        limits = {"retentionSeconds": retention_seconds, "retentionMaxBytes": retention_max_bytes}
        asked = _given({"partitions": partitions, **limits, "dedupSeconds": dedup_seconds})
        try:
            self._transport.call(create("/topics", {"name": name, **asked}))
        except TopicExists:
            if not if_not_exists:
                raise
            differences = _differences(self.show(name), asked)
            if differences:
                logger.warning("topic '%s' is there already, and stays as it is: %s", name, differences)
        return TopicClient(self._transport, name)

    def change(
        self,
        name: str,
        *,
        partitions: int | None = None,
        retention_seconds: int | UnsetType | None = UNSET,
        retention_max_bytes: int | UnsetType | None = UNSET,
        dedup_seconds: int | UnsetType | None = UNSET,
    ) -> TopicChanged:
        """Return a topic more partitions or another retention (None: no limit); what is left out stays.

        `dedup_seconds=None` lets it forget its dedup keys, and take no more of them.
        """
        body = _given({"partitions": partitions})
        limits = {
            "retentionSeconds": retention_seconds,
            "retentionMaxBytes": retention_max_bytes,
            "dedupSeconds": dedup_seconds,
        }
        body |= {key: value for key, value in limits.items() if value is not UNSET}
        changed: TopicChanged = self._transport.call(patch(f"/topics/{quoted(name)}", body))
        return changed

    def clear(self, name: str) -> int:
        """Remove all messages of a topic, and give how many; offsets go on where they were."""
        answer = self._transport.call(post(f"/topics/{quoted(name)}/clear", {}))
        return int(answer["cleared"])

    def show(self, name: str) -> TopicShown:
        """Describe a topic."""
        shown: TopicShown = self._transport.call(get(f"/topics/{quoted(name)}"))
        return shown

    def delete(self, name: str) -> None:
        """Remove a topic and all of its messages."""
        self._transport.call(delete(f"/topics/{quoted(name)}"))


class TopicClient:
    """One topic."""

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self.name = name

    def publish(
        self,
        messages: Iterable[Outgoing | dict[str, Any]],
        *,
        producer_id: str | None = None,
        sequence: int | None = None,
    ) -> list[Placed]:
        """Store messages (`{"payload": …, "key": …}`); give each one's place once all are on the disk.

        A message with a `dedupKey` that the topic accepted a short while ago is dropped: its place is that of
        the first one, with `duplicate`.

        With a producer id and the sequence number of the first message, sending again what was lost on the
        way stores nothing twice, and is done here. `producer()` does the numbering.
        """
        body: dict[str, Any] = {"messages": message_list(messages)}
        if producer_id is not None:
            body["producerId"] = producer_id
        if sequence is not None:
            body["sequence"] = sequence
        numbered = producer_id is not None and sequence is not None
        answer = self._transport.call(post(self._path("publish"), body, repeatable=numbered))
        placed: list[Placed] = answer["offsets"]
        return placed

    def publish_arrow(
        self, table: pa.Table | pa.RecordBatch, *, producer_id: str | None = None, sequence: int | None = None
    ) -> list[Placed]:
        """Store the rows of a table: `payload` (JSON text), and if need be `key`, `partition` and `dedupKey`.

        A table from `consume_arrow` is taken as it is; what the server gives out anew is left away.
        """
        numbered = producer_id is not None and sequence is not None
        number = {"producerId": producer_id, "sequence": sequence}
        query = urlencode({name: value for name, value in number.items() if value is not None})
        path = f"{API}{self._path('publish')}" + (f"?{query}" if query else "")
        content = stream_of(table)
        request = Request("POST", path, content, content_type=ARROW_STREAM, repeatable=numbered)
        answer = self._transport.call(request)
        placed: list[Placed] = answer["offsets"]
        return placed

    def producer(self, producer_id: str | None = None, *, sequence: int = 0) -> Producer:
        """Return a producer that numbers its messages, so that each is stored exactly once.

        Without an id it takes a random one. A program that starts again goes on under its id with the number
        that follows its last acknowledged message (`producer.sequence`).
        """
        numbering = ProducerSequence(producer_id or producer_name(), sequence)
        return Producer(self._transport, self._path("publish"), numbering)

    def consume(
        self,
        start: Start = "earliest",
        *,
        partition: int | None = None,
        limit: int = 100,
        wait_ms: int = 0,
        group: str | None = None,
        member: str | None = None,
        lease_ms: int | None = None,
    ) -> MessagePage:
        """Return messages. Without a group from a position on, and `nextOffsets` to go on from.

        With a group: the next messages that nobody has; they come again unless they are acknowledged before
        their leases end. `start` then says where a new group begins. `consumer()` does all this by itself.
        """
        question = _question(start, partition, limit, wait_ms)
        question |= _given({"group": group, "member": member, "leaseMs": lease_ms})
        request = post(self._path("consume"), question, repeatable=True, wait_seconds=wait_ms / 1000)
        page: MessagePage = self._transport.call(request)
        return page

    def consume_arrow(
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
        question = _question(start, partition, limit, wait_ms)
        question |= _given({"group": group, "member": member, "leaseMs": lease_ms})
        request = Request(
            "POST",
            f"{API}{self._path('consume')}",
            encoded(question),
            accept=ARROW_STREAM,
            repeatable=True,
            wait_seconds=wait_ms / 1000,
        )
        reply = self._transport.send(request)
        return page_of(reply.content)

    def ack(
        self,
        group: str,
        leases: Sequence[str] | None = None,
        *,
        upto: Mapping[int, int] | None = None,
        member: str | None = None,
    ) -> Acked:
        """Acknowledge messages by their leases, or all that the member was given up to an offset, inclusive.

        `upto` names the offset by partition. LeaseLost tells which leases were not held any more; the others
        are acknowledged.
        """
        body: dict[str, Any] = {"group": group, **_given({"member": member})}
        if leases is not None:
            body["leases"] = lease_list(leases)
        if upto is not None:
            body["acks"] = [{"partition": part, "uptoOffset": offset} for part, offset in upto.items()]
        acked: Acked = self._transport.call(post(self._path("ack"), body, repeatable=True))
        return acked

    def nack(
        self,
        group: str,
        leases: Sequence[str],
        *,
        member: str | None = None,
        delay_ms: int = 0,
        reason: str | None = None,
        release: bool = False,
        dead: bool = False,
    ) -> Nacked:
        """Return messages back that failed: they come again after the delay.

        `release` gives back what was not begun, and counts no delivery; `dead` makes dead letters at once.
        """
        body: dict[str, Any] = {"group": group, "leases": lease_list(leases), "delayMs": delay_ms}
        body |= _given({"member": member, "reason": reason})
        # Only what is meant is said: an older server knows fewer of these words.
        body |= {word: True for word, is_meant in (("release", release), ("dead", dead)) if is_meant}
        nacked: Nacked = self._transport.call(post(self._path("nack"), body, repeatable=True))
        return nacked

    def extend(
        self,
        group: str,
        leases: Sequence[str] = (),
        *,
        member: str | None = None,
        lease_ms: int | None = None,
    ) -> Extended:
        """Let leases run anew from now; without leases it only says that the member is there."""
        body: dict[str, Any] = {"group": group, "leases": lease_list(leases)}
        body |= _given({"member": member, "leaseMs": lease_ms})
        extended: Extended = self._transport.call(post(self._path("extend"), body, repeatable=True))
        return extended

    def reset(self, group: str, to: Start, *, partition: int | None = None) -> dict[str, int]:
        """Set where a group goes on: "earliest", "latest", {"offset": n} or {"timestamp": "…"}."""
        body = {"group": group, "to": to, **_given({"partition": partition})}
        answer = self._transport.call(post(self._path("reset"), body, repeatable=True))
        return dict(answer["position"])

    def groups(self) -> list[GroupShown]:
        """Tell where each group is, who is in it, and what they hold."""
        answer = self._transport.call(get(self._path("groups")))
        groups: list[GroupShown] = answer["groups"]
        return groups

    def delete_group(self, group: str) -> None:
        """Forget a group; the next consume under its name begins anew."""
        self._transport.call(delete(f"{self._path('groups')}/{quoted(group)}"))

    def consumer(
        self,
        group: str,
        *,
        member: str | None = None,
        start: Start = "earliest",
        partition: int | None = None,
        **tuning: Unpack[Tuning],
    ) -> Consumer:
        """Return a consumer of a group, to be used in a `with` and iterated.

        `start` is where a new group begins. Every consumer has a name of its own unless `member` says one.
        """
        from tidegate.sdk._sync.consumer import Consumer

        asking = ConsumerOptions(group, member or member_name(), start, partition, **tuning)
        return Consumer(self._transport, self._path("").rstrip("/"), asking)

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

        What the function gives is published to the topic `answers`, once for a message.
        """
        from tidegate.sdk._sync.agent import Agent, AgentOptions

        asking = ConsumerOptions(
            *(group, member or member_name(), start),
            limit=max(1, workers),
            prefetch=0,
            lease_ms=lease_ms,
            retry=retry or Retry(),
        )
        return Agent(self._transport, AgentOptions(self._path("").rstrip("/"), asking, workers, answers))

    def _path(self, verb: str) -> str:
        return f"/topics/{quoted(self.name)}/{verb}"


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _differences(shown: TopicShown, asked: dict[str, Any]) -> str:
    """Return what a topic has that was asked for otherwise."""
    found = {**shown, "partitions": len(shown["partitions"])}
    told = (f"{name} is {found[name]}, not {value}" for name, value in asked.items() if found[name] != value)
    return ", ".join(told)


def _question(start: Start, partition: int | None, limit: int, wait_ms: int) -> dict[str, Any]:
    body: dict[str, Any] = {"from": start, "limit": limit, "waitMs": wait_ms}
    if partition is not None:
        body["partition"] = partition
    return body
