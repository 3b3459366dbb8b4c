"""Rescaling: key groups move with all that belongs to them, operator state is dealt out."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoint.backends.opening import open_backend
from tests.checkpoint.checkpoints import TaskRequest, put_commit, put_commits
from tests.checkpoint.keys.key_groups import instance_of
from tidegate.checkpoint import epochs, rescale
from tidegate.checkpoint.backend import Backend, StateChanges, Version
from tidegate.checkpoint.keys.codec import KeyType, StateKeyColumn
from tidegate.checkpoint.keys.layout import (
    META_GROUP,
    OPERATOR_GROUP,
    entry_prefix,
    expiry_prefix,
    group_range,
    groups_of,
    timer_prefix,
)
from tidegate.checkpoint.store import CheckpointStore
from tidegate.errors import StorageCorrupt
from tidegate.errors.start import InvariantBroken
from tidegate.state.kinds.operator_list import operator_prefix
from tidegate.state.schema.schema import SchemaRequest, StateSpec, redistribution_of, resolve_schema

MAX = 128
KINDS = ["rocksdb", "heap"]
SPLIT, UNION = 1, 2
MODES = {SPLIT: "split", UNION: "union"}

Entries = dict[bytes, bytes]


class Copies:
    """Local copies of every (epoch, partition), and how rescaling gets at them."""

    def __init__(self, root: Path, kind: str) -> None:
        self.root, self.kind = root, kind
        self.store = CheckpointStore(root / "operator")
        self.brought: list[tuple[int, int]] = []

    def folder(self, epoch: int, partition: int) -> Path:
        return self.root / "copies" / f"e{epoch}" / str(partition)

    def open(self, folder: Path) -> Backend:
        return open_backend(self.kind, folder)

    @contextmanager
    def bring(
        self, store: CheckpointStore, epoch: epochs.Epoch, partition: int, batch: int
    ) -> Iterator[Backend]:
        assert store.root == self.store.root
        self.brought.append((epoch.number, partition))
        backend = self.open(self.folder(epoch.number, partition))
        try:
            version = backend.version()
            assert version is not None
            assert (version.epoch, version.batch) == (epoch.number, batch)
            yield backend
        finally:
            backend.close()

    def sources(self, bring: rescale.OpenRestored | None = None) -> rescale.RescaleSources:
        return rescale.RescaleSources(bring or self.bring, self.open, redistribution_of)

    def begin(self, parallelism: int, batch: int) -> epochs.Epoch:
        """Begin an epoch with so many instances and assemble every copy."""
        epoch = epochs.resolve(self.store, TaskRequest(0, parallelism, batch, MAX)).epoch
        for partition in range(parallelism):
            folder = self.folder(epoch.number, partition)
            rescale.assemble(self.store, epoch, partition, folder, self.sources())
        return epoch

    def commit(self, epoch: epochs.Epoch, batch: int, changes: dict[int, StateChanges]) -> None:
        for partition in range(epoch.parallelism):
            commit = put_commit(self.store, epoch.number, partition, batch)
            backend = self.open(self.folder(epoch.number, partition))
            version = Version(epoch.number, batch, commit.commit_id)
            backend.apply(changes.get(partition, StateChanges()), version)
            backend.close()

    def entries(self, epoch: epochs.Epoch, partition: int) -> Entries:
        backend = self.open(self.folder(epoch.number, partition))
        try:
            assert (backend.version() or Version(0, 0, "")).epoch == epoch.number
            return dict(backend.scan(b"", META_GROUP))
        finally:
            backend.close()


def keyed(rng: random.Random, count: int) -> Entries:
    """Make entries of all spaces: values, timers of both clocks, the TTL index."""
    found: Entries = {}
    for _ in range(count):
        group = rng.randrange(MAX)
        key = rng.randbytes(rng.randrange(1, 12))
        found[entry_prefix(group, rng.randrange(4)) + key] = rng.randbytes(9)
        if rng.random() < 0.3:
            found[timer_prefix(group, rng.randrange(2), rng.randrange(-(10**12), 10**12)) + key] = b""
        if rng.random() < 0.3:
            found[expiry_prefix(group, rng.randrange(4), rng.randrange(10**6)) + key] = b""
    return found


def by_instance(entries: Entries, parallelism: int) -> dict[int, StateChanges]:
    parts: dict[int, StateChanges] = {}
    for key, value in entries.items():
        instance = instance_of(int.from_bytes(key[:2], "big"), parallelism, MAX)
        parts.setdefault(instance, StateChanges()).entries[key] = value
    return parts


@pytest.mark.parametrize("kind", KINDS)
def test_one_three_two_five_gives_the_same_entries_in_the_right_places(tmp_path: Path, kind: str) -> None:
    """Case 10: values, timers and the TTL index move with their key groups; nothing is lost or doubled."""
    rng = random.Random(7)
    copies = Copies(tmp_path, kind)
    model: Entries = {}
    for batch, parallelism in enumerate([1, 3, 2, 5]):
        epoch = copies.begin(parallelism, batch)
        new = keyed(rng, 400)
        gone = rng.sample(sorted(model), len(model) // 5)
        model = {key: value for key, value in model.items() if key not in gone} | new
        changes = by_instance(dict.fromkeys(gone, b"") | new, parallelism)
        for part in changes.values():
            part.entries.update({key: None for key in gone if key in part.entries and key not in new})
        copies.commit(epoch, batch, changes)
        found = [copies.entries(epoch, partition) for partition in range(parallelism)]
        expected = by_instance(model, parallelism)
        assert found == [expected.get(i, StateChanges()).entries for i in range(parallelism)]
    assert model


@given(
    old=st.integers(1, 40), new=st.integers(1, 40), maximum=st.integers(1, 300), partition=st.integers(0, 39)
)
def test_shares_cover_the_key_groups_of_an_instance_once(
    old: int, new: int, maximum: int, partition: int
) -> None:
    old, new = min(old, maximum), min(new, maximum)
    partition %= new
    epoch = epochs.Epoch(1, new, maximum, 1, epochs.Parent(0, 0, old))
    found = rescale.shares(epoch, partition)
    covered = sorted(group for share in found.values() for group in share)
    assert covered == list(groups_of(partition, new, maximum))
    assert all(
        instance_of(group, old, maximum) == parent for parent, share in found.items() for group in share
    )
    assert [len(share) for share in found.values()] == sorted(map(len, found.values()), reverse=True)


@pytest.mark.parametrize("kind", KINDS)
def test_partitions_without_entries_are_assembled_too(tmp_path: Path, kind: str) -> None:
    copies = Copies(tmp_path, kind)
    copies.commit(copies.begin(1, 0), 0, {})
    copies.commit(copies.begin(2, 1), 1, {})
    assert copies.entries(copies.begin(1, 2), 0) == {}


def test_only_parents_with_a_share_are_read_without_operator_state(tmp_path: Path) -> None:
    """Case 13: only what is missing is read."""
    copies = Copies(tmp_path, "heap")
    copies.commit(copies.begin(4, 0), 0, {})
    epoch = epochs.resolve(copies.store, TaskRequest(0, 8, 1, MAX)).epoch
    copies.brought.clear()
    rescale.assemble(copies.store, epoch, 5, tmp_path / "new", copies.sources())
    assert copies.brought == [(0, 2)]


def test_nothing_stays_of_an_assembly_that_fails(tmp_path: Path) -> None:
    copies = Copies(tmp_path, "heap")
    copies.commit(copies.begin(3, 0), 0, {})
    epoch = epochs.resolve(copies.store, TaskRequest(0, 2, 1, MAX)).epoch

    @contextmanager
    def failing(store: CheckpointStore, old: epochs.Epoch, partition: int, batch: int) -> Iterator[Backend]:
        if partition == 1:
            raise StorageCorrupt(place="there", reason="gone")
        with copies.bring(store, old, partition, batch) as found:
            yield found

    folder = tmp_path / "copies" / "new"
    before = sorted(path.name for path in folder.parent.iterdir())
    with pytest.raises(StorageCorrupt):
        rescale.assemble(copies.store, epoch, 0, folder, copies.sources(failing))
    assert sorted(path.name for path in folder.parent.iterdir()) == before


def test_parent_that_is_gone_is_named(tmp_path: Path) -> None:
    copies = Copies(tmp_path, "heap")
    copies.begin(1, 0)
    put_commits(copies.store, 0, 1, 0)
    epoch = epochs.resolve(copies.store, TaskRequest(0, 2, 1, MAX)).epoch
    copies.store.remove("e0/epoch.json")
    with pytest.raises(StorageCorrupt, match="the epoch from which state comes"):
        rescale.assemble(copies.store, epoch, 0, tmp_path / "new", copies.sources())


def element(state: int, batch: int, instance: int, counter: int) -> bytes:
    return operator_prefix(state) + struct.pack(">QHI", batch + (1 << 63), instance, counter)


def with_operator_states(copies: Copies) -> None:
    specs = tuple(
        StateSpec(f"list-{mode}", "operator-list", ("int",), serializer="int", redistribute=mode)
        for mode in ("split", "union")
    )
    key = KeyType((StateKeyColumn("word", "string"),))
    schema = resolve_schema(copies.store, SchemaRequest(copies.store.root.name, key, MAX, specs))
    assert [state.number for state in schema.states.values()] == [SPLIT, UNION]


def operator_states(copies: Copies, epoch: epochs.Epoch, state: int) -> list[list[bytes]]:
    found = [copies.entries(epoch, partition) for partition in range(epoch.parallelism)]
    prefix = operator_prefix(state)
    return [[value for key, value in sorted(part.items()) if key.startswith(prefix)] for part in found]


def test_operator_state_is_dealt_out_evenly_or_given_to_all(tmp_path: Path) -> None:
    """Case 2: split and union, 2 → 3 → 5 → 1, in one order, with elements added on the way."""
    copies = Copies(tmp_path, "heap")
    with_operator_states(copies)
    epoch = copies.begin(2, 0)
    changes = {
        i: StateChanges(
            entries={element(state, 0, i, n): b"%d" % (10 * i + n) for state in MODES for n in range(4 - i)}
        )
        for i in range(2)
    }
    copies.commit(epoch, 0, changes)
    epoch = copies.begin(3, 1)
    assert operator_states(copies, epoch, SPLIT) == [[b"0", b"3", b"12"], [b"1", b"10"], [b"2", b"11"]]
    everything = [b"0", b"1", b"2", b"3", b"10", b"11", b"12"]
    assert operator_states(copies, epoch, UNION) == [everything] * 3
    copies.commit(epoch, 1, {2: StateChanges(entries={element(s, 1, 2, 0): b"new" for s in MODES})})
    epoch = copies.begin(5, 2)
    assert [len(part) for part in operator_states(copies, epoch, SPLIT)] == [2, 2, 2, 1, 1]
    assert operator_states(copies, epoch, UNION) == [[*everything, b"new"]] * 5
    copies.commit(epoch, 2, {})
    epoch = copies.begin(1, 3)
    assert operator_states(copies, epoch, SPLIT) == [[*everything, b"new"]]
    assert operator_states(copies, epoch, UNION) == [[*everything, b"new"]]


def test_operator_state_that_nobody_shares_out_is_not_dropped_in_silence(tmp_path: Path) -> None:
    copies = Copies(tmp_path, "heap")
    with_operator_states(copies)
    epoch = copies.begin(2, 0)
    copies.commit(epoch, 0, {i: StateChanges(entries={element(SPLIT, 0, i, 0): b"1"}) for i in range(2)})
    new = epochs.resolve(copies.store, TaskRequest(0, 3, 1, MAX)).epoch
    sources = replace(copies.sources(), redistribution=rescale.no_operator_state)
    with pytest.raises(InvariantBroken, match="share none out"):
        rescale.assemble(copies.store, new, 0, tmp_path / "new", sources)


def test_operator_state_stays_where_it_is_with_as_many_instances(tmp_path: Path) -> None:
    copies = Copies(tmp_path, "heap")
    with_operator_states(copies)
    epoch = copies.begin(2, 0)
    copies.commit(epoch, 0, {1: StateChanges(entries={element(UNION, 0, 1, 0): b"mine"})})
    epochs.begin_epoch(copies.store, "counts", 1)
    epoch = copies.begin(2, 1)
    assert epoch.number == 1
    assert operator_states(copies, epoch, UNION) == [[], [b"mine"]]


def test_range_of_a_share_holds_no_operator_state() -> None:
    assert group_range(range(MAX))[1] < OPERATOR_GROUP
