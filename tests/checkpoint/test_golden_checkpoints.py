"""Checkpoints of every released format are read: commit records, changelog files, output, snapshots, epochs.

`python -m tests.checkpoint.test_golden_checkpoints` writes those of the present format, once, when it is new.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoint.batches import Job, expected, settings
from tidegate.checkpoint.local.pool import pool

GOLDEN = Path(__file__).parent / "golden" / "checkpoints"
KINDS = ["heap", "rocksdb"]
BATCHES = 6  # snapshots after batches 1, 3 and 5 at first; the last one is removed, so that the log is needed


@pytest.fixture(autouse=True)
def closed_pool() -> Iterator[None]:
    yield
    pool().close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", [1])
def test_a_checkpoint_of_each_format_is_read_and_goes_on(tmp_path: Path, kind: str, version: int) -> None:
    """Case 14: golden files of every released format are read."""
    shutil.copytree(GOLDEN / f"v{version}" / kind, tmp_path, dirs_exist_ok=True)
    job = Job(tmp_path, settings(tmp_path, backend=kind))
    assert job.counts(BATCHES) == expected(BATCHES)[1]
    given = [row for partition in range(2) for row in job.do(BATCHES - 1, partition)]
    assert given == expected(BATCHES)[0][-1]
    job.drive(BATCHES + 2)
    assert (job.sunk(), job.counts(BATCHES + 2)) == expected(BATCHES + 2)


def main() -> None:
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as root:
            job = Job(Path(root), settings(Path(root), backend=kind))
            job.drive(BATCHES)
            pool().close()
            for path in Path(root).glob("checkpoint/state/*/e0/*/5.snapshot"):
                path.unlink()
            for path in Path(root).glob("checkpoint/state/*/e0/*/sst/5.*"):
                path.unlink()
            shutil.rmtree(Path(root) / "local")
            shutil.copytree(root, GOLDEN / "v1" / kind)


if __name__ == "__main__":
    main()
