"""Every example runs, on a real server and in Spark, and leaves the rows that it promises."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import pytest

import tidegate
from tidegate.pipeline.definitions import Context, build_writer, load_pipeline
from tidegate.storage.home import Home
from tidegate.testing.server import running_server

EXAMPLES = Path(__file__).parents[2] / "examples"
DEMO = Path(tidegate.__file__).parent / "cli" / "demo_pipeline.py"
EVENT = {"customer": "ada", "amount": 12.5}
READING = {
    "entity": "m",
    "measured_at": "2026-01-01T00:00:00Z",
    "voltage": 230.0,
    "current": 1.0,
    "late": False,
}


@dataclass(frozen=True)
class Case:
    """A pipeline, a message for its topic, and what its table must hold then."""

    file: Path
    topic: str
    payload: dict[str, Any]
    table: str
    expected: dict[str, Any]


CASES = [
    Case(EXAMPLES / "first_pipeline.py", "app.events", EVENT, "events", {"customer": "ada", "amount": 12.5}),
    Case(DEMO, "demo.readings", READING, "readings", {"entity": "m", "voltage": 230.0}),
]


@pytest.mark.spark
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.table)
def test_an_example_fills_its_table(
    spark: Any,
    spark_home: Path,
    home: Path,
    case: Case,
) -> None:
    with running_server(home) as server, tidegate.connect(server.url, token=server.token) as client:
        spark_home.unlink(missing_ok=True)
        spark_home.symlink_to(home)
        client.topics.create(case.topic, partitions=2).publish([{"payload": case.payload}])
        context = Context(spark, Home.existing(home))
        writer = build_writer(load_pipeline(case.file), context)
        writer.trigger(availableNow=True).start(
            checkpointLocation=str(home / "checkpoints" / case.table)
        ).awaitTermination()
        (row,) = deltalake.DeltaTable(str(home / "lake" / case.table)).to_pyarrow_table().to_pylist()
        assert {name: row[name] for name in case.expected} == case.expected


def test_no_example_is_left_out() -> None:
    assert [case.file for case in CASES if case.file.parent == EXAMPLES] == sorted(EXAMPLES.glob("*.py"))
