"""Fixtures of the ingest tests: tables that feed topics, on RocksDB and on its in-memory twin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.test_engine import KINDS, open_engine
from tests.ingest.bench import Bench, build


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made = build(open_engine(request.param, tmp_path / "engine"))
    yield made
    made.close()
    made.engine.close()
