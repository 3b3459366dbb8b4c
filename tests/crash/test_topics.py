"""The short forms of the crash loops of topics, and proof that each can fail."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any

import pytest

from tests.crash import routes, sink
from tests.crash.journal import Journal
from tests.crash.ledger import Ledger, Place
from tests.crash.loop import Outcome, run_loop
from tests.crash.routes import OWN, SHARED, Replay, RowKey

SERVER_KILLS = 3
SINK_KILLS = 3
LOAD = 5


def _run(folder: Path, kills: int, capsys: pytest.CaptureFixture[str], *chosen: str) -> Outcome:
    seed = secrets.randbelow(10**6)
    with capsys.disabled():
        print(f" crash loop of {' and '.join(chosen)} with seed {seed} ", end="", flush=True)
    outcome = run_loop(folder, seed, kills, chosen, LOAD)
    assert not outcome.faults, outcome.report
    assert outcome.kills == kills
    return outcome


@pytest.mark.crash
def test_kills_leave_tables_and_topics_alike_and_no_message_undone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cases 15 and 18: row and message are one write; at least once, and never again after the ack."""
    outcome = _run(tmp_path, SERVER_KILLS, capsys, "routes", "groups")
    assert min(outcome.acknowledged.values()) > LOAD, f"no load to speak of: {outcome.acknowledged}"


@pytest.mark.crash
def test_kills_leave_each_message_once_in_what_a_sink_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case 24: the sink writes a batch once however often it is retried."""
    outcome = _run(tmp_path, SINK_KILLS, capsys, "sink")
    assert min(outcome.acknowledged.values()) > LOAD, f"no load to speak of: {outcome.acknowledged}"


ROW = {"id": 1, "writer": 0, "grp": 0, "op": 1, "value": "a"}
NEXT = {**ROW, "op": 2, "value": "b"}


def _message(offset: int, op: str, payload: dict[str, Any], *, user: str | None = None) -> dict[str, Any]:
    place = {"partition": 0, "offset": offset, "messageId": f"m{offset}"}
    return {**place, "op": op, "source": OWN if user else SHARED, "user": user, "payload": payload}


def _change(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    names = [name for name in routes.NAMES if old.get(name) != new.get(name)]
    changed = {name: {"old": old.get(name), "new": new.get(name)} for name in names}
    return {"key": {"id": 1}, "changed": changed}


def _faults(mode: str, messages: list[dict[str, Any]], rows: dict[RowKey, dict[str, Any]]) -> int:
    replay = Replay(mode)
    replay.take(messages)
    return len(routes.compare("t", rows, replay))


@pytest.mark.parametrize("mode", ["full", "diff"])
def test_a_topic_that_differs_from_its_table_is_found(mode: str) -> None:
    insert = _message(0, "INSERT", ROW if mode == "full" else _change({}, ROW))
    update = _message(1, "UPDATE", NEXT if mode == "full" else _change(ROW, NEXT))
    delete = _message(2, "DELETE", NEXT if mode == "full" else _change(NEXT, {}))
    key = RowKey(SHARED, None, 1)
    assert not _faults(mode, [insert, update], {key: NEXT})
    assert not _faults(mode, [insert, update, delete], {})
    assert _faults(mode, [insert], {key: NEXT}), "a row without its message"
    assert _faults(mode, [insert, update], {key: ROW}), "a message without its row"
    assert _faults(mode, [insert, update, delete], {key: NEXT}), "a delete that was not done"
    assert _faults(mode, [insert, {**insert, "offset": 1}], {key: ROW}), "a message twice"
    assert _faults(mode, [insert, {**update, "offset": 2}], {key: NEXT}), "a gap"
    assert _faults(mode, [{**update, "offset": 0}], {key: NEXT}), "an update of nothing"
    stale = _message(2, "DELETE", ROW if mode == "full" else _change(ROW, {}))
    assert _faults(mode, [insert, update, stale], {}), "another row before than there was"


def test_two_users_with_one_key_are_two_rows() -> None:
    both = [_message(0, "INSERT", ROW, user="a"), _message(1, "INSERT", NEXT, user="b")]
    rows = {RowKey(OWN, "a", 1): ROW, RowKey(OWN, "b", 1): NEXT}
    assert not _faults("full", both, rows)
    assert _faults("full", both[:1], rows)


class Course:
    """Members of a group, and what the ledger has to say about it."""

    def __init__(self, folder: Path) -> None:
        self.ledger = Ledger(Journal(folder / "journal"))
        self.place = Place(0, 0)

    def give(self, member: str, delivery: int, *, seconds: float = 60, asked: int | None = None) -> None:
        message: dict[str, Any] = {
            "partition": 0,
            "offset": 0,
            "lease": f"{member}.{delivery}",
            "deliveries": delivery,
        }
        message["payload"] = {"subject": "maker-0/0"}
        tick = self.ledger.tick() if asked is None else asked
        self.ledger.given(member, [message], tick, time.monotonic() + seconds)

    def promises(self) -> list[str]:
        return [fault.promise for fault in self.ledger.faults({self.place}, set())]


def test_a_message_that_comes_after_its_ack_is_found(tmp_path: Path) -> None:
    """Case 18."""
    course = Course(tmp_path)
    asked = course.ledger.tick()
    course.give("a", 1)
    course.ledger.acked("a", [course.place])
    assert not course.promises()
    course.give("b", 2, seconds=-1, asked=asked)  # asked before the ack was answered
    assert not course.promises()
    course.give("b", 3)
    assert course.promises() == ["what was acknowledged does not come again"]


def test_a_message_that_two_hold_is_found(tmp_path: Path) -> None:
    """Case 18."""
    course = Course(tmp_path)
    course.give("a", 1, seconds=-1)
    course.give("b", 2)
    course.ledger.unsure([course.place])
    assert not course.promises()
    course.give("c", 3)
    course.give("d", 4)
    assert course.promises() == ["a message is given to one member at a time"]
    course.ledger.released("d", [course.place], is_counted=True)
    course.give("e", 5)
    assert not course.promises()
    course.ledger.told_lost("e", [course.place])
    assert course.promises() == ["a lease is held for its time"]
    course.ledger.released("e", [course.place], is_counted=True)
    course.give("f", 5)
    assert course.promises() == ["each delivery has a number of its own"]


def test_an_ack_by_one_who_came_late_is_found(tmp_path: Path) -> None:
    """Case 18: a consumer that comes back late cannot ack another's lease."""
    course = Course(tmp_path)
    course.give("a", 1, seconds=-1)
    course.give("b", 2)
    course.ledger.acked("a", [course.place])
    assert course.promises() == ["nobody acknowledges what another was given since"]
    course.ledger.acked("b", [course.place])
    assert course.promises() == ["a message is acknowledged once"]


