"""Group commit: order, isolation, durability and recovery after a failed write."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import pytest

from tidegate.errors import NotReady, RequestInvalid, StorageFailed, StorageFull
from tidegate.storage.group_commit import FREEING_BYTES_MAX, GroupCommitter, StageLater, Staging
from tidegate.storage.memory import MemoryEngine
from tidegate.storage.rocksdb.engine import RocksEngine

T = TypeVar("T")


@pytest.fixture
def engine() -> MemoryEngine:
    return MemoryEngine()


@pytest.fixture
def committer(engine: MemoryEngine) -> Iterator[GroupCommitter]:
    made = GroupCommitter(engine)
    yield made
    made.close()


def _count_up(staging: Staging) -> int:
    value = int(staging.get(b"n") or b"0")
    staging.put(b"n", str(value + 1).encode())
    return value


def test_every_writer_gets_its_own_number_and_all_are_durable(
    engine: MemoryEngine, committer: GroupCommitter
) -> None:
    futures = [committer.submit(_count_up) for _ in range(1000)]
    assert [future.result(60) for future in futures] == list(range(1000))
    engine.crash()
    assert engine.get(b"n") == b"1000"


def test_a_refused_change_writes_nothing_and_its_neighbours_go_on(
    engine: MemoryEngine, committer: GroupCommitter
) -> None:
    def refused(staging: Staging) -> int:
        staging.put(b"torn", b"x")
        raise RequestInvalid(reason="no")

    hold = _hold(committer)
    futures = [committer.submit(_count_up), committer.submit(refused), committer.submit(_count_up)]
    hold.set()
    assert futures[0].result(60) == 0
    with pytest.raises(RequestInvalid):
        futures[1].result(60)
    assert futures[2].result(60) == 1
    assert engine.get(b"torn") is None


def test_a_failed_sync_fails_the_group_and_later_writes_start_from_the_disk(
    engine: MemoryEngine, committer: GroupCommitter
) -> None:
    assert committer.submit(_count_up).result(60) == 0
    engine.fail_next_sync(StorageFailed(path="memory", reason="the disk said no"))
    with pytest.raises(StorageFailed):
        committer.submit(_count_up).result(60)
    assert committer.submit(_count_up).result(60) == 1, "the failed write must not be counted"


def test_memory_is_told_of_a_group_that_failed_before_its_writers_are(
    engine: MemoryEngine, committer: GroupCommitter
) -> None:
    told: list[str] = []
    committer.when_failed(lambda: told.append("failed"))
    assert committer.submit(_count_up).result(60) == 0
    assert told == []
    engine.fail_next_write(StorageFailed(path="memory", reason="the disk said no"))
    answered = _when_answered(committer.submit(_count_up), lambda: told.append("answered"))
    with pytest.raises(StorageFailed):
        answered.result(60)
    assert told == ["failed", "answered"]


def test_a_failed_write_leaves_nothing(engine: MemoryEngine, committer: GroupCommitter) -> None:
    engine.fail_next_write(StorageFailed(path="memory", reason="the disk said no"))
    with pytest.raises(StorageFailed):
        committer.submit(_count_up).result(60)
    assert engine.get(b"n") is None
    assert committer.submit(_count_up).result(60) == 0


def test_an_engine_that_does_not_open_again_refuses_writers_and_serves_them_once_it_does(
    engine: MemoryEngine, committer: GroupCommitter
) -> None:
    reopen, refusals = engine.reopen, 3

    def stubborn() -> None:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            raise StorageFailed(path="memory", reason="still no disk")
        reopen()

    engine.reopen = stubborn  # type: ignore[method-assign]
    engine.fail_next_sync(StorageFailed(path="memory", reason="the disk said no"))
    for _ in range(4):
        with pytest.raises(StorageFailed):
            committer.submit(_count_up).result(60)
    assert committer.submit(_count_up).result(60) == 0


def test_answers_come_after_durability_and_callbacks_before_answers(
    engine: MemoryEngine, committer: GroupCommitter
) -> None:
    seen: list[str] = []

    def stage(staging: Staging) -> str:
        staging.put(b"k", b"v")
        staging.when_durable(lambda: seen.append("callback"))
        return "done"

    answered = _when_answered(committer.submit(stage), lambda: seen.append("answer"))
    assert answered.result(60) == "done"
    assert seen == ["callback", "answer"]
    engine.crash()
    assert engine.get(b"k") == b"v"


def test_a_range_delete_is_seen_by_the_next_change(engine: MemoryEngine, committer: GroupCommitter) -> None:
    def clear(staging: Staging) -> bytes | None:
        staging.put(b"m", b"own")
        staging.delete_range(b"a", b"z")
        return staging.get(b"m")

    hold = _hold(committer)
    first = committer.submit(_count_up)
    cleared = committer.submit(clear)
    after = committer.submit(_count_up)
    hold.set()
    assert (first.result(60), cleared.result(60), after.result(60)) == (0, None, 0)
    assert engine.get(b"m") is None


def test_a_change_that_asks_to_wait_is_staged_in_the_next_group(
    engine: MemoryEngine, committer: GroupCommitter
) -> None:
    def needs_durable(staging: Staging) -> bytes | None:
        if engine.get(b"n") is None:
            raise StageLater
        return engine.get(b"n")

    hold = _hold(committer)
    first = committer.submit(_count_up)
    second = committer.submit(needs_durable)
    third = committer.submit(_count_up)
    hold.set()
    assert (first.result(60), second.result(60), third.result(60)) == (0, b"1", 1)


def test_a_closed_committer_finishes_what_it_took_and_refuses_more(engine: MemoryEngine) -> None:
    committer = GroupCommitter(engine)
    futures = [committer.submit(_count_up) for _ in range(50)]
    committer.close()
    assert [future.result(0) for future in futures] == list(range(50))
    with pytest.raises(NotReady):
        committer.submit(_count_up)


def test_refused_changes_are_not_written_and_those_in_work_are(engine: MemoryEngine) -> None:
    committer = GroupCommitter(engine)
    release, busy = threading.Event(), threading.Event()

    def slow(staging: Staging) -> str:
        staging.put(b"slow", b"x")
        staging.close_group()
        busy.set()
        release.wait(60)
        return "written"

    async def commit_both() -> list[object]:
        first = asyncio.ensure_future(committer.commit(slow))
        await asyncio.to_thread(busy.wait, 60)
        waiting = [asyncio.ensure_future(committer.commit(_count_up)) for _ in range(3)]
        queued = committer.submit(_count_up)
        await asyncio.sleep(0)
        refusing = asyncio.ensure_future(asyncio.to_thread(committer.refuse_waiting))
        refused = await asyncio.gather(*waiting, return_exceptions=True)
        assert not first.done()
        assert not refusing.done()
        with pytest.raises(NotReady):
            queued.result(60)
        with pytest.raises(NotReady):
            committer.submit(_count_up)
        release.set()
        await refusing
        # Whoever waits for the refusal finds every answer there.
        assert first.done()
        return [await first, *(type(problem) for problem in refused)]

    assert asyncio.run(commit_both()) == ["written", NotReady, NotReady, NotReady]
    committer.close()
    engine.crash()
    assert (engine.get(b"slow"), engine.get(b"n")) == (b"x", None)


def test_commit_waits_on_an_event_loop_without_a_thread_each(committer: GroupCommitter) -> None:
    async def many() -> list[int]:
        return list(await asyncio.gather(*(committer.commit(_count_up) for _ in range(300))))

    before = threading.active_count()
    assert sorted(asyncio.run(many())) == list(range(300))
    assert threading.active_count() <= before + 1


def test_a_cancelled_wait_does_not_harm_the_others(committer: GroupCommitter) -> None:
    async def one_leaves() -> int:
        leaving = asyncio.ensure_future(committer.commit(_count_up))
        staying = asyncio.ensure_future(committer.commit(_count_up))
        await asyncio.sleep(0)
        leaving.cancel()
        return await staying

    assert asyncio.run(one_leaves()) == 1


def _when_answered(future: Future[T], note: Callable[[], None]) -> Future[T]:
    """Note when a future is answered; what is given back has its answer once that is noted.

    Whoever waits for a future goes on while its callbacks may still run.
    """
    noted: Future[T] = Future()

    def pass_on(done: Future[T]) -> None:
        note()
        problem = done.exception()
        if problem is None:
            noted.set_result(done.result())
        else:
            noted.set_exception(problem)

    future.add_done_callback(pass_on)
    return noted


def _hold(committer: GroupCommitter) -> threading.Event:
    """Keep the committer busy so that what follows forms one group."""
    release, busy = threading.Event(), threading.Event()

    def wait(staging: Staging) -> None:
        staging.close_group()
        busy.set()
        release.wait(60)

    committer.submit(wait)
    assert busy.wait(60)
    return release


def test_a_change_that_removes_a_range_and_notes_little_works_on_a_full_disk(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path / "engine", free_bytes=lambda _path: 0)
    committer = GroupCommitter(engine)

    def trim(note: bytes) -> None:
        def stage(staging: Staging) -> None:
            staging.delete_range(b"a", b"b")
            staging.put(b"note", note)

        committer.submit(stage).result(60)

    trim(b"small")
    with pytest.raises(StorageFull):
        trim(b"x" * FREEING_BYTES_MAX)
    with pytest.raises(StorageFull):
        committer.submit(lambda staging: staging.put(b"k", b"v")).result(60)
    committer.close()
    assert engine.get(b"note") == b"small"
    engine.close()
