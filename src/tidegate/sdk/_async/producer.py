"""The idempotent producer: its messages have numbers, so that a repeated request stores nothing twice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from tidegate.errors import TidegateError
from tidegate.sdk._async.concurrency import Lock
from tidegate.sdk._async.transport import Transport
from tidegate.sdk.arrow import stream_of
from tidegate.sdk.requests import API, ARROW_STREAM, Request, decoded, encoded, message_list
from tidegate.sdk.sequence import ProducerSequence
from tidegate.sdk.types import NewMessageDict, PublishedMessageDict

if TYPE_CHECKING:
    import pyarrow as pa


class Producer:
    """Publishes in order, one batch after the other; concurrent callers may share it and take turns.

    A publish whose request or answer is lost is sent again under the same number. When it raises after all,
    the batch is in doubt: only the same messages may be published next (see `sequence` and the guide).
    """

    def __init__(self, transport: Transport, path: str, sequence: ProducerSequence) -> None:
        self._transport = transport
        self._path = path
        self._sequence = sequence
        self._lock = Lock()

    @property
    def producer_id(self) -> str:
        """The name under which the server knows this producer."""
        return self._sequence.producer_id

    @property
    def sequence(self) -> int:
        """The number of the next message; all before it are stored."""
        return self._sequence.sequence

    async def publish(
        self, messages: Iterable[NewMessageDict | dict[str, Any]]
    ) -> list[PublishedMessageDict]:
        """Store messages exactly once; return their positions once all are on the disk."""
        checked = message_list(messages)
        async with self._lock:
            number = {"producerId": self.producer_id, "sequence": self.sequence}
            content = encoded({"messages": checked, **number})
            return await self._publish(Request("POST", f"{API}{self._path}", content, repeatable=True))

    async def publish_arrow(self, table: pa.Table | pa.RecordBatch) -> list[PublishedMessageDict]:
        """Store the rows of a table exactly once: columns `payload` (JSON text), `key` and `partition`."""
        content = stream_of(table)
        async with self._lock:
            number = urlencode({"producerId": self.producer_id, "sequence": self.sequence})
            path = f"{API}{self._path}?{number}"
            request = Request("POST", path, content, content_type=ARROW_STREAM, repeatable=True)
            return await self._publish(request)

    async def _publish(self, request: Request) -> list[PublishedMessageDict]:
        # In doubt from here on: a call that is interrupted leaves it so as well.
        self._sequence.begin(request.content or b"")
        retry_state = self._transport.new_retry_state(request)
        try:
            reply = await self._transport.send(request, retry_state)
        except TidegateError:
            if not retry_state.may_have_arrived:
                self._sequence.abort()
            raise
        positions: list[PublishedMessageDict] = decoded(reply.content, self._path)["offsets"]
        self._sequence.commit(len(positions))
        return positions
