"""Where tokens are made: takes randomness, gives a text once, keeps its digest."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, insert

from tidegate.catalog.people import digest_of
from tidegate.catalog.tables import TOKENS
from tidegate.errors import RequestInvalid
from tidegate.model.clock import Clock

LIFETIME_SECONDS_MAX = 100 * 366 * 86_400  # a century: more is a mistake, and no end is None
_ID_BYTES = 8
_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class MadeToken:
    """A new token; its text is shown once and is nowhere else."""

    id: str
    text: str
    expires_us: int | None


class Mint:
    """Makes tokens. Threads: any."""

    def __init__(self, clock: Clock, random_bytes: Callable[[int], bytes]) -> None:
        self._clock = clock
        self._random_bytes = random_bytes

    def insert(
        self,
        connection: Connection,
        whose: tuple[str, str],
        kind: str,
        label: str,
        expires_us: int | None,
        made_with: str = "",
    ) -> MadeToken:
        """Insert a new token for a tenant's user in a transaction of the caller.

        `made_with` is the token that a session stands on: it ends when that one does.
        """
        now_us = self._clock.now_us()
        token_id = self._random_bytes(_ID_BYTES).hex()
        secret = secret_text(self._random_bytes(_SECRET_BYTES))
        made = MadeToken(token_id, f"tg_{token_id}_{secret}", expires_us)
        values = {"id": token_id, "tenant": whose[0], "user": whose[1], "kind": kind, "label": label}
        values |= {"home": "", "made_with": made_with, "digest": digest_of(made.text), "ended_by": ""}
        connection.execute(insert(TOKENS).values(**values, created_us=now_us, expires_us=made.expires_us))
        return made


def secret_text(secret: bytes) -> str:
    """Give random bytes as text that fits into a header and into an address."""
    return base64.urlsafe_b64encode(secret).decode("ascii").rstrip("=")


def expiry_us(now_us: int, lifetime_seconds: float | None) -> int | None:
    """Give the moment when something that lives that long from now ends."""
    if lifetime_seconds is None:
        return None
    if not 0 < lifetime_seconds <= LIFETIME_SECONDS_MAX:
        raise RequestInvalid(reason="A lifetime is more than nothing and at most a century.")
    return now_us + max(1, round(lifetime_seconds * 1_000_000))
