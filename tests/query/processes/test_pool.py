"""The pool: no child can hold its caller beyond the limits, and nobody else notices what becomes of it."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextvars import copy_context

import pytest

from tests.query.processes.echo_child import ABORT, ECHO, FINISH, HOG, PID, SLEEP, WAIT_INTERRUPT
from tests.query.processes.test_fork_server import wait_gone
from tidegate.errors import NotReady, QueryCrashed, QueryMemory, QueryTimeout, TidegateError
from tidegate.query.processes.pool import ChildPool
from tidegate.query.processes.watch import Stopper, Watch

LONG_SECONDS = 600.0
MEMORY_MB = 64
SEED = int(os.environ.get("TIDEGATE_TEST_SEED", "20"))


def ask(
    pool: ChildPool,
    kind: int,
    content: bytes = b"",
    *,
    owner: str = "a",
    limit_seconds: float = LONG_SECONDS,
) -> bytes:
    """Run one statement of one call, as the server does."""
    with pool.session(owner, Watch(pool.seconds, limit_seconds), MEMORY_MB) as session:
        answer = bytes(session.call(kind, content).content)
        session.finish(FINISH)
        return answer


def test_a_child_is_used_again_by_its_owner_and_by_nobody_else(pool: ChildPool) -> None:
    mine = {ask(pool, PID) for _ in range(5)}
    theirs = {ask(pool, PID, owner="b") for _ in range(5)}
    assert len(mine) == len(theirs) == 1
    assert mine != theirs
    assert pool.counts["retired"] == 0


def test_a_child_that_does_not_answer_is_killed_after_its_time(pool: ChildPool) -> None:
    pid = int(ask(pool, PID))
    with pytest.raises(QueryTimeout) as caught:
        ask(pool, SLEEP, b"86400", limit_seconds=0.2)
    assert caught.value.values == {"limit_seconds": 0.2}
    wait_gone(pid)
    assert int(ask(pool, PID)) != pid
    assert pool.counts["time"] == 1


def test_a_child_that_hears_the_interrupt_is_not_killed_for_it(pool: ChildPool) -> None:
    with pytest.raises(QueryTimeout), pool.session("a", Watch(pool.seconds, 0.2), MEMORY_MB) as session:
        session.call(WAIT_INTERRUPT, b"")  # answers when it is interrupted
        session.watch.check()
    assert (pool.counts["time"], pool.counts["stopped"]) == (0, 1)


def test_a_child_that_takes_too_much_memory_is_killed_at_once(pool: ChildPool) -> None:
    assert ask(pool, HOG, b"8") == b"8"
    with pytest.raises(QueryMemory) as caught:
        ask(pool, HOG, b"20000")
    assert caught.value.values == {"memory_mb": MEMORY_MB}
    assert pool.counts["memory"] == 1
    assert ask(pool, ECHO, b"x") == b"x"


def test_a_child_that_stays_large_is_replaced(pool: ChildPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.query.processes.pool.RETAINED_MB_MAX", 40)
    pid = ask(pool, PID)
    assert ask(pool, HOG, b"60") == b"60"
    assert ask(pool, PID) != pid
    assert pool.counts["retired"] == 1


def test_a_child_that_dies_costs_its_own_caller_an_error(pool: ChildPool) -> None:
    with pytest.raises(QueryCrashed):
        ask(pool, ABORT)
    assert ask(pool, ECHO, b"x") == b"x"
    assert pool.counts["crash"] == 1


def test_a_child_that_died_while_it_was_idle_costs_nobody_anything(pool: ChildPool) -> None:
    pid = int(ask(pool, PID))
    os.kill(pid, signal.SIGKILL)
    wait_gone(pid)
    assert int(ask(pool, PID)) != pid


def test_an_answer_that_was_not_read_is_not_the_next_callers(pool: ChildPool) -> None:
    with pool.session("a", Watch(pool.seconds, LONG_SECONDS), MEMORY_MB) as session:
        session.post(ECHO, b"of the first caller")
    assert ask(pool, ECHO, b"of the second") == b"of the second"


def test_what_one_caller_runs_is_stopped_and_nothing_else(pool: ChildPool) -> None:
    stopper, gone = Stopper(), NotReady(reason="nobody waits")
    context = copy_context()
    context.run(stopper.enter)
    timer = threading.Timer(0.2, stopper.stop, [gone])
    timer.start()
    with pytest.raises(NotReady) as caught:
        context.run(ask, pool, SLEEP, b"86400")
    assert caught.value is gone
    with pytest.raises(NotReady):
        context.run(ask, pool, ECHO)
    timer.join()
    assert ask(pool, ECHO, b"x") == b"x"


def test_idle_children_of_many_owners_are_bounded(pool: ChildPool) -> None:
    pids = [int(ask(pool, PID, owner=f"owner {number}")) for number in range(12)]
    assert pool.idle_count <= 9
    wait_gone(*pids[:4])
    pool.drop("owner 11")
    wait_gone(pids[11])


def test_every_statement_has_its_own_answer_while_children_are_killed(pool: ChildPool) -> None:
    """Random kills of busy and idle children; the seed is printed."""
    print(f"seed {SEED}")
    chance, wrong, done = random.Random(SEED), [], []
    over = threading.Event()

    def work(number: int) -> None:
        mine = random.Random(SEED * 1000 + number)
        for turn in range(40):
            content = f"{number}/{turn}".encode() * mine.choice((1, 1000, 200_000))
            try:
                answer = ask(pool, ECHO, content, owner=f"owner {number % 3}")
            except QueryCrashed:
                done.append("killed")
                continue
            except TidegateError as problem:
                wrong.append(repr(problem))
                continue
            done.append("answered")
            if answer != content:
                wrong.append(f"{number}/{turn}")

    def kill() -> None:
        while not over.is_set():
            for session in list(pool._running):
                if chance.random() < 0.2:
                    session.child.kill()
            for child in list(pool._idle):
                if chance.random() < 0.2:
                    child.kill()
            time.sleep(chance.random() * 0.02)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    killer = threading.Thread(target=kill)
    for thread in (*threads, killer):
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    killer.join()
    assert wrong == []
    assert len(done) == 240
    assert done.count("answered") > 0
    assert ask(pool, ECHO, b"after") == b"after"
