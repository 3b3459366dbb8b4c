"""Answers by key: a repeated request is answered as the first time, and the deed is done once."""

from __future__ import annotations

import pytest

from tests.topics.bench import NOW_US, build
from tidegate.errors import IdempotencyKeyReused, StorageCorrupt, TopicExists
from tidegate.ingest.idempotency import (
    RETENTION_SECONDS,
    Answer,
    IdempotentRequest,
    old_answers,
    stage_forget,
    stage_idempotent,
)
from tidegate.storage.group_commit import GroupCommitter, Staging
from tidegate.storage.keys import KeySpace, join, prefix_range
from tidegate.storage.memory import MemoryEngine
from tidegate.testing.clock import ManualClock

DAY_US = RETENTION_SECONDS * 1_000_000
PATIENCE_SECONDS = 60


def once(
    key: str = "k", fingerprint: bytes = b"f" * 16, now_us: int = NOW_US, user: str = "ann"
) -> IdempotentRequest:
    return IdempotentRequest("default", user, key, fingerprint, now_us)


class Deed:
    """Something that must happen once: it counts itself."""

    def __init__(self) -> None:
        self.done = 0

    def __call__(self, staging: Staging) -> Answer:
        self.done += 1
        staging.put(join(KeySpace.SYSTEM, b"deed"), str(self.done).encode())
        return Answer(201, f"done {self.done}".encode())


def ask(committer: GroupCommitter, asked: IdempotentRequest, deed: Deed) -> Answer:
    return committer.submit(lambda staging: stage_idempotent(staging, asked, deed)).result(PATIENCE_SECONDS)


def test_a_repeat_is_answered_as_the_first_time_and_the_deed_is_done_once() -> None:
    engine, deed = MemoryEngine(), Deed()
    committer = GroupCommitter(engine)
    first = ask(committer, once(), deed)
    assert (first.status, first.body) == (201, b"done 1")
    assert ask(committer, once(now_us=NOW_US + 5), deed) == first
    assert deed.done == 1
    committer.close()


def test_after_a_crash_the_deed_and_its_answer_are_both_there_or_neither() -> None:
    engine, deed = MemoryEngine(), Deed()
    committer = GroupCommitter(engine)
    ask(committer, once("kept"), deed)
    committer.close()
    engine.crash()
    committer = GroupCommitter(engine)
    assert ask(committer, once("kept"), deed).body == b"done 1"
    committer.close()


def test_two_repeats_in_one_group_do_the_deed_once() -> None:
    engine, deed = MemoryEngine(), Deed()
    committer = GroupCommitter(engine)
    futures = [committer.submit(lambda staging: stage_idempotent(staging, once(), deed)) for _ in range(20)]
    assert {future.result(PATIENCE_SECONDS).body for future in futures} == {b"done 1"}
    committer.close()


def test_a_key_with_another_request_is_refused() -> None:
    engine, deed = MemoryEngine(), Deed()
    committer = GroupCommitter(engine)
    ask(committer, once(), deed)
    with pytest.raises(IdempotencyKeyReused):
        ask(committer, once(fingerprint=b"g" * 16), deed)
    committer.close()


def test_the_same_key_of_another_user_is_another_key() -> None:
    engine, deed = MemoryEngine(), Deed()
    committer = GroupCommitter(engine)
    ask(committer, once(user="ann"), deed)
    assert ask(committer, once(user="bob"), deed).body == b"done 2"
    committer.close()


def test_a_refused_deed_is_not_remembered() -> None:
    bench = build(MemoryEngine(), ManualClock(NOW_US))
    bench.create("app.x")

    def deed(staging: Staging) -> Answer:
        bench.directory.stage_create(staging, "default", "app.x", 1, NOW_US)
        return Answer(201, b"")

    for _ in range(2):
        with pytest.raises(TopicExists):
            bench.committer.submit(lambda staging: stage_idempotent(staging, once(), deed)).result(
                PATIENCE_SECONDS
            )
    bench.committer.close()


def test_an_answer_is_kept_for_a_day_and_then_nothing_of_it_is_left() -> None:
    engine, deed = MemoryEngine(), Deed()
    committer = GroupCommitter(engine)
    ask(committer, once(), deed)
    assert old_answers(engine, NOW_US + DAY_US - 1) == []
    old = old_answers(engine, NOW_US + DAY_US + 1)
    assert len(old) == 1
    committer.submit(lambda staging: stage_forget(staging, old)).result(PATIENCE_SECONDS)
    assert old_answers(engine, NOW_US + DAY_US + 1, old[-1]) == []
    assert not list(engine.scan(prefix_range(KeySpace.ANSWER)))
    assert not list(engine.scan(prefix_range(KeySpace.ANSWER_TIME)))
    committer.close()


def test_a_key_comes_free_after_a_day_even_when_nobody_cleaned_up() -> None:
    engine, deed = MemoryEngine(), Deed()
    committer = GroupCommitter(engine)
    ask(committer, once(), deed)
    later = once(fingerprint=b"g" * 16, now_us=NOW_US + DAY_US)
    assert ask(committer, later, deed).body == b"done 2"
    assert len(list(engine.scan(prefix_range(KeySpace.ANSWER_TIME)))) == 1
    committer.close()


def test_a_key_that_is_used_again_while_it_is_cleaned_up_keeps_its_new_answer() -> None:
    engine, deed = MemoryEngine(), Deed()
    committer = GroupCommitter(engine)
    ask(committer, once(), deed)
    old = old_answers(engine, NOW_US + DAY_US + 1)
    again = once(now_us=NOW_US + DAY_US + 2)
    ask(committer, again, deed)
    committer.submit(lambda staging: stage_forget(staging, old)).result(PATIENCE_SECONDS)
    assert ask(committer, again, deed).body == b"done 2"
    assert deed.done == 2
    committer.close()


def test_an_answer_of_a_newer_version_is_refused_not_guessed() -> None:
    engine, deed = MemoryEngine(), Deed()
    committer = GroupCommitter(engine)
    ask(committer, once(), deed)
    key = join(KeySpace.ANSWER, once().digest)
    stored = engine.get(key) or b""
    batch = engine.batch()
    batch.put(key, b"\x09" + stored[1:])
    engine.write(batch)
    with pytest.raises(StorageCorrupt):
        ask(committer, once(), deed)
    committer.close()
