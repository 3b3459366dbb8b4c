"""A pool of children that do what they are told."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.paths import ROOT
from tidegate.query.processes.fork_server import ForkServer
from tidegate.query.processes.pool import ChildPool

CHILD = "tests.query.processes.echo_child"


@pytest.fixture
def fork_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TIDEGATE_TOKEN", "a secret")
    server = ForkServer(CHILD)
    yield server
    server.close()


@pytest.fixture
def pool(fork_server: ForkServer) -> Iterator[ChildPool]:
    opened = ChildPool(fork_server, time.monotonic)
    yield opened
    opened.close()
