"""Output files: the same rows each time they are given out; every damage is noticed before the first row."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tidegate.checkpoint.commit_record import StoredFile
from tidegate.checkpoint.output_file import BUFFER_BYTES, OutputWriter, read_output
from tidegate.checkpoint.store import CheckpointStore
from tidegate.errors import StorageCorrupt

FIRST = pa.record_batch({"key": ["a", None], "n": [1, 2]})
SECOND = pa.record_batch({"key": ["b"], "n": [3]})


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path)


def written(store: CheckpointStore, *batches: pa.RecordBatch) -> StoredFile:
    writer = OutputWriter(store.writer("p/v1.a.out"), batches[0].schema)
    for batch in batches:
        writer.write(batch)
    return writer.close()


def test_rows_come_back_batch_by_batch(store: CheckpointStore) -> None:
    stored = written(store, FIRST, SECOND)
    assert (stored.file, stored.rows) == ("v1.a.out", 3)
    assert list(read_output(store, "p", stored)) == [FIRST, SECOND]
    assert list(read_output(store, "p", None)) == []


def test_rows_beyond_what_is_written_together_come_back_too(store: CheckpointStore) -> None:
    large = pa.record_batch({"n": pa.array([n * 7_919 % 104_729 for n in range(BUFFER_BYTES)])})
    assert list(read_output(store, "p", written(store, large, large))) == [large, large]


def test_every_changed_or_cut_byte_is_noticed_and_the_file_named(store: CheckpointStore) -> None:
    stored = written(store, FIRST)
    path = store.path("p/v1.a.out")
    content = path.read_bytes()
    for at in [*range(0, len(content), 17), len(content) - 1]:
        changed = bytearray(content)
        changed[at] ^= 0x10
        for damaged in (bytes(changed), content[:at], content + b"x"):
            path.write_bytes(damaged)
            with pytest.raises(StorageCorrupt, match=r"v1\.a\.out"):
                read_output(store, "p", stored)
    path.unlink()
    with pytest.raises(StorageCorrupt, match="missing"):
        read_output(store, "p", stored)
