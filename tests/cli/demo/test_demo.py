from __future__ import annotations

from itertools import islice

from tidegate.cli.demo.clicks import USER_NAMES
from tidegate.cli.demo.demo import BURST_QUESTIONS, ROOMS, meter_readings, questions
from tidegate.model.times import parse_time

START_US = 1_767_225_600_000_000


def test_the_same_seed_gives_the_same_readings() -> None:
    first = list(islice(meter_readings(7, 200, START_US), 500))
    assert first == list(islice(meter_readings(7, 200, START_US), 500))
    assert first != list(islice(meter_readings(8, 200, START_US), 500))


def test_some_readings_are_late_and_most_are_not() -> None:
    readings = list(islice(meter_readings(7, 200, START_US), 5000))
    late = [reading for reading in readings if reading["late"]]
    assert 50 < len(late) < 200
    on_time = [parse_time(reading["measured_at"]) for reading in readings if not reading["late"]]
    assert on_time == sorted(on_time)


def test_questions_come_now_and_then_and_sometimes_many_at_once() -> None:
    steps = list(islice(questions(7), 6000))
    assert steps == list(islice(questions(7), 6000))
    assert {len(rows) for rows in steps} == {0, 1, BURST_QUESTIONS}
    asked = [row for rows in steps for row in rows]
    assert 300 < len(asked) < 1500
    assert {who for who, _ in asked} <= set(USER_NAMES)
    assert all(any(room in text for room in ROOMS) for _, text in asked)
