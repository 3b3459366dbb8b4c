"""What an acknowledgement stands on: a sync of RocksDB's log, counted by RocksDB itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tidegate.storage.group_commit import GroupCommitter, Staging
from tidegate.storage.rocksdb import engine
from tidegate.storage.rocksdb.engine import RocksEngine
from tidegate.storage.rocksdb.options import EngineOptions, options_of


class Counted:
    """An engine whose syncs are counted."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._options: Any = None
        monkeypatch.setattr(engine, "options_of", self._counting)
        self.engine = RocksEngine(path)

    def _counting(self, settings: EngineOptions) -> Any:
        self._options = options_of(settings)
        self._options.enable_statistics()
        return self._options

    def syncs(self) -> int:
        found = re.search(r"rocksdb\.wal\.synced COUNT : (\d+)", self._options.get_statistics() or "")
        assert found, "RocksDB gave no statistics"
        return int(found[1])

    def write(self, *, sync: bool) -> None:
        batch = self.engine.batch()
        batch.put(b"k", b"v")
        self.engine.write(batch, sync=sync)


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(tmp_path / "engine", monkeypatch)


def test_a_plain_write_syncs_nothing_and_a_sync_syncs_once(counted: Counted) -> None:
    before = counted.syncs()
    counted.write(sync=False)
    assert counted.syncs() == before
    counted.engine.sync()
    assert counted.syncs() == before + 1
    counted.write(sync=True)
    assert counted.syncs() == before + 2
    counted.engine.close()


def test_a_group_that_waits_together_is_synced_once_before_it_is_answered(counted: Counted) -> None:
    committer = GroupCommitter(counted.engine)

    def stage(staging: Staging) -> None:
        staging.put(b"n", b"1")

    def hold(staging: Staging) -> int:
        # What is submitted while this runs forms the next group, or joins this one.
        futures.extend(committer.submit(stage) for _ in range(100))
        return counted.syncs()

    futures: list[Any] = []
    before = committer.submit(hold).result(60)
    for future in futures:
        future.result(60)
    assert 1 <= counted.syncs() - before <= 2
    committer.close()
    counted.engine.close()
