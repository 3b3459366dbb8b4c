"""Keys move from one store to another, and what was cut off takes no room."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.dedup.store.stores import DAY, SETTINGS, Remembered, everything, packed, random_keys, version
from tidegate.checkpoint.backend import StateChanges
from tidegate.checkpoint.backends.rocksdb import RocksBackend
from tidegate.checkpoint.keys.layout import META_GROUP, group_range
from tidegate.checkpoint.rescale import SupportsCompaction, SupportsRangeCopy
from tidegate.dedup.store import segment
from tidegate.dedup.store.manifest import MANIFEST_NAME
from tidegate.dedup.store.store import SegmentStore
from tidegate.errors import InvariantBroken, StorageCorrupt

KEYS = 20_000


def _filled(folder: Path, seed: int, groups: range) -> tuple[SegmentStore, Remembered]:
    rng, known = np.random.default_rng(seed), Remembered()
    keys, times_us = random_keys(rng, KEYS), rng.integers(0, 120 * DAY, KEYS)
    keys[:, 1] = rng.choice(groups, KEYS)
    store = SegmentStore(folder, SETTINGS)
    store.apply(packed(SETTINGS.rule, keys, times_us), version(0))
    known.add(keys, times_us)
    return store, known


def _of_groups(known: Remembered, groups: range) -> set[tuple[bytes, int]]:
    return {(key, time) for key, time in known.entries() if key[1] in groups}


def test_a_store_takes_a_range_of_another_whole_and_nothing_else_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 10: through files and through memory, new segments too; filters know what came."""
    monkeypatch.setattr(segment, "FILE_KEYS_MIN", 3_000)
    target, own = _filled(tmp_path / "target", 1, range(8))
    source, other = _filled(tmp_path / "source", 2, range(8, 24))
    target.expire(190 * DAY)  # the first segment is over
    assert isinstance(target, SupportsRangeCopy)
    target.copy_range(source, *group_range(range(8, 12)))
    assert target.version() is None
    assert not (tmp_path / "target" / MANIFEST_NAME).exists()
    target.apply(StateChanges(), version(5))
    wanted = {entry for entry in own.entries() | _of_groups(other, range(8, 12)) if entry[1] >= 50 * DAY}
    assert everything(target, own.times | other.times) == wanted
    assert sum(facts.keys for facts in target.segments()) == len(wanted)
    times = [(facts.oldest_us, facts.newest_us) for facts in target.segments()]
    assert (times[0][0], times[-1][1]) == (min(t for _, t in wanted), max(t for _, t in wanted))
    target.close()
    source.close()
    again = SegmentStore(tmp_path / "target", SETTINGS)
    assert again.version() == version(5)
    assert len(list(again.scan(b"", META_GROUP))) == len(wanted)
    again.close()


def test_only_segments_are_taken_and_damage_is_no_end(tmp_path: Path) -> None:
    target, _ = _filled(tmp_path / "target", 1, range(8))
    source, _ = _filled(tmp_path / "source", 2, range(8, 24))
    source.close()
    table = max((tmp_path / "source").rglob("*.sst"), key=lambda file: file.stat().st_size)
    content = bytearray(table.read_bytes())
    content[len(content) // 3] ^= 0x10
    table.write_bytes(content)
    source = SegmentStore(tmp_path / "source", SETTINGS)
    with pytest.raises(StorageCorrupt, match=table.parent.name):
        target.copy_range(source, *group_range(range(8, 24)))
    assert source.missing_parts() == [table.parent.name]
    assert target.missing_parts() == []
    with pytest.raises(InvariantBroken, match="no segments"):
        target.copy_range(RocksBackend(tmp_path / "plain"), b"", META_GROUP)
    target.close()
    source.close()


def test_what_was_cut_off_takes_no_room_after_the_files_are_merged(tmp_path: Path) -> None:
    """Case 10: it would be uploaded with the first snapshot."""
    store, known = _filled(tmp_path / "copy", 1, range(16))
    store._cache.flush()
    before = store.sizes().size_bytes
    assert isinstance(store, SupportsCompaction)
    store.write_partly(StateChanges(ranges=[group_range(range(4, 16))]))
    store.compact()
    store.apply(StateChanges(), version(1))
    tables = sum(file.stat().st_size for file in (tmp_path / "copy").rglob("*.sst"))
    assert tables < 0.4 * before
    assert everything(store, known.times) == _of_groups(known, range(4))
    store.close()
