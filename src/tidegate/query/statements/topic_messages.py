"""The planner of PUBLISH, CONSUME, ACK, NACK and EXTEND."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tidegate.errors import LeaseLost, SqlInvalid
from tidegate.ingest.publish import Messages, Receipt, Sender
from tidegate.model.access import Operation
from tidegate.model.json_limits import HINT, find_unreadable
from tidegate.model.schemas import ColumnType
from tidegate.query.statements.parameters import BoundParameters
from tidegate.query.step import Caller, ConsumeRequest, StatementResult, Step, result_of_rows
from tidegate.query.topic_access import TopicAccess
from tidegate.sql.statements import Ack, Consume, Extend, Nack, Publish, Text, Upto
from tidegate.storage.group_commit import Staging
from tidegate.topics.definitions import Topic
from tidegate.topics.groups import types
from tidegate.topics.log.reader import Start

# The same bounds as those of the HTTP endpoints.
DELAY_MS_MAX = 7 * 24 * 3600 * 1000  # longer pauses are schedules, and belong in a table
REASON_CHARS_MAX = 2_000  # a line or two of an exception, not its traceback
PRODUCER_CHARS_MAX = 200
SEQUENCE_MAX = 2**62 - 1

_INT, _BIGINT = ColumnType.INT, ColumnType.BIGINT
_PLACES = [("partition", _INT), ("offset", _BIGINT), ("message_id", _BIGINT)]
_ACKED = [("partition", _INT), ("acked", _BIGINT), ("position", _BIGINT)]
_NACKED = [("nacked", _BIGINT), ("dead", _BIGINT)]
_EXTENDED = [("extended", _BIGINT), ("expires_at", ColumnType.TIMESTAMP)]
T = TypeVar("T")


class TopicMessagePlanner:
    """Plans statements about messages; any thread may ask."""

    def __init__(self, topics: TopicAccess, published: Callable[[str, int], None]) -> None:
        self._topics = topics
        self._published = published

    def publish(self, statement: Publish, bound: BoundParameters, caller: Caller) -> Step:
        """Plan PUBLISH: all messages are stored or none is."""
        caller.check(Operation.TOPIC_PUBLISH)
        topic = self._topics.directory.get(caller.tenant, statement.topic.name)
        key, partition = (
            bound.key(statement.key),
            bound.optional_number(statement.partition, "PARTITION"),
        )
        if partition is not None:
            topic.check_partition(partition)
        payloads = [bound.payload(value, row) for row, value in enumerate(statement.payloads, start=1)]
        size_bytes = self._check_sizes(key, payloads)
        count = len(payloads)
        dedup_keys = [bound.text(one, "DEDUP KEY") for one in statement.dedup_keys] or None
        messages = Messages([key] * count, payloads, [partition] * count, dedup_keys)
        sender = _sender(statement, bound, caller.principal.qualified_name)

        def work() -> StatementResult:
            receipt: Receipt = self._commit(self._topics.publisher.plan(topic, messages, sender))
            self._published(caller.tenant, receipt.stored_count)
            columns = [receipt.partitions.tolist(), receipt.offsets.tolist(), receipt.ids.tolist()]
            if dedup_keys is None:
                return result_of_rows(_PLACES, list(zip(*columns, strict=True)))
            columns.append([False] * count if receipt.duplicates is None else receipt.duplicates.tolist())
            return result_of_rows(
                [*_PLACES, ("duplicate", ColumnType.BOOLEAN)], list(zip(*columns, strict=True))
            )

        return Step("publish", work=work, is_short=True, published_bytes=size_bytes)

    def _check_sizes(self, key: str | None, payloads: Sequence[bytes]) -> int:
        """Return the bytes of all messages; raise SqlInvalid for what no client could read or send."""
        settings = self._topics.settings
        if len(payloads) > settings.server.messages_max:
            reason = f"{len(payloads)} messages are more than {settings.server.messages_max}."
            raise SqlInvalid(reason=reason, hint="Send them in several statements.")
        key_bytes, most = len((key or "").encode()), settings.topics.message_bytes_max
        for row, payload in enumerate(payloads, start=1):
            size_bytes = len(payload) + key_bytes
            if size_bytes > most:
                reason = f"row {row} of VALUES has {size_bytes} bytes of key and payload; the most is {most}."
                raise SqlInvalid(reason=reason, hint="Send less, or raise topics.message_bytes_max.")
            if why := find_unreadable(payload):
                reason = f"row {row} of VALUES is not readable for every client: {why}."
                raise SqlInvalid(reason=reason, hint=HINT)
        return sum(map(len, payloads)) + key_bytes * len(payloads)

    def consume(self, statement: Consume, bound: BoundParameters, caller: Caller) -> Step:
        """Plan CONSUME: the door reads the messages, and waits for the first."""
        caller.check(Operation.TOPIC_CONSUME)
        topic, limits = self._topics.directory.get(caller.tenant, statement.topic.name), self._topics.settings
        partition = bound.optional_number(statement.partition, "PARTITION")
        if partition is not None:
            topic.check_partition(partition)
        start = Start("earliest") if statement.start is None else bound.start(statement.start)
        if start.kind in ("offset", "after") and partition is None and topic.partitions > 1:
            raise _which_partition(topic, "CONSUME FROM … PARTITION n FROM OFFSET n")
        group = member = None
        if statement.group is not None:
            group, member = self._who(statement.group, statement.member, bound, caller)
        ask = ConsumeRequest(
            topic,
            group,
            member,
            start,
            partition,
            None
            if statement.limit is None
            else bound.number(statement.limit, "LIMIT", 1, limits.server.messages_max),
            0
            if statement.wait is None
            else bound.ms(statement.wait, "WAIT", least=0, most=limits.server.wait_ms_max),
            self._lease_ms(statement, bound),
        )
        return Step("consume", consume=ask)

    def ack(self, statement: Ack, bound: BoundParameters, caller: Caller) -> Step:
        """Plan ACK; leases that are no longer held are an error, once the others are done."""
        topic, group, member = self._member(statement, bound, caller)
        # A lease has its member; one that is named has to be the same.
        named = bound.optional_text(statement.member, "MEMBER")
        leases = self._leases(statement.leases, bound) if statement.leases else None
        upto = None if leases is not None else _upto(topic, statement.upto, bound)
        acks = types.AckRequest(
            group, named if leases is not None else member, caller.principal, leases, upto
        )

        def work() -> StatementResult:
            done = self._commit(lambda staging: self._topics.groups.stage_ack(staging, topic, acks))
            _check_lost(done.lost, {"acked": done.acked})
            return result_of_rows(
                _ACKED,
                [(number, done.by_partition[number], at) for number, at in sorted(done.position.items())],
            )

        return Step("ack", work=work, is_short=True)

    def nack(self, statement: Nack, bound: BoundParameters, caller: Caller) -> Step:
        """Plan NACK."""
        topic, group, _ = self._member(statement, bound, caller)
        named = bound.optional_text(statement.member, "MEMBER")
        leases = self._leases(statement.leases, bound)
        delay_ms = 0
        if statement.delay is not None:
            delay_ms = bound.ms(statement.delay, "DELAY", least=0, most=DELAY_MS_MAX)
        reason = bound.optional_text(statement.reason, "REASON")
        if reason is not None and len(reason) > REASON_CHARS_MAX:
            too_long = f"REASON has {len(reason)} characters, and {REASON_CHARS_MAX} is the most."
            raise SqlInvalid(reason=too_long, hint="Say it shorter; the log of the consumer has room.")
        request = types.NackRequest(
            group, named, caller.principal, leases, delay_ms, reason, dead=statement.dead
        )

        def work() -> StatementResult:
            done = self._commit(lambda staging: self._topics.groups.stage_nack(staging, topic, request))
            _check_lost(done.lost, {"nacked": done.nacked, "dead": done.dead})
            return result_of_rows(_NACKED, [(done.nacked, done.dead)])

        return Step("ack", work=work, is_short=True)

    def extend(self, statement: Extend, bound: BoundParameters, caller: Caller) -> Step:
        """Plan EXTEND."""
        topic, group, _ = self._member(statement, bound, caller)
        named = bound.optional_text(statement.member, "MEMBER")
        leases = self._leases(statement.leases, bound)
        longer = types.ExtendRequest(group, named, caller.principal, leases, self._lease_ms(statement, bound))

        def work() -> StatementResult:
            done = self._commit(lambda staging: self._topics.groups.stage_extend(staging, topic, longer))
            _check_lost(done.lost, {"extended": done.extended})
            return result_of_rows(_EXTENDED, [(done.extended, done.expires_us)])

        return Step("ack", work=work, is_short=True)

    def _member(
        self, statement: Ack | Nack | Extend, bound: BoundParameters, caller: Caller
    ) -> tuple[Topic, str, str]:
        """Return topic, group and member, and mark the member as seen."""
        caller.check(Operation.TOPIC_ACK)
        topic = self._topics.directory.get(caller.tenant, statement.topic.name)
        group, member = self._who(statement.group, statement.member, bound, caller)
        self._topics.groups.record_activity(topic, group, member)
        return topic, group, member

    def _who(
        self, group: Text, member: Text | None, bound: BoundParameters, caller: Caller
    ) -> tuple[str, str]:
        """Return the group and the member; the token's user where no member is named."""
        name = bound.optional_text(member, "MEMBER")
        return (
            types.check_group_name(bound.text(group, "GROUP")),
            types.check_member_name(caller.principal.full_name if name is None else name),
        )

    def _leases(self, leases: Sequence[Text], bound: BoundParameters) -> list[str]:
        return bound.leases(leases, self._topics.settings.server.messages_max)

    def _lease_ms(self, statement: Consume | Extend, bound: BoundParameters) -> int | None:
        if statement.lease is None:
            return None
        return bound.ms(statement.lease, "LEASE", least=1, most=self._topics.settings.topics.lease_ms_max)

    def _commit(self, change: Callable[[Staging], T]) -> T:
        return self._topics.committer.submit(change).result()


