"""Subscribers that come, go, resume and read slowly, while several writers write."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.server.live_soak import LIMITS, World
from tidegate.testing.server import RunningServer, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("live") / "home", environ=LIMITS) as running:
        yield running


@pytest.mark.parametrize("seed", [1, 2])
def test_everyone_ends_with_the_rows_of_the_table(server: RunningServer, seed: int) -> None:
    """Case 11: each change once and in order, or told that they lagged; never silent loss."""
    world = World(server, seed)
    asyncio.run(world.round(writers=3, statements=60, subscribers=6))
    assert sum(replica.resumed for replica, _ in world.replicas) > 0
    world.http.close()
