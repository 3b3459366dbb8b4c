"""A consumer: gives a group's messages one by one, each again until it is done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tidegate.errors import RequestInvalid
from tidegate.sdk._async.prefetch import Prefetcher
from tidegate.sdk._async.transport import Transport
from tidegate.sdk.agent_policy import ConsumerOptions, reason_of
from tidegate.sdk.types import Message

if TYPE_CHECKING:
    import pyarrow as pa

LEFT = "The loop was left before the message was done."


class MessageBatch:
    """Messages as an Arrow table, done when the next batch is asked for, or at `ack`."""

    def __init__(self, intake: Prefetcher, table: pa.Table) -> None:
        self._intake = intake
        self.table = table
        self.leases: list[str] = table.column("lease").to_pylist()

    @property
    def num_rows(self) -> int:
        """The number of messages."""
        return len(self.leases)

    async def ack(self) -> None:
        """Acknowledge all of it now; raises LeaseLost for messages that were not held any more."""
        await self._intake.acknowledge(self.leases)

    async def nack(self, *, delay_ms: int = 0, reason: str | None = None) -> None:
        """Give all of it back: it comes again after the delay, and counts as a failed delivery."""
        await self._intake.give_back({"leases": self.leases, "delayMs": delay_ms, "reason": reason})


class Consumer:
    """The messages of a group, to be iterated by one task in an `async with`; any thread may stop it.

    A message counts as done when the next one is asked for, and is acknowledged then, not before. An
    exception that leaves the `with` gives the message in work back, to come again after a pause; `break` and
    Ctrl-C give it back at once. Messages that wait here go back to the group in any case.
    """

    def __init__(self, transport: Transport, path: str, asking: ConsumerOptions) -> None:
        self._transport = transport
        self._path = path
        self._asking = asking
        self._intake: Prefetcher | None = None
        self._is_stopped = False
        self._current: Message | None = None
        self._left: Message | None = None
        self._batch: MessageBatch | None = None

    @property
    def group(self) -> str:
        """The group whose messages these are."""
        return self._asking.group

    @property
    def member(self) -> str:
        """The name under which the group lists this consumer."""
        return self._asking.member

    @property
    def missed(self) -> dict[int, int]:
        """How many messages of each partition were removed before the group took them."""
        return {} if self._intake is None else self._intake.missed

    def stop(self) -> None:
        """End the iteration before its next message. Any thread and signal handlers may call it."""
        self._is_stopped = True
        if self._intake is not None:
            self._intake.stop()

    async def ack(self, message: Message) -> None:
        """Acknowledge a message now; raises LeaseLost when it was not held any more."""
        self._settled(message)
        await self._opened().acknowledge([str(message["lease"])])

    async def nack(self, message: Message, *, delay_ms: int = 0, reason: str | None = None) -> None:
        """Give a message back: it comes again after the delay, and counts as a failed delivery."""
        self._settled(message)
        body = {"leases": [message["lease"]], "delayMs": delay_ms, "reason": reason}
        await self._opened().give_back(body)

    async def batches(self) -> AsyncIterator[MessageBatch]:
        """Iterate over Arrow tables of up to `limit` messages; each is done when the next is asked for."""
        intake = self._opened()
        await intake.release_waiting()
        while True:
            if self._batch is not None:
                # Told before more is asked for: a server does the two quicker one after the other.
                batch, self._batch = self._batch, None
                await intake.settle(batch.leases)
            page = await intake.page(self._asking.limit)
            if page is None:
                intake.check()
                return
            self._batch = MessageBatch(intake, page.table)
            yield self._batch

    def __aiter__(self) -> Self:
        self._opened().follow()
        # A loop that begins while a message is in work: the one before was left in the middle of it.
        self._left, self._current = self._current, None
        return self

    async def __anext__(self) -> Message:
        intake = self._opened()
        if self._current is not None:
            intake.done([str(self._current["lease"])])
            self._current = None
        if self._left is not None:
            message, self._left = self._left, None
            await intake.failed(message, RequestInvalid(reason=LEFT))
        self._current = await intake.next()
        if self._current is None:
            intake.check()
            raise StopAsyncIteration
        return self._current

    async def __aenter__(self) -> Self:
        self._intake = Prefetcher(self._transport, self._path, self._asking)
        if self._is_stopped:
            self._intake.stop()
        await self._intake.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        intake = self._opened()
        try:
            if isinstance(problem, Exception):
                await self._failed(intake, problem)
        finally:
            await intake.close()

    async def _failed(self, intake: Prefetcher, problem: Exception) -> None:
        if self._current is not None:
            await intake.failed(self._current, problem)
        if self._batch is not None:
            deliveries = max(self._batch.table.column("deliveries").to_pylist())
            pause_ms = self._asking.retry.pause_ms(deliveries)
            body: dict[str, Any] = {"leases": self._batch.leases, "delayMs": pause_ms}
            await intake.give_back(body | {"reason": reason_of(problem)})

    def _settled(self, message: Message) -> None:
        if self._current is not None and self._current["lease"] == message["lease"]:
            self._current = None

    def _opened(self) -> Prefetcher:
        if self._intake is None:
            hint = "So that what is not done goes back to the group at the end."
            raise RequestInvalid(reason="A consumer is used in a `with`.", hint=hint)
        return self._intake
