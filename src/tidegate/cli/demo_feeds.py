"""What moves in the demo beside the status: who is here, who visits, what the agent answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidegate.cli.exchanges import ANSWERS_TOPIC, ExchangeFeed
from tidegate.cli.presence import PresenceFeed
from tidegate.cli.visits import VisitFeed

if TYPE_CHECKING:
    from tidegate.cli.view import Picture
    from tidegate.model.clock import Clock
    from tidegate.sdk.client import Client


class DemoFeeds:
    """Follows all of it from the first picture of a demo on; one thread calls it."""

    def __init__(self, connect: Callable[[], Client], clock: Clock) -> None:
        self._presence = PresenceFeed(connect, clock)
        self._exchanges = ExchangeFeed(connect)
        self._visits = VisitFeed(connect)
        self._is_started = False

    def drawn(self, picture: Picture) -> Picture:
        """Give the picture with the demo in it; as it is where the server has no demo."""
        if picture.status is None or not is_demo(picture.status):
            return picture
        if not self._is_started:
            self._is_started = True
            self._presence.start()
            self._exchanges.start()
            self._visits.start()
        return replace(
            picture,
            people=self._presence.here(),
            exchanges=self._exchanges.newest(),
            visits=self._visits.now(),
        )

    def stop(self) -> None:
        """Follow no more."""
        if self._is_started:
            self._presence.stop()
            self._exchanges.stop()
            self._visits.stop()


def is_demo(status: Mapping[str, Any]) -> bool:
    """Say whether a status is that of the demo: it has the topic that the agent answers into."""
    return any(topic["name"] == ANSWERS_TOPIC for topic in status["topics"])
