"""The spool gives rows back as they came, from memory and from a file; row hashes do not know their order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tidegate.errors import InvariantBroken, StorageFailed
from tidegate.pipeline.stateful import spill_buffer as module
from tidegate.pipeline.stateful.row_hashes import row_hashes
from tidegate.pipeline.stateful.spill_buffer import SpillBuffer

BATCHES = [
    pa.RecordBatch.from_pydict(
        {
            "n": pa.array(range(start, start + 10)),
            "s": pa.array([f"row {n}" if n % 3 else None for n in range(start, start + 10)]),
            "l": pa.array([[n, None] for n in range(start, start + 10)]),
        }
    )
    for start in range(0, 50, 10)
]


@pytest.mark.parametrize("bytes_max", [1 << 20, 600, 0])
def test_rows_come_back_as_they_came(tmp_path: Path, bytes_max: int) -> None:
    spool = SpillBuffer(tmp_path / "below", bytes_max)
    for batch in BATCHES:
        spool.add(batch)
    assert (spool._file is not None) == (bytes_max < 1 << 20)
    assert spool.row_count == 50
    for _ in range(2):
        assert list(spool.batches()) == BATCHES
    rows = np.array([49, 0, 12, 11, 0], np.int64)
    assert spool.take(rows, 2).to_pydict() == {
        "n": [49, 0, 12, 11, 0],
        "s": ["row 49", None, None, "row 11", None],
    }
    last = list(spool.batches())[-1]
    spool.close()
    assert last == BATCHES[-1]
    # The file has no name: nothing is left of it, also after a kill.
    assert not list(tmp_path.rglob("*.*"))


def test_rows_are_added_before_they_are_read(tmp_path: Path) -> None:
    spool = SpillBuffer(tmp_path, 0)
    spool.add(BATCHES[0])
    list(spool.batches())
    with pytest.raises(InvariantBroken):
        spool.add(BATCHES[1])


def test_marks_of_very_many_rows_lie_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = SpillBuffer(tmp_path)
    for batch in BATCHES:
        spool.add(batch)
    monkeypatch.setattr(module, "ROW_ARRAY_BYTES_MAX", 100)
    small, large = spool.new_array(np.uint8), spool.new_array(np.int64)
    assert not isinstance(small, np.memmap)
    assert isinstance(large, np.memmap)
    assert large.tolist() == [0] * 50
    large[7] = 5
    assert large.sum() == 5


def test_disk_that_takes_no_rows_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    spool = SpillBuffer(tmp_path / "file", 0)
    with pytest.raises(StorageFailed, match="file"):
        spool.add(BATCHES[0])


def test_row_hashes_are_those_of_the_values_alone() -> None:
    nested = pa.struct([("a", pa.int32())])
    table = pa.table(
        {
            "i": pa.array([1, 2, None, 1, 1], pa.int16()),
            "f": pa.array([0.5, None, 1.5, 0.5, 0.5], pa.float32()),
            "b": pa.array([True, None, False, True, True]),
            "s": pa.array(["x", None, "", "x", "x"]),
            "y": pa.array([b"x", None, b"", b"x", b"x"], pa.large_binary()),
            "d": pa.array([1, None, 3, 1, 1], pa.date32()),
            "t": pa.array([1, None, 3, 1, 1], pa.timestamp("us", tz="UTC")),
            "n": pa.array([{"a": 1}, None, {"a": None}, {"a": 1}, {"a": 2}], nested),
            "v": pa.nulls(5),
        }
    )
    (batch,) = table.to_batches()
    hashes = row_hashes(batch).tolist()
    assert hashes[0] == hashes[3]
    assert len(set(hashes)) == 4
    turned = batch.take(pa.array([4, 3, 2, 1, 0]))
    assert row_hashes(turned).tolist() == hashes[::-1]
    assert row_hashes(turned.slice(1, 2)).tolist() == hashes[::-1][1:3]
    assert row_hashes(batch.slice(0, 0)).tolist() == []
