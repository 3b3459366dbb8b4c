"""Packed changes: columns of a segment in change files, written early, given to the copy late."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.batches import open_new
from tests.dedup.store.stores import DAY, SETTINGS, everything, packed, random_keys
from tidegate.checkpoint import changelog
from tidegate.checkpoint.backend import PackedEntries, StateChanges
from tidegate.checkpoint.batch import open_batch
from tidegate.checkpoint.changelog import ChangelogWriter, decode_changes, read_changes
from tidegate.checkpoint.commit import OpenBatch
from tidegate.checkpoint.commit_record import RunFacts, StoredFile
from tidegate.checkpoint.settings import BatchRequest, StateSettings
from tidegate.checkpoint.store import CheckpointStore
from tidegate.dedup.columns import encode_times
from tidegate.dedup.store.store import SegmentStore, SegmentStoreFactory
from tidegate.errors import InvariantBroken, StorageCorrupt
from tidegate.model.clock import SystemClock

CLOCK = SystemClock()
RNG = np.random.default_rng(5)
KEYS = random_keys(RNG, 40)
VALUES = encode_times(np.arange(-20, 20, dtype=np.int64))


def written(checkpoint_store: CheckpointStore, *changes: StateChanges) -> StoredFile:
    writer = ChangelogWriter(checkpoint_store.writer("p/v1.a.changes"))
    for part in changes:
        writer.add(part)
    return writer.close()


def same(left: PackedEntries, right: PackedEntries) -> bool:
    columns = np.array_equal(left.keys, right.keys) and np.array_equal(left.values, right.values)
    return left.segment == right.segment and columns


def test_packed_entries_come_back_beside_others(tmp_path: Path) -> None:
    checkpoint_store = CheckpointStore(tmp_path)
    one, two = PackedEntries(-3, KEYS, VALUES), PackedEntries(1 << 40, KEYS[:1], VALUES[:1])
    stored = written(
        checkpoint_store,
        StateChanges([(b"a", b"b")], {b"k": b"v"}, [one]),
        StateChanges([(b"c", b"d")], packed=[two]),
    )
    found = list(read_changes(checkpoint_store, "p", stored))
    assert [(part.ranges, part.entries) for part in found] == [
        ([(b"a", b"b")], {b"k": b"v"}),
        ([], {}),
        ([(b"c", b"d")], {}),
    ]
    assert same(found[1].packed[0], one)
    assert same(found[2].packed[0], two)
    assert stored.rows == 1 + 1 + 40 + 1 + 1


def test_many_packed_entries_lie_in_several_sections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelog, "SECTION_ENTRIES_MAX", 16)
    checkpoint_store = CheckpointStore(tmp_path)
    whole = PackedEntries(4, KEYS, VALUES)
    found = [
        part.packed[0]
        for part in read_changes(
            checkpoint_store, "p", written(checkpoint_store, StateChanges(packed=[whole]))
        )
    ]
    assert [len(part.keys) for part in found] == [16, 16, 8]
    keys, values = (np.concatenate([getattr(part, side) for part in found]) for side in ("keys", "values"))
    assert same(PackedEntries(4, keys, values), whole)


def test_every_changed_or_cut_byte_is_noticed(tmp_path: Path) -> None:
    checkpoint_store = CheckpointStore(tmp_path)
    written(checkpoint_store, StateChanges(packed=[PackedEntries(0, KEYS, VALUES)]))
    content = checkpoint_store.path("p/v1.a.changes").read_bytes()
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 0x20
        for wrong in (bytes(damaged), content[:at]):
            with pytest.raises(StorageCorrupt, match="place"):
                list(decode_changes(wrong, "place"))


def asked_for(tmp_path: Path, number: int, attempt: str = "a") -> BatchRequest:
    return BatchRequest(
        checkpoint=str(tmp_path / "checkpoint"),
        operator="orders",
        partition=0,
        parallelism=1,
        max_parallelism=32,
        number=number,
        plan_id=f"plan-{number}",
        attempt=f"{attempt}-{number}",
    )


def settings(tmp_path: Path) -> StateSettings:
    return StateSettings(
        backend=SegmentStoreFactory(SETTINGS), local_root=str(tmp_path / "local"), keep_open=False
    )


def test_changes_written_early_reach_the_copy_with_the_head(tmp_path: Path) -> None:
    """Case 20: until the head is there, nothing of the batch can be looked up."""
    keys = random_keys(np.random.default_rng(1), 60)
    times_us = np.arange(60, dtype=np.int64) * 2 * DAY
    changes = [packed(SETTINGS.rule, keys[at : at + 20], times_us[at : at + 20]) for at in (0, 20, 40)]
    wanted = set(zip(keys.view("V18").reshape(-1).tolist(), times_us.tolist(), strict=True))
    named = [key for key, _ in wanted]
    with open_new(asked_for(tmp_path, 0), settings(tmp_path), CLOCK) as opened:
        assert isinstance(opened.backend, SegmentStore)
        for part in changes[:2]:
            opened.add_changes(part)
        assert everything(opened.backend, named) == set()
        opened.publish(changes[2], RunFacts(rows_in=60, rows_out=60))
        assert everything(opened.backend, named) == wanted
    with open_new(asked_for(tmp_path, 1), settings(tmp_path), CLOCK) as opened:
        assert opened.report is not None
        assert (opened.report.source, opened.report.changelog_files) == ("local", 0)
        assert isinstance(opened.backend, SegmentStore)
        assert everything(opened.backend, named) == wanted


def test_a_batch_that_failed_leaves_nothing_of_what_it_wrote_early(tmp_path: Path) -> None:
    keys = random_keys(np.random.default_rng(2), 5)
    changes = packed(SETTINGS.rule, keys, np.zeros(5, np.int64))
    with pytest.raises(ZeroDivisionError):
        _fail(tmp_path, changes)
    assert not list(tmp_path.rglob("*.changes"))
    with open_new(asked_for(tmp_path, 0, attempt="b"), settings(tmp_path), CLOCK) as opened:
        assert isinstance(opened.backend, SegmentStore)
        assert everything(opened.backend, keys.view("V18").reshape(-1).tolist()) == set()


def _fail(tmp_path: Path, changes: StateChanges) -> None:
    with open_new(asked_for(tmp_path, 0), settings(tmp_path), CLOCK) as opened:
        opened.add_changes(changes)
        raise ZeroDivisionError


def test_a_batch_either_spills_or_adds_early(tmp_path: Path) -> None:
    with open_batch(asked_for(tmp_path, 0), settings(tmp_path), CLOCK) as opened:
        assert isinstance(opened, OpenBatch)
        opened.add_changes(StateChanges())
        with pytest.raises(InvariantBroken, match="early"):
            opened.spill(StateChanges())
    with open_new(asked_for(tmp_path, 0, attempt="b"), settings(tmp_path), CLOCK) as opened:
        opened.spill(StateChanges())
        with pytest.raises(InvariantBroken, match="spilled"):
            opened.add_changes(StateChanges())
