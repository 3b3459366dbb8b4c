"""A producer: numbers the messages of a topic, so that what is sent twice is stored once.

Made from _async/producer.py by scripts/generate_sdk.py: change that one, and run it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from tidegate.errors import TidegateError
from tidegate.sdk._sync.transport import Transport
from tidegate.sdk.arrow import stream_of
from tidegate.sdk.blocking.concurrency import Lock
from tidegate.sdk.requests import API, ARROW_STREAM, Request, decoded, encoded, message_list
from tidegate.sdk.sequence import ProducerSequence
from tidegate.sdk.types import Outgoing, Placed

if TYPE_CHECKING:
    import pyarrow as pa


class Producer:
    """Publishes in order, one batch after the other; callers may share it and take turns.

    A publish that is lost on the way is sent again under the same number. When it raises after all, the batch
    is in doubt: only the same messages may be published next (see `sequence` and the guide).
    """

    def __init__(self, transport: Transport, path: str, numbering: ProducerSequence) -> None:
        self._transport = transport
        self._path = path
        self._numbering = numbering
        self._turn = Lock()

    @property
    def producer_id(self) -> str:
        """The name under which the server knows this producer."""
        return self._numbering.producer_id

    @property
    def sequence(self) -> int:
        """The number of the next message; all before it are stored."""
        return self._numbering.sequence

    def publish(self, messages: Iterable[Outgoing | dict[str, Any]]) -> list[Placed]:
        """Store messages exactly once; give each one's place once all are on the disk."""
        listed = message_list(messages)
        with self._turn:
            number = {"producerId": self.producer_id, "sequence": self.sequence}
            content = encoded({"messages": listed, **number})
            return self._publish(Request("POST", f"{API}{self._path}", content, repeatable=True))

    def publish_arrow(self, table: pa.Table | pa.RecordBatch) -> list[Placed]:
        """Store the rows of a table exactly once: columns `payload` (JSON text), `key` and `partition`."""
        content = stream_of(table)
        with self._turn:
            number = urlencode({"producerId": self.producer_id, "sequence": self.sequence})
            path = f"{API}{self._path}?{number}"
            request = Request("POST", path, content, content_type=ARROW_STREAM, repeatable=True)
            return self._publish(request)

    def _publish(self, request: Request) -> list[Placed]:
        # In doubt from here on: Ctrl-C leaves it so as well.
        self._numbering.begin(request.content or b"")
        course = self._transport.course_of(request)
        try:
            reply = self._transport.send(request, course)
        except TidegateError:
            if not course.may_have_arrived:
                self._numbering.refused()
            raise
        placed: list[Placed] = decoded(reply.content, self._path)["offsets"]
        self._numbering.stored(len(placed))
        return placed
