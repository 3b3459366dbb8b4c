"""Fixtures of the table tests: each runs on RocksDB and on its in-memory twin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.test_engine import KINDS
from tests.tables.bench import Bench, build


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made = build(request.param, tmp_path / "engine")
    yield made
    made.close()
