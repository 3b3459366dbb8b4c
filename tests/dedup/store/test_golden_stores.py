"""Deduplications of every released format are opened: manifests, segments, filters, snapshots, changelogs.

`python -m tests.dedup.store.test_golden_stores` writes one of the present format, once, when it is new.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
import xxhash

from tidegate import Deduplicator
from tidegate.checkpoint.store import operator_store
from tidegate.dedup import deduplicator

GOLDEN = Path(__file__).parent / "golden"
CALLS = 42
# Snapshots so near each other that the changelogs of the first calls are pruned: they are only in snapshots.
SNAPSHOT_EVERY_CALLS = 5
START_MS = 1_767_225_600_000
HOUR_MS = 3_600_000


def opened(folder: Path) -> Deduplicator:
    return Deduplicator("orders", folder, "2 days", interval="1 day")


def local_folder(folder: Path) -> Path:
    """Return where a deduplication has its local store: below a hash of its checkpoint's path."""
    root = operator_store(str(folder), "orders").root.resolve()
    return folder / "local" / xxhash.xxh3_64_hexdigest(str(root).encode()) / "orders"


def keys_of_call(number: int) -> list[str]:
    """Two new keys, and one that was sent half as many calls ago."""
    return [f"o-{number * 2}", f"o-{number * 2 + 1}", f"o-{number}"]


@pytest.mark.parametrize("has_local_store", [True, False])
@pytest.mark.parametrize("version", [1])
def test_a_deduplication_of_each_format_is_opened_and_continued(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, version: int, has_local_store: bool
) -> None:
    shutil.copytree(GOLDEN / f"v{version}" / "state", tmp_path / "state")
    if has_local_store:
        shutil.copytree(GOLDEN / f"v{version}" / "local", local_folder(tmp_path))
    with opened(tmp_path) as dedup:
        all_keys = [f"o-{number}" for number in range(CALLS * 2)]
        times = [START_MS + number // 2 * HOUR_MS for number in range(CALLS * 2)]
        assert set(dedup.check(all_keys, times).outcome) == {"duplicate"}
        new = START_MS + CALLS * HOUR_MS
        assert dedup.check(["o-84", "o-84", "o-0"], [new] * 3).outcome == ["unique", "duplicate", "duplicate"]
    assert [record.message for record in caplog.records if record.levelname != "INFO"] == []


def main() -> None:
    deduplicator.SNAPSHOT_EVERY_CALLS = SNAPSHOT_EVERY_CALLS
    with tempfile.TemporaryDirectory() as root:
        with opened(Path(root)) as dedup:
            for number in range(CALLS):
                dedup.check(keys_of_call(number), [START_MS + number * HOUR_MS] * 3)
        store = operator_store(root, "orders")
        assert not list(store.root.glob("e0/0/v0.*.changes")), "the first changelogs are still there"
        shutil.copytree(store.root.parent, GOLDEN / "v1" / "state")
        leftovers = shutil.ignore_patterns("LOG*", "LOCK", "lock", "wanted")
        shutil.copytree(local_folder(Path(root)), GOLDEN / "v1" / "local", ignore=leftovers)


if __name__ == "__main__":
    main()
