"""The sequence numbers of a producer's messages.

A sequence number permanently identifies its messages. When the answer to a batch is lost for good, the server
may or may not have stored it; other messages under the same number would then be answered as if they were
stored, and be lost. So the batch in doubt is the only one that may be sent next.
"""

from __future__ import annotations

import secrets

from tidegate.errors import RequestInvalid


def producer_name() -> str:
    """Return a name that no other producer has."""
    return secrets.token_hex(16)


class ProducerSequence:
    """The next sequence number of one producer; used by one caller at a time."""

    def __init__(self, producer_id: str, sequence: int) -> None:
        self.producer_id = producer_id
        self.sequence = sequence
        self._in_doubt: bytes | None = None

    def begin(self, content: bytes) -> None:
        """Use the next number for a batch; refuse another batch than the one in doubt."""
        if self._in_doubt is not None and self._in_doubt != content:
            reason = f"It is unknown whether the messages from number {self.sequence} on are stored."
            hint = "Publish the same messages again, which is safe; or leave them, and take a new producer."
            raise RequestInvalid(reason=reason, hint=hint)
        self._in_doubt = content

    def commit(self, count: int) -> None:
        """Advance past a batch that is stored."""
        self.sequence += count
        self._in_doubt = None

    def abort(self) -> None:
        """Leave the number to the next batch: this one is certainly not stored."""
        self._in_doubt = None
