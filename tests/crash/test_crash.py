"""The short form of the crash loop, and proof that it can fail."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.crash import streams, tables
from tests.crash.door import Crew, Door, UnsureError
from tests.crash.history import Fault, report, smallest_history
from tests.crash.journal import Journal
from tests.crash.loop import run_loop
from tests.crash.nemesis import Nemesis
from tests.crash.pulse import BEAT_SECONDS, BEATS, Pulse
from tests.crash.workload import differences, doubles, repeat_faults

KILLS = 20
LOAD = 100


@pytest.mark.crash
def test_twenty_kills_under_load_lose_nothing_and_double_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = secrets.randbelow(10**6)
    with capsys.disabled():
        print(f" crash loop with seed {seed} ", end="", flush=True)
    outcome = run_loop(tmp_path, seed, KILLS, load=LOAD)
    assert not outcome.faults, outcome.report
    assert outcome.kills == KILLS
    assert min(outcome.acknowledged.values()) > LOAD, f"no load to speak of: {outcome.acknowledged}"


def test_the_same_seed_strikes_alike() -> None:
    one, other = Nemesis(7), Nemesis(7)
    assert [one.next() for _ in range(30)] == [other.next() for _ in range(30)]


def test_a_lost_a_changed_and_a_doubled_message_are_found() -> None:
    acked = {(0, 0): "a", (0, 1): "b", (1, 0): "c"}
    assert not differences("p", acked, dict(acked))
    (lost,) = differences("p", acked, {(0, 0): "a", (1, 0): "c"})
    assert lost.subjects == ("b",)
    (changed,) = differences("p", acked, {**acked, (0, 1): "z"})
    assert changed.subjects == ("b",)
    (extra,) = differences("p", acked, {**acked, (9, 9): "x"})
    assert extra.subjects == ("x",)
    assert doubles("p", [((0, 0), "a"), ((0, 1), "b"), ((0, 2), "a")])[0].subjects == ("a",)


def test_a_repeat_that_was_stored_again_or_told_another_place_is_found() -> None:
    acked = {"a": (0, 4, "7"), "b": (1, 2, "8")}
    first = {"partition": 0, "offset": 4, "messageId": "7", "duplicate": True}
    assert not repeat_faults(acked, ["a"], [first])
    stored = {"partition": 0, "offset": 9, "messageId": "11"}
    assert repeat_faults(acked, ["a"], [stored])[0].subjects == ("a",)
    assert repeat_faults(acked, ["a", "b"], [first, {**first, "offset": 2}])[0].subjects == ("b",)


ROWS_BEFORE = [(100, 1, 7, tables.value_text(0, 7)), (101, 1, 7, tables.value_text(0, 7))]
ROWS_AFTER = [(number, 1, 9, tables.value_text(0, 9)) for number in (100, 101, 102)]


def _table_faults(possible: list[tables.State | None], rows: list[tuple[int, int, int, str]]) -> list[str]:
    group = tables.Group(1, possible)
    return [fault.promise for fault in tables.compare(str, [group], rows, 0)]


def test_a_statement_whose_answer_was_lost_is_done_wholly_or_not_at_all() -> None:
    """Case 10: a statement is atomic."""
    before, after = tables.State(7, 2), tables.State(9, 3)
    assert not _table_faults([before, after], ROWS_BEFORE)
    assert not _table_faults([before, after], ROWS_AFTER)
    assert not _table_faults([before, None], [])
    assert _table_faults([before, after], ROWS_AFTER[:2]), "part of the new rows"
    assert _table_faults([before, after], [*ROWS_AFTER[:1], ROWS_BEFORE[1]]), "some changed, some not"
    assert _table_faults([None, after], ROWS_AFTER[1:]), "the first row is missing"


def test_an_acknowledged_row_that_is_lost_changed_or_doubled_is_found() -> None:
    before, after = tables.State(7, 2), tables.State(9, 3)
    assert not _table_faults([after], ROWS_AFTER)
    assert _table_faults([after], ROWS_BEFORE), "an acknowledged statement was undone"
    assert _table_faults([before], []), "rows are gone"
    assert _table_faults([None], ROWS_BEFORE), "a deleted group is there again"
    assert _table_faults([before], [ROWS_BEFORE[0], *ROWS_BEFORE]), "one row twice"
    assert _table_faults([before], [(100, 1, 7, "z"), ROWS_BEFORE[1]]), "another value"
    assert _table_faults([before], [*ROWS_BEFORE, (500, 5, 7, "z")]), "a row that nobody wrote"


def test_what_a_look_found_must_stay() -> None:
    group = tables.Group(1, [None, tables.State(9, 3)])
    assert not tables.compare(str, [group], ROWS_AFTER, 0)
    (fault,) = tables.compare(str, [group], [], 0)
    assert fault.subjects == ("1",)


def test_an_append_is_owed_once_it_had_its_time_before_the_kill() -> None:
    """Case 4: buffered bytes reach the file within a bounded time."""
    batches = [
        streams.Batch(0, 1, 1.0, 1.1),  # long before the kill at 5
        streams.Batch(1, 1, 4.8, 4.9),  # just before it
        streams.Batch(2, 1, 4.9, 5.1),  # its answer was read after it
        streams.Batch(3, 1, 4.9, None),  # never answered
        streams.Batch(4, 1, 6.0, 6.1),  # no kill after it
    ]
    kills = [streams.Kill(5.0, 5.0)]
    assert streams.needed_batches(batches, kills, 1.0, _passed) == {0, 4}
    assert streams.needed_batches(batches, kills, None, _passed) == {0, 1, 2, 4}


def test_an_append_is_not_owed_by_a_server_that_had_no_time_for_it() -> None:
    batches = [streams.Batch(0, 1, 1.0, 1.1), streams.Batch(1, 1, 4.8, 4.9), streams.Batch(2, 1, 6.0, 6.1)]
    written_late = [streams.Kill(5.0, 9.0)]
    assert streams.needed_batches(batches, written_late, 1.0, _passed) == {0}
    assert streams.needed_batches(batches, written_late, 1.0, lambda _start, _stop: 0.9) == set()


def test_time_in_which_the_server_did_not_answer_does_not_count(tmp_path: Path) -> None:
    journal, crew = Journal(tmp_path / "journal"), Crew()
    pulse, door = Pulse(journal), _Door(crew)
    begun = journal.now_seconds()
    pulse.run(door, crew)
    assert pulse.lived_seconds(begun, journal.now_seconds()) == pytest.approx(2 * BEAT_SECONDS)
    assert pulse.lived_seconds(journal.now_seconds(), begun) == 0
    journal.close()


class _Door(Door):
    """Answers the first statement, loses the second and answers the third, which is the last."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def ask(self, sql: str, params: Sequence[object] = ()) -> dict[str, Any]:
        assert BEATS in sql
        if params == [1]:
            raise UnsureError
        if params == [2]:
            self._crew.stopping.set()
        return {}


def _passed(start: float, stop: float) -> float:
    return stop - start


def test_an_append_that_is_lost_torn_changed_or_doubled_is_found() -> None:
    sent = {0: streams.Batch(0, 2, 1.0, 1.1), 1: streams.Batch(1, 1, 1.2, None)}
    rows = [(n, 0, 2, streams.body_text(n)) for n in (0, 1)]

    def subjects(found: list[tuple[int, int, int, str]]) -> list[tuple[str, ...]]:
        return [fault.subjects for fault in streams.compare(str, sent, {0}, found)]

    assert not subjects(rows)
    assert not subjects([*rows, (100, 1, 1, streams.body_text(100))])
    assert subjects([]) == [("0",)]
    assert subjects(rows[:1]) == [("0",)]
    assert subjects([rows[0], *rows]) == [("0",)]
    assert subjects([rows[0], (1, 0, 2, "torn")]) == [("0",)]
    assert subjects([*rows, (900, 9, 1, streams.body_text(900))]) == [("9",)]


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
    text = report(journal, [fault], 42, ["topic"])
    assert "--seed 42 --workload topic" in text
    assert "nothing is lost" in text
    journal.close()
