"""What tests of state share: two workers, a checkpoint, and no copy that stays open behind a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoint.batches import OPERATOR, Job, settings
from tests.checkpoint.local.ipc_peers import KINDS
from tests.checkpoint.local.ipc_walk import Worker
from tidegate.checkpoint.local import ipc_client
from tidegate.checkpoint.local.pool import pool
from tidegate.checkpoint.store import CheckpointStore, operator_store


@pytest.fixture
def closed_pool() -> Iterator[None]:
    ipc_client._TOO_MANY_CALLS.clear()
    yield
    pool().close()
    ipc_client._TOO_MANY_CALLS.clear()


@pytest.fixture(params=KINDS)
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Job, Worker]]:
    """This worker and another one, which has done the first batch of both partitions."""
    kind: dict[str, object] = {
        "backend": request.param,
        "snapshot_every_batches": 100,
        "lock_wait_ms_max": 5_000,
    }
    server = Worker(tmp_path, kind)
    for partition in range(2):
        server.do(0, partition)
    yield Job(tmp_path, settings(tmp_path, **kind)), server
    server.end()


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """The checkpoint of the one operator of a job."""
    return operator_store(str(tmp_path / "checkpoint"), OPERATOR)
