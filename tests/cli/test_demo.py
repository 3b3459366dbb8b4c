from __future__ import annotations

from itertools import islice

from tidegate.cli.demo import meter_readings
from tidegate.model.timeranges import parse_time

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
