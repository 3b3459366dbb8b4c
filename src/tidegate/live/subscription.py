"""A subscription: one SELECT that one socket follows, and how far it came."""

from __future__ import annotations

from typing import Protocol

from tidegate.errors import TidegateError
from tidegate.live.wire import Teller, change_front


class Sink(Protocol):
    """Whoever takes the messages of subscriptions; belongs to the event loop."""

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be written before it took what it has."""
        ...

    def write(self, frames: bytes) -> None:
        """Take messages, whether it is full or not."""
        ...

    def fell_behind(self, subscription: Subscription) -> None:
        """Learn that a subscription waits at its place for `LiveHub.catch_up`."""
        ...

    def lost(self, subscription: Subscription) -> None:
        """Learn that changes it has not seen are gone: it needs a new snapshot."""
        ...

    def failed(self, subscription: Subscription, problem: TidegateError) -> None:
        """Learn that a subscription ended by itself."""
        ...


class Subscription:
    """Belongs to the event loop; `seq` is the last change that its socket was given or need not be."""

    __slots__ = ("front", "id", "schema_id", "seq", "sink", "table_id", "teller", "user")

    def __init__(
        self,
        subscription_id: str,
        sink: Sink,
        table_id: int,
        user: str,
        teller: Teller,
        schema_id: int = 1,
    ) -> None:
        self.id = subscription_id
        self.sink = sink
        self.table_id = table_id
        self.user = user
        self.teller = teller
        # The columns that the teller knows: changes of other columns are not for it.
        self.schema_id = schema_id
        self.front = change_front(subscription_id)
        self.seq = 0
