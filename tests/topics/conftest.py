"""Fixtures of the topic tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.topics.bench import NOW_US, Bench, build
from tidegate.storage.memory import MemoryEngine
from tidegate.testing.clock import ManualClock


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = build(MemoryEngine(), ManualClock(NOW_US))
    yield made
    made.committer.close()
