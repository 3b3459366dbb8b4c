"""Following a topic: takes what is published from now on and hands it over, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.sdk.client import Client

WAIT_MS = 1000  # how long a question for more may wait, and with it whoever stops
RETRY_SECONDS = 1.0  # while there is no server, or the topic is not made yet


class TopicFollower:
    """Hands over the payloads of a topic's new messages until it is told to stop."""

    def __init__(self, connect: Callable[[], Client], topic: str, take: Callable[[list[Any]], None]) -> None:
        """`take` is called in the follower's thread, with the payloads in their order."""
        self._connect = connect
        self._topic = topic
        self._take = take
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"follows-{topic}", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """Follow no more; a question under way is left to itself."""
        self._leave.set()

    def _run(self) -> None:
        while not self._leave.is_set():
            try:
                self._follow()
            except TidegateError:
                # There is no server or no topic yet, or not any more: the view says so by itself.
                self._leave.wait(RETRY_SECONDS)

    def _follow(self) -> None:
        with self._connect() as client:
            start: str | dict[str, Any] = "latest"
            while not self._leave.is_set():
                page = client.topic(self._topic).consume(start, wait_ms=WAIT_MS)
                start = {"offsets": page["nextOffsets"]}
                self._take([message["payload"] for message in page["messages"]])
