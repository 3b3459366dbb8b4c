"""What an undisturbed deduplication gave, compared with the dictionary model."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.dedup.model import Model, Row
from tests.faults.dedup_rows import BEGIN, BEGIN_US, RETENTION_US
from tests.faults.driver import load_case
from tests.faults.reading import SHOWN, found_in

MICROSECOND = datetime.timedelta(microseconds=1)


def against_model(folder: Path) -> list[str]:
    """Return every row whose outcome is not that of the model, and every stored time that is not."""
    model = Model(RETENTION_US)
    faults: list[str] = []
    outputs = sorted((folder / "out").glob("*.parquet"))
    for batch, given in enumerate(_batches(folder)):
        rows = [Row((one["site"], one["number"]), _us(one["at"]), one["id"]) for one in given]
        judged = model.batch(rows)
        expected = {row.offset: (one.outcome, one.first_us) for row, one in zip(rows, judged, strict=True)}
        told = pq.read_table(outputs[batch]).to_pylist() if batch < len(outputs) else []
        actual = {one["id"]: (one["outcome"], _first_us(one)) for one in told}
        if len(actual) != len(told):
            faults.append(f"batch {batch}: a row came twice")
        wrong = [number for number in expected | actual if expected.get(number) != actual.get(number)]
        faults += [f"row {one}: {actual.get(one)}, owed {expected.get(one)}" for one in wrong[:SHOWN]]
    stored = sum(len(times) for times in found_in(folder, load_case(folder)).state.values())
    counted = sum(len(model.counted(key)) for key in model.known())
    if stored != counted or not counted:
        faults.append(f"{stored} times are stored that count, owed {counted}")
    return faults


def _batches(folder: Path) -> list[list[dict[str, Any]]]:
    files: dict[str, list[Path]] = {}
    for path in sorted((folder / "rows").glob("*.parquet")):
        files.setdefault(path.name.split("-")[0], []).append(path)
    return [
        pa.concat_tables([pq.read_table(one) for one in files[name]]).to_pylist() for name in sorted(files)
    ]


def _first_us(row: dict[str, Any]) -> int | None:
    first = row["outcome_first_time"]
    return None if first is None else _us(first)


def _us(at: datetime.datetime) -> int:
    return BEGIN_US + (at - BEGIN) // MICROSECOND
