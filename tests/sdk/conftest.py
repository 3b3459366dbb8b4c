"""A real server for the tests of the client, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tidegate
from tidegate.testing.server import RunningServer, running_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("sdk") / "home") as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[tidegate.Client]:
    with tidegate.connect(home=server.home) as connected:
        yield connected
