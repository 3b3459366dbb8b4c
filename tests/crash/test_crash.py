"""The short form of the crash loop, and proof that it can fail."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.crash.history import Fault, report, smallest_history
from tests.crash.journal import Journal
from tests.crash.loop import run_loop
from tests.crash.nemesis import Nemesis
from tests.crash.workload import _differences, _doubles

KILLS = 20


@pytest.mark.crash
def test_twenty_kills_under_load_lose_nothing_and_double_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = secrets.randbelow(10**6)
    with capsys.disabled():
        print(f" crash loop with seed {seed} ", end="", flush=True)
    outcome = run_loop(tmp_path, seed, KILLS)
    assert not outcome.faults, outcome.report
    assert outcome.kills == KILLS
    assert outcome.acknowledged > 100, "there was no load to speak of"


def test_the_same_seed_strikes_alike() -> None:
    one, other = Nemesis(7), Nemesis(7)
    assert [one.next() for _ in range(30)] == [other.next() for _ in range(30)]


def test_a_lost_a_changed_and_a_doubled_message_are_found() -> None:
    acked = {(0, 0): "a", (0, 1): "b", (1, 0): "c"}
    assert not _differences("p", acked, dict(acked))
    (lost,) = _differences("p", acked, {(0, 0): "a", (1, 0): "c"})
    assert lost.subjects == ("b",)
    (changed,) = _differences("p", acked, {**acked, (0, 1): "z"})
    assert changed.subjects == ("b",)
    (extra,) = _differences("p", acked, {**acked, (9, 9): "x"})
    assert extra.subjects == ("x",)
    assert _doubles("p", [((0, 0), "a"), ((0, 1), "b"), ((0, 2), "a")])[0].subjects == ("a",)


def test_the_smallest_history_shows_the_subject_and_the_kills_around_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    for kind, subject in [
        ("kill", "server"),
        ("acked", "other"),
        ("kill", "worker"),
        ("sent", "lost"),
        ("kill", "java"),
        ("acked", "lost"),
        ("acked", "other"),
        ("kill", "up"),
        ("kill", "server"),
    ]:
        journal.add(kind, subject)
    fault = Fault("nothing is lost", "lost is not there", ("lost",))
    assert [event.number for event in smallest_history(journal, fault)] == [2, 3, 4, 5, 7]
    text = report(journal, [fault], 42)
    assert "--seed 42" in text
    assert "nothing is lost" in text
    journal.close()
