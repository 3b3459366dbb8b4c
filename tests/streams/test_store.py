"""Rows of streams: where they lie, in which order they come back, and when they are gone."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.streams.factories import COLUMNS, FailingDisk, log_files, make_store, make_table, texts
from tidegate.errors import NameInvalid, NotReady, RequestInvalid
from tidegate.model.tables import Durability, Row, TableColumn
from tidegate.settings.sections import StreamSettings
from tidegate.streams.store import StreamStore
from tidegate.testing.clock import START_US, ManualClock

TABLE = make_table()
KEYED = make_table(primary_key=("id",))


def test_rows_come_back_whole_with_number_and_time(store: StreamStore, clock: ManualClock) -> None:
    first = store.append(TABLE, "alice", [(1, "a"), (2, None)])
    clock.advance(1)
    second = store.append(TABLE, "alice", [(3, "c")])
    assert (first.count, second.count) == (2, 1)
    seqs = [*first.seqs, *second.seqs]
    assert seqs == sorted(set(seqs))
    assert store.read(TABLE, "alice").rows == [
        (1, "a", seqs[0], START_US),
        (2, None, seqs[1], START_US),
        (3, "c", seqs[2], START_US + 1_000_000),
    ]
    assert store.read(TABLE, "bob").rows == []
    assert store.append(TABLE, "alice", []).count == 0


def test_files_lie_where_the_layout_says(store: StreamStore, tmp_path: Path) -> None:
    """Case 1, in the default tenant and in another."""
    store.append(TABLE, "alice", [(1, "a")])
    store.append(make_table(tenant="acme"), "ann@example.org", [(1, "a")])
    store.flush()
    window = f"w{START_US // 1000}-60000"
    assert (tmp_path / "streams/chat/typing" / window / "shard-7/alice.log").stat().st_size > 0
    other = tmp_path / "tenants/acme/streams/chat/typing" / window / "shard-8/ann@example.org.log"
    assert other.stat().st_size > 0
    assert texts(store, make_table(tenant="acme"), "alice") == []


def test_rows_wait_in_memory_until_they_are_flushed_or_read(
    store: StreamStore, tmp_path: Path, clock: ManualClock
) -> None:
    """Case 4."""
    store.append(TABLE, "alice", [(1, "a")])
    clock.advance(0.6)
    store.append(TABLE, "bob", [(2, "b")])
    assert [file.stat().st_size for file in log_files(tmp_path)] == [0, 0]
    store.flush(older_than_seconds=0.5)
    sizes = {file.stem: file.stat().st_size for file in log_files(tmp_path)}
    assert sizes["alice"] > 0
    assert sizes["bob"] == 0
    assert texts(store, TABLE, "bob") == ["b"]
    assert all(file.stat().st_size for file in log_files(tmp_path))


def test_a_full_buffer_goes_to_the_file(store: StreamStore, tmp_path: Path) -> None:
    """Case 4: 64 KiB."""
    for number in range(3):
        store.append(TABLE, "alice", [(number, "x" * 30_000)])
    (file,) = log_files(tmp_path)
    assert file.stat().st_size > 64 * 1024


def test_no_more_logs_are_open_than_allowed(tmp_path: Path, clock: ManualClock) -> None:
    """Case 4: the one whose last append is longest ago is closed, and nothing is lost."""
    store = make_store(tmp_path, clock, settings=StreamSettings(writers_max=3))
    for number in range(40):
        for user in ("a", "b", "c", "d", "e"):
            store.append(TABLE, user, [(number, str(number))])
            (window,) = store.describe(TABLE)
            assert window.writers <= 3
    for user in ("a", "b", "c", "d", "e"):
        assert texts(store, TABLE, user) == [str(number) for number in range(40)]
    store.close()


def test_a_durable_append_is_on_the_disk_with_its_folders(store: StreamStore, disk: FailingDisk) -> None:
    """Case 4: durability = 'fsync'."""
    table = make_table(durability=Durability.FSYNC)
    store.open_table(table)
    disk.synced.clear()
    store.append(table, "alice", [(1, "a")])
    window = f"w{START_US // 1000}-60000"
    names = {path.rpartition("/chat")[2] for path in disk.synced if "/chat" in path}
    folders = {"", "/typing", f"/typing/{window}", f"/typing/{window}/shard-7"}
    assert names == folders | {f"/typing/{window}/shard-7/alice.log"}
    disk.synced.clear()
    store.append(table, "alice", [(2, "b")])
    assert [path.rpartition("/")[2] for path in disk.synced] == ["alice.log"]


def test_a_durable_row_is_synced_also_when_its_log_loses_its_slot(
    tmp_path: Path, clock: ManualClock, disk: FailingDisk
) -> None:
    store = make_store(tmp_path, clock, disk=disk, settings=StreamSettings(writers_max=1))
    table = make_table(durability=Durability.FSYNC)
    for number in range(6):
        store.append(table, "ab"[number % 2], [(number, str(number))])
    assert len([path for path in disk.synced if path.endswith(".log")]) == 6
    store.close()


def test_ranges_are_by_row_time_and_half_open(store: StreamStore, clock: ManualClock) -> None:
    """Case 5: not by window."""
    times = []
    for number in range(10):
        times.append(clock.now_us())
        store.append(TABLE, "alice", [(number, str(number))])
        clock.advance(25)
    assert texts(store, TABLE, start_us=times[3], stop_us=times[7]) == ["3", "4", "5", "6"]
    assert texts(store, TABLE, start_us=times[3] + 1, stop_us=times[7] + 1) == ["4", "5", "6", "7"]
    assert texts(store, TABLE, stop_us=times[2]) == ["0", "1"]
    assert texts(store, TABLE, start_us=times[3], stop_us=times[7], last=2) == ["6", "5"]


def test_a_range_opens_only_windows_that_overlap(
    store: StreamStore, clock: ManualClock, disk: FailingDisk
) -> None:
    for number in range(8):
        store.append(TABLE, "alice", [(number, str(number))])
        clock.advance(60)
    store.flush()
    disk.opened.clear()
    start_us = START_US + 3 * 60_000_000
    assert texts(store, TABLE, start_us=start_us, stop_us=start_us + 2 * 60_000_000) == ["3", "4"]
    assert {path.split("/")[-3] for path in disk.opened} == {
        f"w{start_us // 1000}-60000",
        f"w{start_us // 1000 + 60_000}-60000",
    }


def test_the_last_rows_are_read_from_the_end(
    store: StreamStore, clock: ManualClock, disk: FailingDisk
) -> None:
    """Case 5: newest first, over windows, without those that are not needed."""
    for number in range(9):
        store.append(TABLE, "alice", [(number, f"{number}a"), (number, f"{number}b")])
        clock.advance(20)
    store.flush()
    disk.opened.clear()
    assert texts(store, TABLE, last=3) == ["8b", "8a", "7b"]
    assert {path.split("/")[-3] for path in disk.opened} == {f"w{START_US // 1000 + 120_000}-60000"}
    assert texts(store, TABLE, last=100) == texts(store, TABLE)[::-1]
    assert texts(store, TABLE, last=0) == []


def test_a_row_over_its_time_to_live_is_never_given(store: StreamStore, clock: ManualClock) -> None:
    """Case 5: though its file is there."""
    table = make_table(ttl_seconds=30)
    store.append(table, "alice", [(1, "old")])
    clock.advance(29)
    store.append(table, "alice", [(2, "new")])
    assert texts(store, table) == ["old", "new"]
    clock.advance(1)
    assert texts(store, table) == ["new"]
    assert texts(store, table, last=5) == ["new"]
    assert texts(store, table, start_us=0) == ["new"]


def test_a_later_row_of_a_key_replaces_the_earlier(store: StreamStore, clock: ManualClock) -> None:
    first_us = clock.now_us()
    store.append(KEYED, "alice", [(1, "a"), (2, "b"), (1, "c")])
    clock.advance(70)
    store.append(KEYED, "alice", [(2, "d")])
    assert texts(store, KEYED) == ["c", "d"]
    assert texts(store, KEYED, last=1) == ["d"]
    assert texts(store, KEYED, last=2) == ["d", "c"]
    assert texts(store, KEYED, stop_us=first_us + 1) == ["c"]


def test_a_delete_hides_what_it_saw_and_not_what_comes_later(store: StreamStore, clock: ManualClock) -> None:
    """Case 5: deletes win, and a limit counts what is left."""
    store.append(KEYED, "alice", [(number, f"v{number}") for number in range(6)])
    rows = store.read(KEYED, "alice").rows
    clock.advance(70)
    store.append(KEYED, "alice", [(4, "again")])
    told: list[Row] = []
    assert store.delete(KEYED, "alice", rows[3:6], told.extend) == 3
    assert told == rows[3:6]
    assert texts(store, KEYED) == ["v0", "v1", "v2", "again"]
    assert texts(store, KEYED, last=3) == ["again", "v2", "v1"]
    assert texts(store, KEYED, stop_us=START_US + 1) == ["v0", "v1", "v2"]
    assert texts(store, KEYED, stop_us=START_US + 1, last=2) == ["v2", "v1"]
    told.clear()
    assert store.delete(KEYED, "alice", rows[2:5], told.extend) == 1, "two of them were deleted before"
    assert told == [rows[2]]


def test_a_delete_holds_after_a_restart_and_does_not_touch_others(tmp_path: Path, clock: ManualClock) -> None:
    store = make_store(tmp_path, clock)
    for user in ("alice", "bob"):
        store.append(KEYED, user, [(1, "a"), (2, "b")])
    store.delete(KEYED, "alice", store.read(KEYED, "alice").rows[:1])
    store.close()
    store = make_store(tmp_path, clock)
    assert texts(store, KEYED) == ["b"]
    assert texts(store, KEYED, "bob") == ["a", "b"]
    store.close()


def test_a_delete_needs_a_primary_key(store: StreamStore) -> None:
    store.append(TABLE, "alice", [(1, "a")])
    with pytest.raises(RequestInvalid, match="no primary key"):
        store.delete(TABLE, "alice", store.read(TABLE, "alice").rows)


def test_a_delete_outlives_its_rows_when_windows_have_several_sizes(
    store: StreamStore, clock: ManualClock
) -> None:
    """A delete in a short window would go before rows in a long one, and bring them back."""
    long, short = make_table(primary_key=("id",), ttl_seconds=86_400), KEYED
    store.append(long, "alice", [(1, "a"), (2, "b")])
    clock.advance(5)
    store.delete(short, "alice", store.read(short, "alice").rows[:1])
    for _ in range(4):
        clock.advance(600)
        store.evict(short)
        assert texts(store, long) == ["b"]
        assert texts(store, long, last=9) == ["b"]


def test_added_columns_read_old_frames(store: StreamStore) -> None:
    """Frames carry the schema that wrote them; a reader with an older one sees what it knows."""
    wider = make_table(schema_id=2, columns=(*COLUMNS, TableColumn("price", "DECIMAL(6,2)", missing="1.50")))
    store.append(TABLE, "alice", [(1, "a")])
    store.append(wider, "alice", [(2, "b", Decimal("2.25"))])
    assert [row[:-2] for row in store.read(wider, "alice").rows] == [
        (1, "a", Decimal("1.50")),
        (2, "b", Decimal("2.25")),
    ]
    assert [row[:-2] for row in store.read(TABLE, "alice").rows] == [(1, "a"), (2, "b")]


def test_every_kind_of_value_comes_back(store: StreamStore) -> None:
    kinds = ["BOOLEAN", "INT", "BIGINT", "DOUBLE", "DECIMAL(38,9)", "TEXT", "BYTES", "JSON", "UUID", "DATE"]
    table = make_table(columns=tuple(TableColumn(f"c{n}", kind) for n, kind in enumerate(kinds)))
    low: tuple[Any, ...] = (False, -(2**31), -(2**63), -1.5, Decimal("-0.000000001"), "", b"", "{}", "u", -1)
    high: tuple[Any, ...] = (True, 2**31, 2**63 - 1, 1e300, Decimal(10**28), "é", b"\xf5TGS", "1", "u", 9)
    store.append(table, "alice", [low, high, (None,) * 10])
    assert [row[:-2] for row in store.read(table, "alice").rows] == [low, high, (None,) * 10]


def test_an_append_is_notified_in_order_and_a_barrier_splits_exactly(store: StreamStore) -> None:
    seen: list[Row] = []
    store.append(TABLE, "alice", [(1, "a"), (2, "b")], seen.extend)
    at_barrier: list[int] = []
    rows = store.read(TABLE, "alice", barrier=lambda: at_barrier.append(len(seen))).rows
    assert rows == seen
    assert at_barrier == [2]

    def append_more() -> None:
        store.append(TABLE, "alice", [(3, "c")])

    assert store.read(TABLE, "alice", barrier=append_more).rows == seen
    assert texts(store, TABLE) == ["a", "b", "c"]


def test_a_clock_that_goes_back_stops_nothing_and_order_stays(store: StreamStore, clock: ManualClock) -> None:
    """Case 8: by little, and by far."""
    for step_us in (0, -50_000, -30_000_000, -500_000_000, 10_000_000):
        clock.set_us(clock.now_us() + step_us)
        store.append(TABLE, "alice", [(1, str(step_us))])
    rows = store.read(TABLE, "alice").rows
    assert len(rows) == 5
    order = [(row[-1], row[-2]) for row in rows]
    assert order == sorted(order)
    # Small steps keep the order in which rows came.
    assert [row[1] for row in rows if row[1] in {"0", "-50000", "-30000000"}] == ["0", "-50000", "-30000000"]


def test_numbers_and_times_in_a_file_go_on_after_a_restart_with_the_clock_set_back(
    tmp_path: Path, clock: ManualClock
) -> None:
    """Case 8."""
    clock.advance(50)
    store = make_store(tmp_path, clock)
    store.append(TABLE, "alice", [(1, "a")])
    store.close()
    clock.set_us(clock.now_us() - 40_000_000)
    store = make_store(tmp_path, clock)
    store.append(TABLE, "alice", [(2, "b")])
    first, second = store.read(TABLE, "alice").rows
    assert (first[1], second[1]) == ("a", "b")
    assert (first[-1], first[-2]) < (second[-1], second[-2])
    assert first[-2] < second[-2]  # type: ignore[operator]
    store.close()


class _CaselessDisk(FailingDisk):
    """A disk on which names that differ in case are one."""

    def exists(self, path: str) -> bool:
        return super().exists(path) or super().exists(path.replace("TABLE.ID", "table.id"))


def test_ids_that_differ_in_case_have_two_files_on_any_disk(tmp_path: Path, clock: ManualClock) -> None:
    """Case 3."""
    store = make_store(tmp_path, clock, disk=_CaselessDisk())
    for user in ("ann", "Ann", "ANN"):
        store.append(TABLE, user, [(1, user)])
    store.flush()
    names = {file.name.lower() for file in log_files(tmp_path)}
    assert names == {"ann.log", "ann~1.log", "ann~7.log"}
    assert texts(store, TABLE, "Ann") == ["Ann"]
    store.close()


@pytest.mark.parametrize("user", ["", "..", "a/b"])
def test_a_wrong_user_is_refused_everywhere(store: StreamStore, user: str) -> None:
    """Case 3."""
    with pytest.raises(NameInvalid):
        store.append(TABLE, user, [(1, "a")])
    with pytest.raises(NameInvalid):
        store.read(TABLE, user)
    with pytest.raises(NameInvalid):
        store.delete(KEYED, user, [])


@pytest.mark.parametrize("ttl_seconds", [None, 0, -5])
def test_a_stream_without_a_time_to_live_is_refused(store: StreamStore, ttl_seconds: int | None) -> None:
    """Case 7."""
    with pytest.raises(RequestInvalid, match="time to live"):
        store.append(make_table(ttl_seconds=ttl_seconds), "alice", [(1, "a")])


def test_windows_are_described(store: StreamStore, clock: ManualClock) -> None:
    store.append(TABLE, "alice", [(1, "a")])
    store.append(TABLE, "bob", [(1, "a")])
    clock.advance(60)
    store.append(TABLE, "alice", [(2, "b")])
    store.flush()
    first, second = store.describe(TABLE)
    assert (first.start_ms, first.duration_ms, first.files, first.writers) == (START_US // 1000, 60_000, 2, 2)
    assert first.name == f"w{START_US // 1000}-60000"
    assert second.files == 1
    assert first.size_bytes > second.size_bytes > 0


def test_a_closed_store_takes_nothing(tmp_path: Path, clock: ManualClock) -> None:
    store = make_store(tmp_path, clock)
    store.append(TABLE, "alice", [(1, "a")])
    store.close()
    assert [file.stat().st_size > 0 for file in log_files(tmp_path)] == [True]
    with pytest.raises(NotReady):
        store.append(TABLE, "alice", [(2, "b")])
