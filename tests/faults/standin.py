"""A small operator without our state: proof that the comparison finds a fault, and that it finds none.

The careful one publishes a batch once and replays it. The careless one writes its state as it goes along, so
that an attempt that failed counts twice.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.faults.strikes import Strikes
from tidegate.checkpoint.crash_points import crash_point

OUTPUT = "id long, key string, kind string, n long, total long"
NAME = "ledger"


def standin(rows: Any, checkpoint: str, strikes: Strikes, *, careful: bool) -> Any:
    """Count per key."""
    folder = Path(checkpoint) / "standin"
    return rows.repartition(2, "key").mapInArrow(_worker(folder, strikes, careful=careful), OUTPUT)


def read_standin(checkpoint: Path) -> dict[str, Any]:
    """Return the newest state of all partitions."""
    state: dict[str, Any] = {}
    for partition in (checkpoint / "standin").iterdir():
        heads = sorted(partition.glob("v*.json")) or [partition / "state.json"]
        state |= json.loads(heads[-1].read_text())["state"]
    return state


def _worker(
    folder: Path, strikes: Strikes, *, careful: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition, batch = context.partitionId(), int(context.getLocalProperty("streaming.sql.batchId"))
        strikes.arm(batch)
        rows = [row for part in batches for row in part.to_pylist()]
        yield from _out((_careful if careful else _careless)(folder / str(partition), batch, rows, strikes))

    return work


def _careful(folder: Path, batch: int, rows: list[dict[str, Any]], strikes: Strikes) -> list[dict[str, Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    head, before = folder / f"v{batch:06d}.json", folder / f"v{batch - 1:06d}.json"
    if not head.exists():
        state = json.loads(before.read_text())["state"] if batch else {}
        out = _count(state, rows, folder, batch, strikes)
        crash_point("worked", int(folder.name), batch)
        _publish(head, {"state": state, "out": out})
        crash_point("head-linked", int(folder.name), batch)
    return list(json.loads(head.read_text())["out"])


def _publish(head: Path, content: Any) -> None:
    descriptor, name = tempfile.mkstemp(dir=head.parent)
    with os.fdopen(descriptor, "w") as opened:
        json.dump(content, opened)
    try:
        Path(head).hardlink_to(name)
    finally:
        Path(name).unlink()


def _careless(folder: Path, batch: int, rows: list[dict[str, Any]], strikes: Strikes) -> list[dict[str, Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "state.json"
    state = json.loads(kept.read_text())["state"] if kept.exists() else {}
    half = len(rows) // 2
    out = _count(state, rows[:half], folder, -1, strikes)
    kept.write_text(json.dumps({"state": state}))
    out += _count(state, rows[half:], folder, batch, strikes)
    kept.write_text(json.dumps({"state": state}))
    return out


def _count(
    state: dict[str, Any], rows: Iterable[dict[str, Any]], folder: Path, batch: int, strikes: Strikes
) -> list[dict[str, Any]]:
    out = []
    for row in sorted(rows, key=lambda row: row["id"]):
        n, total = state.get(str(row["key"]), (0, 0))
        state[str(row["key"])] = n + 1, total + row["amount"]
        out.append(
            {
                "id": row["id"],
                "key": row["key"],
                "kind": row["kind"],
                "n": n + 1,
                "total": total + row["amount"],
            }
        )
        strikes.at_row(NAME, int(folder.name), batch)
    return out


def _out(rows: list[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    names = [part.split()[0] for part in OUTPUT.split(", ")]
    types = {"long": pa.int64(), "string": pa.string()}
    schema = pa.schema(
        [(name, types[part.split()[1]]) for name, part in zip(names, OUTPUT.split(", "), strict=True)]
    )
    yield pa.RecordBatch.from_pylist(rows, schema=schema)
