"""Gathering: what the changes of a group leave under one name becomes puts once, in commit order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from tidegate.errors import RequestInvalid
from tidegate.storage.group_commit import GroupCommitter, Staging
from tidegate.storage.memory import MemoryEngine


class Bench:
    """A committer whose first change waits until the test has queued the others: they form one group."""

    def __init__(self) -> None:
        self.engine = MemoryEngine()
        self.committer = GroupCommitter(self.engine)
        self.finished: list[list[bytes]] = []
        self.durable: list[str] = []
        self._gate = threading.Event()
        self._first = self.committer.submit(lambda _staging: self._gate.wait(60))

    def add(self, part: bytes, *, then: Callable[[Staging], None] | None = None) -> Future[bytes]:
        def stage(staging: Staging) -> bytes:
            seen = staging.get(b"sum") or b""
            staging.foresee(b"sum", seen + part)
            staging.gather("sum", part, len(part), self._finish)
            if then is not None:
                then(staging)
            return seen

        return self.committer.submit(stage)

    def go(self) -> None:
        self._gate.set()
        self._first.result(60)

    def _finish(self, parts: list[Any]) -> tuple[list[tuple[bytes, bytes]], Callable[[], None]]:
        self.finished.append(list(parts))
        whole = (self.engine.get(b"sum") or b"") + b"".join(parts)
        return [(b"sum", whole)], lambda: self.durable.append(whole.decode())


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.committer.close()


def refuse(_staging: Staging) -> None:
    raise RequestInvalid(reason="no")


def test_parts_of_a_group_become_one_put_and_each_change_reads_those_before_it(bench: Bench) -> None:
    futures = [bench.add(part) for part in (b"a", b"b", b"c")]
    bench.go()
    assert [future.result(60) for future in futures] == [b"", b"a", b"ab"]
    assert bench.finished == [[b"a", b"b", b"c"]]
    assert bench.engine.get(b"sum") == b"abc"
    assert bench.durable == ["abc"]


def test_a_change_that_is_refused_leaves_nothing(bench: Bench) -> None:
    first, refused, last = bench.add(b"a"), bench.add(b"b", then=refuse), bench.add(b"c")
    bench.go()
    assert (first.result(60), last.result(60)) == (b"", b"a")
    with pytest.raises(RequestInvalid):
        refused.result(60)
    assert bench.engine.get(b"sum") == b"ac"


def test_a_removal_takes_what_was_gathered_before_it_in_the_same_group(bench: Bench) -> None:
    bench.add(b"a")
    removal = bench.committer.submit(lambda staging: staging.delete_range(b"s", b"t"))
    later = bench.add(b"z")
    bench.go()
    removal.result(60)
    assert later.result(60) == b""
    assert bench.engine.get(b"sum") == b"z"


def test_what_was_gathered_is_durable_before_its_writers_are_answered(bench: Bench) -> None:
    future = bench.add(b"a")
    bench.go()
    future.result(60)
    bench.engine.crash()
    assert bench.engine.get(b"sum") == b"a"
