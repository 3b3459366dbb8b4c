"""A clock that stands still and a store on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.streams.factories import FailingDisk, make_store
from tidegate.streams.store import StreamStore
from tidegate.testing.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> FailingDisk:
    return FailingDisk()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock, disk: FailingDisk) -> Iterator[StreamStore]:
    made = make_store(tmp_path, clock, disk=disk)
    yield made
    disk.write_fault = disk.sync_fault = disk.truncate_fault = disk.rename_fault = None
    made.close()
