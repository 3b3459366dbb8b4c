"""The consumer: the messages of a group one by one, or as Arrow tables.

Made from _async/consumer.py by scripts/generate_sdk.py: change that one, and run it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tidegate.errors import RequestInvalid
from tidegate.sdk._sync.prefetch import Prefetcher
from tidegate.sdk._sync.transport import Transport
from tidegate.sdk.agent_policy import ConsumerOptions, reason_of
from tidegate.sdk.types import MessageDict

if TYPE_CHECKING:
    import pyarrow as pa

LEFT = "The loop was left before the message was done."


class MessageBatch:
    """Messages as an Arrow table, acknowledged when the next batch is requested, or at `ack`."""

    def __init__(self, prefetcher: Prefetcher, table: pa.Table) -> None:
        self._prefetcher = prefetcher
        self.table = table
        self.leases: list[str] = table.column("lease").to_pylist()

    @property
    def num_rows(self) -> int:
        """The number of messages."""
        return len(self.leases)

    def ack(self) -> None:
        """Acknowledge all of it now; raise LeaseLost for messages that were not held any more."""
        self._prefetcher.acknowledge(self.leases)

    def nack(self, *, delay_ms: int = 0, reason: str | None = None) -> None:
        """Nack all of it: it is delivered again after the delay, and counts as a failed delivery."""
        self._prefetcher.nack({"leases": self.leases, "delayMs": delay_ms, "reason": reason})


class Consumer:
    """The messages of a group, iterated by one caller inside its context; any thread may stop it.

    A message counts as done when the next one is requested, and is acknowledged then, not before. An
    exception that leaves the context nacks the message in work, to be delivered again after a pause; `break`
    and Ctrl-C return it at once. Buffered messages are returned to the group in any case.
    """

    def __init__(self, transport: Transport, path: str, options: ConsumerOptions) -> None:
        self._transport = transport
        self._path = path
        self._options = options
        self._prefetcher: Prefetcher | None = None
        self._is_stopped = False
        self._current: MessageDict | None = None
        self._abandoned: MessageDict | None = None
        self._batch: MessageBatch | None = None

    @property
    def group(self) -> str:
        """The group whose messages these are."""
        return self._options.group

    @property
    def member(self) -> str:
        """The name under which the group lists this consumer."""
        return self._options.member

    @property
    def missed(self) -> dict[int, int]:
        """How many messages of each partition were removed before the group fetched them."""
        return {} if self._prefetcher is None else self._prefetcher.missed

    def stop(self) -> None:
        """End the iteration before its next message. Any thread and signal handlers may call it."""
        self._is_stopped = True
        if self._prefetcher is not None:
            self._prefetcher.stop()

    def ack(self, message: MessageDict) -> None:
        """Acknowledge a message now; raise LeaseLost when it was not held any more."""
        self._clear_current(message)
        self._open_prefetcher().acknowledge([str(message["lease"])])

    def nack(self, message: MessageDict, *, delay_ms: int = 0, reason: str | None = None) -> None:
        """Nack a message: it is delivered again after the delay, and counts as a failed delivery."""
        self._clear_current(message)
        body = {"leases": [message["lease"]], "delayMs": delay_ms, "reason": reason}
        self._open_prefetcher().nack(body)

    def batches(self) -> Iterator[MessageBatch]:
        """Yield Arrow tables of up to `limit` messages; each is done when the next is requested."""
        prefetcher = self._open_prefetcher()
        prefetcher.release_buffered()
        while True:
            if self._batch is not None:
                # Acknowledged before more is fetched: a server does the two faster one after the other.
                batch, self._batch = self._batch, None
                prefetcher.settle(batch.leases)
            page = prefetcher.page(self._options.limit)
            if page is None:
                prefetcher.check()
                return
            self._batch = MessageBatch(prefetcher, page.table)
            yield self._batch

    def __iter__(self) -> Self:
        self._open_prefetcher().start_fetching()
        # A loop that begins while a message is in work: the loop before was left in the middle of it.
        self._abandoned, self._current = self._current, None
        return self

    def __next__(self) -> MessageDict:
        prefetcher = self._open_prefetcher()
        if self._current is not None:
            prefetcher.done([str(self._current["lease"])])
            self._current = None
        if self._abandoned is not None:
            message, self._abandoned = self._abandoned, None
            prefetcher.fail(message, RequestInvalid(reason=LEFT))
        self._current = prefetcher.next()
        if self._current is None:
            prefetcher.check()
            raise StopIteration
        return self._current

    def __enter__(self) -> Self:
        self._prefetcher = Prefetcher(self._transport, self._path, self._options)
        if self._is_stopped:
            self._prefetcher.stop()
        self._prefetcher.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        prefetcher = self._open_prefetcher()
        try:
            if isinstance(problem, Exception):
                self._fail(prefetcher, problem)
        finally:
            prefetcher.close()

    def _fail(self, prefetcher: Prefetcher, problem: Exception) -> None:
        if self._current is not None:
            prefetcher.fail(self._current, problem)
        if self._batch is not None:
            deliveries = max(self._batch.table.column("deliveries").to_pylist())
            pause_ms = self._options.retry.pause_ms(deliveries)
            body: dict[str, Any] = {"leases": self._batch.leases, "delayMs": pause_ms}
            prefetcher.nack(body | {"reason": reason_of(problem)})

    def _clear_current(self, message: MessageDict) -> None:
        if self._current is not None and self._current["lease"] == message["lease"]:
            self._current = None

    def _open_prefetcher(self) -> Prefetcher:
        if self._prefetcher is None:
            hint = "So that what is not done goes back to the group at the end."
            raise RequestInvalid(reason="A consumer is used in a `with`.", hint=hint)
        return self._prefetcher
