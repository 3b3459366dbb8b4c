"""Runs an agent over the messages of a topic, with either client: what tests of agents share."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import IO, Any

import pytest

import tidegate
from tidegate.sdk.types import MessageDict
from tidegate.testing.server import RunningServer

# A child that takes longer than this hangs.
CHILD_SECONDS_MAX = 120.0

Work = Callable[[Any, MessageDict], object]


def run_blocking(server: RunningServer, topic: str, work: Work, **options: Any) -> None:
    with tidegate.connect(server.url, token=server.token) as client:
        agent = client.topic(topic).agent("ai", **options)
        agent.run(lambda message: work(agent, message))


def run_async(server: RunningServer, topic: str, work: Work, **options: Any) -> None:
    async def run() -> None:
        async with tidegate.connect_async(server.url, token=server.token) as client:
            agent = client.topic(topic).agent("ai", **options)

            @agent.on
            async def answer(message: MessageDict) -> object:
                return await asyncio.to_thread(work, agent, message)

            await agent.run()

    asyncio.run(run())


BOTH = pytest.mark.parametrize("run", [run_blocking, run_async], ids=["blocking", "asyncio"])
Run = Callable[..., None]


class Count:
    """Stops an agent when it has seen so many messages."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._guard = threading.Lock()
        self.seen: list[tuple[Any, Any]] = []

    def __call__(self, agent: Any, message: MessageDict) -> None:
        with self._guard:
            self.seen.append((message["payload"], message["deliveries"]))
            self._left -= 1
            if self._left == 0:
                agent.stop()


# A line goes out in one piece: two threads write.
PROGRAM = """
import faulthandler, signal, sys, time, tidegate
faulthandler.register(signal.SIGUSR1)
client = tidegate.connect(sys.argv[1], token=sys.argv[2])
tuning = {"workers": 2, "lease_ms": int(sys.argv[5])}
agent = client.topic(sys.argv[3]).agent("ai", answers=sys.argv[3] + "_answers", **tuning)
@agent.on
def answer(message):
    print(f"{message['payload']}\\n", end="", flush=True)
    time.sleep(float(sys.argv[4]))
    return message["payload"]
agent.run()
print("ended", flush=True)
"""


@contextlib.contextmanager
def program(
    server: RunningServer, topic: str, seconds: float, lease_ms: int = 60_000
) -> Iterator[tuple[Any, IO[str]]]:
    """Run an agent as a process of its own, which takes so long for a message; give it and what it says.

    It is killed at the end, and when it hangs: whoever reads what it says then comes to the end of that.
    """
    command = [sys.executable, "-c", PROGRAM, server.url, server.token, topic]
    command += [str(seconds), str(lease_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as child:
        watch = threading.Timer(CHILD_SECONDS_MAX, _killed, [child])
        watch.start()
        try:
            assert child.stdout is not None
            yield child, child.stdout
        finally:
            watch.cancel()
            child.kill()


def _killed(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGUSR1)  # where each of its threads is goes to the test's output
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(1)
    child.kill()
