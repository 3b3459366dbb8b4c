"""Many threads on one table: nothing is lost, doubled or brought back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.streams.factories import log_files, make_store, make_table, texts
from tidegate.errors import NotReady, TidegateError
from tidegate.model.clock import SystemClock
from tidegate.model.tables import Row
from tidegate.settings.sections import StreamSettings
from tidegate.testing.clock import ManualClock

JOIN_SECONDS_MAX = 300.0


def _run(bodies: list[Callable[[], None]]) -> None:
    """Run all at once; raise what any of them raised."""
    faults: list[BaseException] = []

    def guarded(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as problem:  # noqa: BLE001 - raised again below
            faults.append(problem)

    threads = [threading.Thread(target=guarded, args=(body,), daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_SECONDS_MAX)
        assert not thread.is_alive(), "a thread hangs"
    if faults:
        raise faults[0]


def test_50_threads_and_320_users_with_256_writers_lose_and_double_nothing(tmp_path: Path) -> None:
    """Case 8: every row is there once, in order, also after the store is opened again."""
    clock = SystemClock()
    table = make_table(ttl_seconds=3600)
    store = make_store(tmp_path, clock)
    users = [f"user{number}" for number in range(320)]
    appends = 200

    def body(thread: int) -> Callable[[], None]:
        def append() -> None:
            for number in range(appends):
                user = users[(thread * 37 + number * 11) % len(users)]
                store.append(table, user, [(thread, f"{thread}/{number}"), (thread, f"{thread}/{number}+")])

        return append

    _run([body(thread) for thread in range(50)])
    assert sum(shape.writers for shape in store.describe(table)) <= 256
    store.close()
    store = make_store(tmp_path, clock)
    found: list[str] = []
    for user in users:
        rows = store.read(table, user).rows
        order = [(row[-1], row[-2]) for row in rows]
        assert order == sorted(set(order))
        found += [str(row[1]) for row in rows]
    store.close()
    wanted = [f"{t}/{n}{mark}" for t in range(50) for n in range(appends) for mark in ("", "+")]
    assert sorted(found) == sorted(wanted)


def test_few_writers_for_many_tables_lose_nothing(tmp_path: Path) -> None:
    """Slots pass between tables while both are written to."""
    clock = ManualClock()
    store = make_store(tmp_path, clock, settings=StreamSettings(writers_max=2, buffer_bytes=512))
    tables = [make_table(id=number + 1, name=f"t{number}") for number in range(4)]

    def body(thread: int) -> Callable[[], None]:
        def append() -> None:
            for number in range(150):
                table = tables[(thread + number) % 4]
                store.append(table, f"u{number % 5}", [(thread, f"{thread}/{number}")])
                if number % 10 == 0:
                    store.read(table, f"u{number % 5}", last=3)
                    store.flush()

        return append

    _run([body(thread) for thread in range(8)])
    found = [row[1] for table in tables for user in range(5) for row in store.read(table, f"u{user}").rows]
    assert sorted(map(str, found)) == sorted(f"{t}/{n}" for t in range(8) for n in range(150))
    store.close()


def test_a_flush_writes_a_log_that_another_thread_is_about_to_close(tmp_path: Path) -> None:
    """One that lost its slot has rows in memory until it is closed: they had their time as all others."""
    store = make_store(tmp_path, ManualClock(), settings=StreamSettings(writers_max=1))
    table = make_table()
    store.append(table, "alice", [(1, "waits")])
    (log,) = store._slots.open_logs()
    files: list[bytes] = []

    def flush() -> None:
        store.flush()
        files.extend(path.read_bytes() for path in log_files(tmp_path) if str(path) == log.path)

    other = threading.Thread(target=store.append, args=(table, "bob", [(2, "takes the slot")]), daemon=True)
    flusher = threading.Thread(target=flush, daemon=True)
    with log.lock:
        other.start()
        while store._slots.open_logs():  # until it has chosen alice's log, and waits for its lock
            time.sleep(0.001)
        flusher.start()
        flusher.join(0.3)
    for thread in (flusher, other):
        thread.join(JOIN_SECONDS_MAX)
    assert files != [b""], "the flush was over before the rows were written"
    assert len(files) == 1
    assert texts(store, table) == ["waits"]
    assert texts(store, table, "bob") == ["takes the slot"]
    store.close()


def test_appends_reads_and_evictions_at_once_never_show_what_is_over(tmp_path: Path) -> None:
    """Case 6: time runs; no append fails, no evicted row comes back, none that lives is lost."""
    clock = ManualClock()
    table = make_table(ttl_seconds=120)
    store = make_store(tmp_path, clock, settings=StreamSettings(writers_max=4))
    done = threading.Event()
    appended: dict[str, list[Row]] = {f"u{number}": [] for number in range(6)}

    def append(user: str) -> Callable[[], None]:
        def body() -> None:
            for number in range(250):
                store.append(table, user, [(number, f"{user}/{number}")], appended[user].extend)

        return body

    def read() -> None:
        while not done.is_set():
            for user in appended:
                before_us = clock.now_us()
                rows = store.read(table, user).rows
                assert all(int(str(row[-1])) + 120_000_000 > before_us for row in rows)

    def evict() -> None:
        for step in range(60):
            clock.advance(20)
            if step % 2:
                clock.set_us(clock.now_us() - 3_000_000)
            store.evict(table)
            store.sweep()

    def all_writers() -> None:
        try:
            _run([*(append(user) for user in appended), evict])
        finally:
            done.set()

    _run([all_writers, read, read])
    now_us = clock.now_us()
    for user, rows in appended.items():
        alive = [row for row in rows if int(str(row[-1])) + 120_000_000 > now_us]
        alive.sort(key=lambda row: (int(str(row[-1])), int(str(row[-2]))))
        assert store.read(table, user).rows == alive
    store.close()


def test_snapshot_and_changes_meet_without_gap_or_overlap(tmp_path: Path) -> None:
    """A reader with a barrier sees every row either in its rows or in what is notified after it."""
    store = make_store(tmp_path, SystemClock())
    table = make_table()
    notified: list[Row] = []
    snapshots: list[tuple[int, list[Row]]] = []

    def append() -> None:
        for number in range(200):
            store.append(table, "alice", [(number, str(number))], notified.extend)

    def note(at: list[int]) -> None:
        at.append(len(notified))

    def read() -> None:
        for _ in range(60):
            at: list[int] = []
            rows = store.read(table, "alice", barrier=partial(note, at)).rows
            snapshots.append((at[0], rows))

    _run([append, append, read, read])
    for count, rows in snapshots:
        assert rows == notified[:count]
    store.close()


def test_a_table_dropped_under_appends_shows_nothing_when_it_is_made_again(tmp_path: Path) -> None:
    """Case 7: an append that loses the race gets a clear error."""
    store = make_store(tmp_path, ManualClock())
    refused: list[str] = []
    first = make_table(id=1)
    store.open_table(first)

    def append() -> None:
        try:
            for number in range(2000):
                store.append(first, "alice", [(number, "old")])
        except TidegateError as problem:
            refused.append(problem.code)

    def drop() -> None:
        store.drop(first)
        store.append(make_table(id=2), "alice", [(1, "new")])

    _run([append, append, drop])
    assert set(refused) <= {"TABLE_CHANGED"}
    assert [row[1] for row in store.read(make_table(id=2), "alice").rows] == ["new"]
    store.close()


def test_refused_writes_are_not_there_and_those_that_began_are(tmp_path: Path) -> None:
    slow, other = make_table(ttl_seconds=3600), make_table(id=2, name="other", ttl_seconds=3600)
    store = make_store(tmp_path, SystemClock())
    began, release, refused = threading.Event(), threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        release.wait(JOIN_SECONDS_MAX)

    def refuse() -> None:
        store.refuse_writes()
        refused.set()

    first = threading.Thread(target=lambda: store.append(slow, "alice", [(1, "begun")], before=wait))
    first.start()
    assert began.wait(JOIN_SECONDS_MAX)
    refusing = threading.Thread(target=refuse)
    refusing.start()
    stored = 0
    with pytest.raises(NotReady):
        while True:
            store.append(other, "alice", [(stored, "before")])
            stored += 1
    assert not refused.is_set()
    release.set()
    first.join(JOIN_SECONDS_MAX)
    refusing.join(JOIN_SECONDS_MAX)
    assert refused.is_set()
    assert texts(store, slow) == ["begun"]
    assert len(texts(store, other)) == stored
    store.close()
