"""One subscription: a SELECT that one socket follows, and its position."""

from __future__ import annotations

from typing import Protocol

from tidegate.errors import TidegateError
from tidegate.live.change_filter import ChangeFilter
from tidegate.live.wire import change_front


class Sink(Protocol):
    """The receiver of the messages of subscriptions: a socket; belongs to the event loop."""

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be written until it has sent what it has."""
        ...

    def write(self, frames: bytes) -> None:
        """Take messages, full or not."""
        ...

    def fell_behind(self, subscription: Subscription) -> None:
        """Called when a subscription waits at its position for `LiveHub.catch_up`."""
        ...

    def lost(self, subscription: Subscription) -> None:
        """Called when changes that it has not seen are gone: it needs a new snapshot."""
        ...

    def failed(self, subscription: Subscription, problem: TidegateError) -> None:
        """Called when a subscription ended with an error."""
        ...


class Subscription:
    """A subscription of the event loop; `seq` is the last change that its socket was sent, or need not be."""

    __slots__ = ("change_filter", "front", "id", "schema_id", "seq", "sink", "table_id", "user")

    def __init__(
        self,
        subscription_id: str,
        sink: Sink,
        table_id: int,
        user: str,
        change_filter: ChangeFilter,
        schema_id: int = 1,
    ) -> None:
        self.id = subscription_id
        self.sink = sink
        self.table_id = table_id
        self.user = user
        self.change_filter = change_filter
        # The version of the columns that the filter was compiled for.
        self.schema_id = schema_id
        self.front = change_front(subscription_id)
        self.seq = 0
