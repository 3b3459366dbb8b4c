"""Answers held: counts the bytes of answers that are made and not sent yet, and refuses more than fit."""

from __future__ import annotations

from tidegate.errors import TooManyRequests

# Beyond this answers would take the memory that the rest of the server needs.
ANSWER_BYTES_MAX = 256 * 1024 * 1024
# What a caller who finds no room is asked to wait.
RETRY_SECONDS = 2


class AnswersHeld:
    """The answers that wait for their callers to take them; belongs to the event loop."""

    def __init__(self, bytes_max: int = ANSWER_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.size_bytes = 0

    def check_room(self) -> None:
        """Refuse work whose answer could not be held anyway."""
        if self.size_bytes >= self._bytes_max:
            raise self._refusal()

    def take(self, size_bytes: int) -> None:
        """Count an answer; one that is larger than the bound is held when it is alone."""
        if self.size_bytes and self.size_bytes + size_bytes > self._bytes_max:
            raise self._refusal()
        self.size_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Count an answer no longer: it is sent, or nobody takes it."""
        self.size_bytes -= size_bytes

    def _refusal(self) -> TooManyRequests:
        return TooManyRequests(
            what="bytes of answers wait until their callers take them",
            limit=self._bytes_max,
            retry_after_seconds=RETRY_SECONDS,
            hint=f"Try again in {RETRY_SECONDS} s, or ask for less at once.",
        )