def lost_leases(lost: Sequence[str], done: Mapping[str, Any]) -> LeaseLost:
    """Return the error that names leases which are no longer held, and what was done with the others."""
    hint = "They expired, were acknowledged or nacked before, are another member's, or are no leases. "
    return LeaseLost(**done, leases=list(lost), hint=f"{hint}The others are done.")


def _check_lost(lost: Sequence[str], done: Mapping[str, Any]) -> None:
    if lost:
        raise lost_leases(lost, done)


def _sender(statement: Publish, bound: BoundParameters, user: str) -> Sender | None:
    if statement.producer is None or statement.sequence is None:
        return None
    producer = bound.text(statement.producer, "PRODUCER")
    if len(producer) > PRODUCER_CHARS_MAX or not producer.isprintable():
        reason = f"PRODUCER is a text of 1 to {PRODUCER_CHARS_MAX} printable characters."
        raise SqlInvalid(reason=reason, hint="Choose a shorter one, without control characters.")
    return Sender(producer, bound.number(statement.sequence, "SEQUENCE", 0, SEQUENCE_MAX), user)


def _which_partition(topic: Topic, syntax: str) -> SqlInvalid:
    return SqlInvalid(
        reason=f"topic '{topic.name}' has {topic.partitions} partitions, and an offset belongs to one.",
        hint=f"Say which: {syntax}.",
    )


def _upto(topic: Topic, upto: Sequence[Upto], bound: BoundParameters) -> dict[int, int]:
    found: dict[int, int] = {}
    for one in upto:
        if one.partition is None and topic.partitions > 1:
            raise _which_partition(topic, "ACK … PARTITION n UPTO OFFSET n")
        partition = 0 if one.partition is None else bound.number(one.partition, "PARTITION")
        if topic.check_partition(partition) in found:
            raise SqlInvalid(reason=f"partition {partition} is named twice.", hint="Name it once.")
        found[partition] = bound.number(one.offset, "OFFSET")
    return found
