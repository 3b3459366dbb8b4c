"""What a Python consumer may get wrong is refused in words, and leaves nothing behind."""

from __future__ import annotations

import datetime as dt
import math
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate import Deduplicator
from tidegate.checkpoint import snapshotter
from tidegate.checkpoint.commit_record import committed_batches
from tidegate.checkpoint.epochs import RECORD_NAME
from tidegate.checkpoint.store import operator_store
from tidegate.dedup import deduplicator
from tidegate.dedup.columns import SegmentKeys
from tidegate.dedup.decision import BatchColumns
from tidegate.dedup.deduplicator import _part
from tidegate.dedup.deduplicator_input import offsets_of, times_of
from tidegate.dedup.settings import EXPECTED_RATE_MAX
from tidegate.errors import StateInvalid, StateMismatch, StorageCorrupt, ValueInvalid
from tidegate.testing.clock import ManualClock


def opened(folder: Any, **more: Any) -> Deduplicator:
    given: dict[str, Any] = {"name": "orders", "retention": "1 day", "clock": ManualClock()} | more
    given.setdefault("time_unit", "us")
    return Deduplicator(given.pop("name"), folder, given.pop("retention"), **given)


WRONG: list[tuple[dict[str, Any], str]] = [
    *[({"retention": given}, "the retention: it is") for given in (3600, None, True, b"1 day")],
    ({"retention": "0 s"}, "^Operator 'orders' cannot run: the retention is 0 s; it must lie between"),
    ({"interval": 3}, "the interval: it is 3; write a text with its unit"),
    *[({"expected_rate": given}, "expected_rate: it is") for given in (math.inf, math.nan, 1e300, 10**400)],
    *[({"expected_rate": given}, "expected_rate: it is") for given in ("5", 0, -1, True)],
    *[({"name": given}, "the name: it is") for given in (None, 5, b"orders")],
    ({"name": ""}, "its name must be letters"),
    ({"exact_keys": "no"}, "exact_keys: it is 'no'"),
    ({"rocks": "fast"}, "rocks: it is 'fast'"),
]


@pytest.mark.parametrize(("given", "words"), WRONG, ids=str)
def test_a_wrong_setting_is_refused_and_no_folder_is_made(
    tmp_path: Path, given: dict[str, Any], words: str
) -> None:
    with pytest.raises((ValueInvalid, StateInvalid), match=words):
        opened(tmp_path / "new", **given)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("what", ["key", "time", "offset", "late"])
def test_what_is_no_function_of_a_message_is_refused_and_nothing_is_stored(tmp_path: Path, what: str) -> None:
    calls: dict[str, Any] = {name: lambda m: m for name in ("key", "time")}
    with opened(tmp_path) as seen:
        with pytest.raises(ValueInvalid, match=f"{what}: it is 5; give a function that takes a message"):
            seen.unique([1, 2], **calls | {what: 5})
        assert seen.unique([1, 2], **calls) == [1, 2]


@pytest.mark.parametrize("folder", [None, 5, "", b"here", "a\0b"])
def test_what_names_no_folder_is_refused(folder: Any) -> None:
    with pytest.raises(StateInvalid, match="its folder is"):
        opened(folder)


def test_the_highest_rate_and_the_longest_interval_make_filters_that_fit(tmp_path: Path) -> None:
    with opened(tmp_path, retention="1000 days", expected_rate=np.float64(EXPECTED_RATE_MAX)) as dedup:
        assert dedup.check(["a", "a"], [1, 2]).outcome == ["unique", "duplicate"]


def test_a_first_call_that_is_refused_does_not_say_of_which_type_keys_are(tmp_path: Path) -> None:
    """Its times would make more segments than a store may have."""
    hour_us = 3_600_000_000
    with opened(tmp_path, interval="1 hour") as dedup:
        with pytest.raises(StateInvalid, match="are the most"):
            dedup.check([f"k{n}" for n in range(600)], [n * hour_us for n in range(600)], range(600))
        assert not list(tmp_path.rglob("dedup.json"))
        assert dedup.check([1, 1], [1, 2]).outcome == ["unique", "duplicate"]
        assert len(list(tmp_path.rglob("dedup.json"))) == 1
        with pytest.raises(StateMismatch):
            dedup.check(["k1"], [3])


