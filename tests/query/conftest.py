"""A lake in a temporary folder and a way to ask it; and a home with tables and streams beside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.query.bench import Bench
from tidegate.query.duckdb.engine import LakeQuery
from tidegate.query.duckdb.session import QueryLimits
from tidegate.storage.lake.tables import Lake


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "lake"
    folder.mkdir()
    return folder


@pytest.fixture
def query(root: Path) -> Iterator[LakeQuery]:
    opened = LakeQuery(Lake(root), QueryLimits(timeout_seconds=120, rows_max=1000, memory_mb=256))
    yield opened
    opened.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "home")
    yield made
    made.close()