def test_an_ack_up_to_an_offset_is_not_of_what_another_was_given_before_it_came_in(tmp_path: Path) -> None:
    """Case 18: the server was away when the ack was sent, and somebody else was quicker after it."""
    course = Course(tmp_path)
    course.give("a", 1, seconds=-1)
    covered = course.ledger.covered("a", {0: 0})
    course.give("b", 2)
    course.ledger.acked_upto("a", covered, 0)
    assert course.promises() == ["every message comes until it is acknowledged"]
    course.ledger.acked_upto("a", covered, 1)
    assert "an ack says how many it did" in course.promises()
    course.ledger.acked("b", [course.place])
    assert not course.promises()


def test_a_message_that_nobody_was_given_or_acknowledged_is_found(tmp_path: Path) -> None:
    course = Course(tmp_path)
    assert course.promises() == ["every message is given at least once"]
    course.give("a", 1)
    assert course.promises() == ["every message comes until it is acknowledged"]
    assert not course.ledger.faults({course.place}, {course.place}), "it is a dead letter"
    course.ledger.acked_upto("a", course.ledger.covered("a", {0: 0}), 1)
    assert not course.promises()


def test_what_a_sink_lost_doubled_or_made_up_is_found() -> None:
    rows = [((0, 0), "a"), ((0, 1), "b")]
    assert not sink.carried(["a", "b"], rows)
    assert sink.carried(["a", "b", "c"], rows)[0].subjects == ("c",)
    assert sink.carried(["a"], rows)[0].subjects == ("b",)
    assert sink.carried(["a", "b"], [*rows, ((0, 2), "a")])[0].subjects == ("a",)
