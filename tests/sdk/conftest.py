"""A real server for the tests of the client, and a client of it."""

from __future__ import annotations

import faulthandler
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

import tidegate
from tidegate.testing.server import RunningServer, running_server

# No test takes nearly as long, on a busy machine neither.
HANGS_AFTER_SECONDS = 300.0


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    """End a test that hangs, in whatever wait it is, and show where its threads are."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hangs(_number: int, _frame: FrameType | None) -> None:
        faulthandler.dump_traceback(2, all_threads=True)
        raise TimeoutError(f"the test has not ended after {HANGS_AFTER_SECONDS:g} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.setitimer(signal.ITIMER_REAL, HANGS_AFTER_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("sdk") / "home") as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[tidegate.Client]:
    with tidegate.connect(home=server.home) as connected:
        yield connected