def test_of_some_rows_of_a_call_each_keeps_the_number_that_breaks_a_tie() -> None:
    keys = SegmentKeys.of_digests(np.zeros((4, 18), np.uint8))
    rows = BatchColumns(keys, np.arange(4), None, lambda asked: np.array([7, 5, 3, 1], np.uint64)[asked])
    some = _part(rows, np.array([1, 3]))
    assert some.tie(np.array([0, 1])).tolist() == [5, 1]


MOMENT = dt.datetime(2026, 1, 1, 5)
NOT_LISTED: list[tuple[Any, Any, Any, str]] = [
    *[(given, [1], None, "the keys: they are") for given in (None, 5, "a", b"a", {"a": 1}, {"a"})],
    *[(["a"], given, None, "the event times: they are") for given in (None, 5, "5", b"5", MOMENT)],
    (["a"], np.array(5), None, "the event times: they are of type ndarray"),
    *[(["a"], [1], given, "the offsets: they are") for given in (5, "5", b"5", {0: 5}, pa.scalar(5))],
]
NOT_OF_ONE_TYPE: list[tuple[Any, Any, Any, str]] = [
    ([1, 1.5], [1, 1], None, "not of one type: float and int"),
    ([True, 1], [1, 1], None, "not of one type: bool and int"),
    (["a", b"a"], [1, 1], None, "not of one type: bytes and str"),
    ([MOMENT.date(), MOMENT], [1, 1], None, "not of one type: date and datetime"),
    ([MOMENT, MOMENT.replace(tzinfo=dt.UTC)], [1, 1], None, "with a zone and without one"),
    ([("a", 1), ("b", 1.5)], [1, 1], None, "not of one type: float and int"),
    ([Decimal("1.5")], [1], None, "another type for each number of digits"),
    ([("a", None), ("a", Decimal(1))], [1, 1], None, "another type for each number of digits"),
]
OUT_OF_RANGE: list[tuple[Any, Any, Any, str]] = [
    (["a"], pa.array([2**62], pa.timestamp("s")), None, "an event time"),
    (["a"], pa.array([2**63], pa.uint64()), None, "an event time"),
    (["a"], [2**62], None, "away from 1970"),
    *[(["a"], [1], [pair], "an offset") for pair in [(0, 1.5), ("0", "5"), (True, 1), (None, 1)]],
]


def test_a_refused_first_call_leaves_no_type_of_keys_behind(tmp_path: Path) -> None:
    """Nothing is stored, and keys of another type are taken afterwards."""
    with opened(tmp_path) as dedup:
        for keys, times, offsets, words in [*NOT_LISTED, *NOT_OF_ONE_TYPE, *OUT_OF_RANGE]:
            with pytest.raises(ValueInvalid, match=words):
                dedup.check(keys, times, offsets)
        with pytest.raises(ValueInvalid, match="the messages: they are None"):
            dedup.unique(None, key=str, time=int)  # type: ignore[arg-type]
        assert dedup.check([7, 7], [1, 1], [1, 2]).outcome == ["unique", "duplicate"]


def test_floats_are_no_exact_keys_and_leave_nothing_behind(tmp_path: Path) -> None:
    with opened(tmp_path, exact_keys=True) as dedup:
        with pytest.raises(ValueInvalid, match="a float is not stored as an exact key"):
            dedup.check([("a", 1.5)], [1])
        assert dedup.check([("a", 1)], [1]).outcome == ["unique"]


def test_a_decimal_is_refused_with_what_to_give_in_its_place(tmp_path: Path) -> None:
    with opened(tmp_path) as dedup:
        with pytest.raises(ValueInvalid) as caught:
            dedup.check([Decimal("1.5")], [1])
        assert "str(key)" in str(caught.value.hint)
        fixed = pa.decimal128(18, 2)
        assert dedup.check(pa.array([Decimal("1.5")], fixed), [1]).outcome == ["unique"]
        told = dedup.check(pa.array([Decimal("12.25"), Decimal("1.50")], fixed), [1, 1])
        assert told.outcome == ["unique", "duplicate"]


