"""Runs a body over the messages of a consumer, with either client: what tests of both kinds share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import tidegate
from tidegate.sdk.types import GroupDict, MessageDict

# One question waits this long at most: a consumer that ends waits for its last one.
WAIT_MS = 100
# What a test waits for at most; it goes on as soon as it is there.
SECONDS_MAX = 60.0

Body = Callable[[Any, MessageDict], object]


@dataclass(frozen=True)
class Where:
    """A topic of a server, and a group of it."""

    url: str
    token: str
    topic: str
    group: str = "g"


def consume_blocking(where: Where, body: Body, **options: Any) -> list[MessageDict]:
    """Call `body(consumer, message)` for each message until it returns True."""
    given: list[MessageDict] = []
    with (
        tidegate.connect(where.url, token=where.token) as client,
        client.topic(where.topic).consumer(where.group, **{"wait_ms": WAIT_MS, **options}) as consumer,
    ):
        for message in consumer:
            given.append(message)
            if body(consumer, message):
                break
    return given


def consume_async(where: Where, body: Body, **options: Any) -> list[MessageDict]:
    """Do the same with asyncio; the body runs in a thread, so that it may block."""
    given: list[MessageDict] = []

    async def follow() -> None:
        options.setdefault("wait_ms", WAIT_MS)
        async with (
            tidegate.connect_async(where.url, token=where.token) as client,
            client.topic(where.topic).consumer(where.group, **options) as consumer,
        ):
            async for message in consumer:
                given.append(message)
                if await asyncio.to_thread(body, consumer, message):
                    break

    asyncio.run(follow())
    return given


BOTH = pytest.mark.parametrize("consume", [consume_blocking, consume_async], ids=["blocking", "asyncio"])


def group_of(client: tidegate.Client, topic: str, group: str = "g") -> GroupDict:
    return next(shown for shown in client.topic(topic).groups() if shown["group"] == group)


def payloads(messages: list[MessageDict]) -> list[Any]:
    return [message["payload"] for message in messages]


def wait_until(holds: Callable[[], object]) -> None:
    """Wait for something that happens in a moment."""
    ticking = threading.Event()
    for _ in range(int(SECONDS_MAX / 0.01)):
        if holds():
            return
        ticking.wait(0.01)
    raise AssertionError("it did not happen")