def test_numpy_values_are_of_the_type_that_python_has_for_them(tmp_path: Path) -> None:
    with opened(tmp_path) as dedup:
        assert dedup.check([np.int32(7), 7, None], [1, 1, 1]).outcome == ["unique", "duplicate", "unique"]
        with pytest.raises(StateMismatch) as caught:
            dedup.check([7.0], [1])
        assert "keys of one type in every call" in str(caught.value.hint)


def test_a_time_in_nanoseconds_lies_in_the_microsecond_that_began_before_it() -> None:
    times = pa.array([-1, -1_000, -1_001, 0, 999, 1_000], pa.timestamp("ns"))
    assert times_of(times, "orders", 1).tolist() == [-1, -1, -2, 0, 0, 1]
    assert offsets_of([(np.int64(1), 5)]).tolist() == [(1 << 48) + 5]


def test_a_duplicate_whose_own_call_moved_stream_time_is_a_duplicate_again(tmp_path: Path) -> None:
    """Case 20: it would be late by what is stored."""
    retention = dt.timedelta(microseconds=100)
    with opened(tmp_path, retention=retention) as dedup:
        assert dedup.check(["A"], [50], [1]).outcome == ["unique"]
        assert dedup.check(["A", "B"], [0, 140], [2, 3]).outcome == ["duplicate", "unique"]
    with opened(tmp_path, retention=retention) as dedup:
        assert dedup.check(["A", "B"], [0, 140], [2, 3]).outcome == ["duplicate", "unique"]


def test_a_call_without_messages_publishes_nothing(tmp_path: Path) -> None:
    checkpoint_store = operator_store(str(tmp_path), "orders")
    with opened(tmp_path) as dedup:
        for keys, times, offsets in (([], [], None), (pa.array([], pa.int64()), [], []), (iter(()), (), ())):
            assert len(dedup.check(keys, times, offsets)) == 0
        assert checkpoint_store.names() == []
        dedup.check(["a"], [1])
        assert dedup.check([], []).counts == {"unique": 0, "duplicate": 0, "late": 0}
    assert committed_batches(checkpoint_store, 0, 0) == [0]


def test_a_folder_without_the_record_of_its_epoch_says_what_is_missing(tmp_path: Path) -> None:
    checkpoint_store = operator_store(str(tmp_path), "orders")
    dedup = opened(tmp_path)
    dedup.check(["a"], [1])
    record = checkpoint_store.path(f"e0/{RECORD_NAME}")
    kept = record.read_bytes()
    record.unlink()
    with pytest.raises(StorageCorrupt, match=rf"e0/{RECORD_NAME}: the file is missing"):
        dedup.check(["a"], [2])
    dedup.close()
    with pytest.raises(StorageCorrupt, match=rf"e0/{RECORD_NAME}: the file is missing"):
        opened(tmp_path)
    assert not record.exists()
    record.write_bytes(kept)
    with opened(tmp_path) as dedup:
        assert dedup.check(["a"], [2]).outcome == ["duplicate"]


def test_nothing_is_written_in_the_folder_after_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that finishes a snapshot is held up; close waits for it."""
    steps: list[str] = []

    def held_up(step: str, *_: object) -> None:
        if step == "snapshot-copied":
            time.sleep(0.3)
        steps.append(step)

    monkeypatch.setattr(deduplicator, "SNAPSHOT_EVERY_CALLS", 1)
    monkeypatch.setattr(snapshotter, "crash_point", held_up)
    with opened(tmp_path) as dedup:
        dedup.check(["a"], [1])
    assert steps == ["snapshot-linked", "snapshot-copied", "snapshot-written", "pruned"]
    assert not list((tmp_path / "local").rglob("*.snapshot.*"))
