"""Deduplication without Spark, on its real files."""

from __future__ import annotations

import datetime as dt
import random
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidegate
from tests.checkpoint.batches import open_new
from tests.dedup.model import Model, Row
from tests.dedup.streams import DAY_US, SECOND_US, draw
from tidegate import Deduplicator
from tidegate.checkpoint.commit_record import RunFacts, read_commit_record
from tidegate.checkpoint.keys.codec import KeyType, StateKeyCodec, StateKeyColumn
from tidegate.checkpoint.settings import BatchRequest, StateSettings
from tidegate.checkpoint.store import operator_store
from tidegate.dedup import deduplicator
from tidegate.dedup.decision import BatchColumns, decide
from tidegate.dedup.deduplicator_input import keys_of, offsets_of, position, times_of
from tidegate.dedup.identity import SALT, DedupIdentity, check_identity, digest_columns, read_identity
from tidegate.dedup.settings import SegmentSettings
from tidegate.dedup.store.store import SegmentStore, SegmentStoreFactory
from tidegate.errors import StateInvalid, StateMismatch, TidegateError, ValueInvalid
from tidegate.testing.clock import ManualClock
from tidegate.testing.operators import key_columns

UTC = dt.UTC


def opened(folder: Path, retention: str | dt.timedelta = "100 days", **more: Any) -> Deduplicator:
    more.setdefault("clock", ManualClock())
    more.setdefault("time_unit", "us")
    return Deduplicator("orders", folder, retention, **more)


def test_the_first_occurrence_passes_and_the_second_does_not(tmp_path: Path) -> None:
    """Case 18."""
    start = dt.datetime(2026, 1, 1, tzinfo=UTC)
    with opened(tmp_path) as dedup:
        told = dedup.check(["a", "b", "a"], [start, start, start + dt.timedelta(days=1)])
        assert told.outcome == ["unique", "unique", "duplicate"]
        assert told.first_time == [None, None, start]
        assert told.counts == {"unique": 2, "duplicate": 1, "late": 0}
        later = dedup.check(["a", "a"], [start + dt.timedelta(days=100), start - dt.timedelta(days=200)])
        assert later.outcome == ["unique", "late"]
        assert dedup.counts == {"unique": 3, "duplicate": 1, "late": 1}


def test_a_relative_folder_has_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(deduplicator, "SNAPSHOT_EVERY_CALLS", 2)
    with opened(Path("state of today")) as dedup:
        for number in range(5):
            dedup.check([f"o-{number}"], [number])
    assert len(list(tmp_path.glob("state of today/state/orders/e0/0/*.snapshot"))) == 2
    assert [record.message for record in caplog.records if record.levelname != "INFO"] == []
    monkeypatch.chdir("/")
    with opened(tmp_path / "state of today") as dedup:
        assert dedup.check(["o-4", "o-5"], [4, 5]).outcome == ["duplicate", "unique"]


def test_what_was_told_is_known_after_a_restart_and_without_the_local_copy(tmp_path: Path) -> None:
    with opened(tmp_path) as dedup:
        dedup.check(["a"], [5])
    with opened(tmp_path) as dedup:
        assert dedup.check(["a", "b"], [6, 6]).outcome == ["duplicate", "unique"]
    for path in sorted((tmp_path / "local").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    with opened(tmp_path) as dedup:
        assert dedup.check(["a", "b", "c"], [7, 7, 7]).outcome == ["duplicate", "duplicate", "unique"]


def test_it_goes_on_where_a_query_of_several_partitions_left_off(tmp_path: Path) -> None:
    """The folder is that of a query with two partitions, which has stopped."""
    kinds = (("event_id", "string"),)
    check_identity(
        operator_store(str(tmp_path), "orders"),
        DedupIdentity(DAY_US, DAY_US // 2, False, False, kinds),
        "orders",
    )
    segments = SegmentSettings(store="orders", retention_us=DAY_US, interval_us=DAY_US // 2)
    settings = StateSettings(backend=SegmentStoreFactory(segments), local_root=str(tmp_path / "executors"))
    keys = keys_of([f"k{at}" for at in range(50)])
    column = keys.column(("string",), 128, exact=False)
    for partition in (0, 1):
        groups = column.bytes_[:, 1] // 64  # type: ignore[call-overload]
        mine = np.flatnonzero(groups == partition)
        rows = BatchColumns(column.take(mine), np.full(len(mine), 7), None, lambda at: at.astype(np.uint64))
        asked = BatchRequest(str(tmp_path), "orders", partition, 2, 128, 0, "plan", f"attempt {partition}")
        with open_new(asked, settings, ManualClock()) as batch:
            store = batch.backend
            assert isinstance(store, SegmentStore)
            decision = decide(rows, store, segments.rule, None)
            batch.publish(decision.changes, RunFacts(newest_event_us=7))
    with opened(tmp_path, "1 day") as dedup:
        told = dedup.check([f"k{at}" for at in range(60)], [8] * 60)
        assert told.outcome == ["duplicate"] * 50 + ["unique"] * 10
        assert dedup.check(["k55", "q"], [9, 7 - DAY_US]).outcome == ["duplicate", "late"]


@pytest.mark.parametrize("seed", [3, 11, 42, 77])
def test_streams_are_judged_as_the_model_says_over_restarts(tmp_path: Path, seed: int) -> None:
    """Cases 18 to 20, with messages of the call before delivered again."""
    stream = draw(seed, batches=5)
    chance, model = random.Random(seed), Model(stream.retention_us)
    interval = None if stream.interval_us is None else dt.timedelta(microseconds=stream.interval_us)
    retention = dt.timedelta(microseconds=stream.retention_us)
    dedup = Deduplicator(
        "orders", tmp_path, retention, interval=interval, time_unit="us", clock=ManualClock()
    )
    for batch in stream.batches:
        rows = [Row(row.key, row.time_us, row.offset, at) for at, row in enumerate(batch)]
        if not rows or any(None in row.key for row in rows):  # type: ignore[operator]
            rows = [Row(("x", 1), row.time_us, row.offset, row.tie) for row in rows]
        offsets = [row.offset for row in rows] if stream.with_offsets else None
        told = dedup.check([row.key for row in rows], [row.time_us for row in rows], offsets)
        judged = model.batch(rows)
        assert told.outcome == [one.outcome for one in judged]
        assert told.first_us == [one.first_us for one in judged]
        if chance.random() < 0.4:
            dedup.close()
            dedup = Deduplicator(
                "orders", tmp_path, retention, interval=interval, time_unit="us", clock=ManualClock()
            )
    dedup.close()


def test_with_offsets_a_message_that_comes_again_gets_the_same_answer(tmp_path: Path) -> None:
    """Case 20: the consumer died between the check and its acknowledgement."""
    messages = [("a", 10, (0, 7)), ("b", 20, (1, 7)), ("a", 11, (1, 8))]

    def told(dedup: Deduplicator, chosen: list[tuple[str, int, tuple[int, int]]]) -> list[str]:
        keys, times, offsets = zip(*chosen, strict=True)
        return dedup.check(keys, times, offsets).outcome

    with opened(tmp_path) as dedup:
        assert told(dedup, messages) == ["unique", "unique", "duplicate"]
    with opened(tmp_path) as dedup:
        assert told(dedup, messages[1:]) == ["unique", "duplicate"]
        assert told(dedup, messages[:1]) == ["unique"]
        assert told(dedup, [messages[0], messages[0]]) == ["unique", "duplicate"]
        assert told(dedup, [("a", 10, (0, 9))]) == ["duplicate"]


def test_an_answer_stays_when_its_own_call_moved_stream_time_past_the_retention(tmp_path: Path) -> None:
    """Case 20: what is stored of it no longer counts when it comes again, and may be gone."""
    days = [0, 500, 450, 3, 4, 399, 401]
    keys = ["a", "b", "c", "d", "d", "e", "e"]
    times = [day * DAY_US for day in days]
    with opened(tmp_path) as dedup:
        dedup.check(["a"], [-DAY_US], [99])
        first = dedup.check(keys, times, range(7)).outcome
        assert first == ["duplicate", "unique", "unique", "unique", "duplicate", "unique", "duplicate"]
        # Nothing is remembered by this offset: the message is another one, and late.
        assert dedup.check(["d"], [times[3]], [100]).outcome == ["late"]
    for part in ([0, 1], [2, 3, 4], [6, 5], [0, 1, 2, 3, 4, 5, 6], [3, 3]):
        with opened(tmp_path) as dedup:
            told = dedup.check([keys[at] for at in part], [times[at] for at in part], part).outcome
            assert told == ([first[at] for at in part] if part != [3, 3] else ["unique", "duplicate"])


def test_without_offsets_a_message_that_comes_again_is_its_own_duplicate(tmp_path: Path) -> None:
    with opened(tmp_path) as dedup:
        dedup.check(["a"], [10])
        assert dedup.check(["a"], [10]).outcome == ["duplicate"]


def test_unique_gives_new_messages_in_their_order_and_late_ones_aside(tmp_path: Path) -> None:
    messages = [{"id": "b", "at": 2}, {"id": "a", "at": 1}, {"id": "b", "at": 3}]
    late: list[dict[str, object]] = []
    with opened(tmp_path, "1 s") as dedup:
        found = dedup.unique(messages, key=lambda m: m["id"], time=lambda m: m["at"])
        assert found == messages[:2]
        assert not dedup.unique([], key=lambda m: m["id"], time=lambda m: m["at"])
        more = [{"id": "z", "at": 60 * SECOND_US}]
        assert dedup.unique(more, key=lambda m: m["id"], time=lambda m: m["at"]) == more
        old = [{"id": "q", "at": 5}]
        assert not dedup.unique(old, key=lambda m: m["id"], time=lambda m: m["at"], late=late.append)
        assert late == old


def test_keys_may_be_of_any_plain_type_and_of_several_parts(tmp_path: Path) -> None:
    """Case 21: null equals null, and parts are not joined."""
    parts = [("a", None), (None, "a"), ("a", None), ("", "a"), ("ab", "c"), ("a", "bc")]
    for exact in (False, True):
        with opened(tmp_path / str(exact), exact_keys=exact) as dedup:
            told = dedup.check(parts, [1] * len(parts))
            assert told.outcome == ["unique", "unique", "duplicate", "unique", "unique", "unique"]
            assert dedup.check([(None, None)], [1]).outcome == ["unique"]
    for name, keys in {
        "int": [1, 2, 1],
        "bytes": [b"\x00", b"", b"\x00"],
        "date": [dt.date(2026, 1, 1), dt.date(2026, 1, 2), dt.date(2026, 1, 1)],
        "decimal": pa.array([Decimal("1.5"), Decimal("2.5"), Decimal("1.5")], pa.decimal128(18, 2)),
        "float": [0.0, 1.5, -0.0],
    }.items():
        with opened(tmp_path / name) as dedup:
            assert dedup.check(keys, [1, 1, 1]).outcome == ["unique", "unique", "duplicate"], name


def test_arrow_columns_are_taken_as_they_are(tmp_path: Path) -> None:
    table = pa.table(
        {"a": pa.array(["x", "y", "x"]).dictionary_encode(), "b": pa.array([1, 1, 1], pa.int32())}
    )
    times = pa.array([1_000, 2_000, 3_000], pa.timestamp("ns", tz="UTC"))
    with opened(tmp_path) as dedup:
        told = dedup.check(table, times, pa.array([1, 2, 3]))
        assert told.outcome == ["unique", "unique", "duplicate"]
        assert told.first_us == [None, None, 1]
        assert dedup.check([("x", 1)], [2], [9]).outcome == ["duplicate"]


def test_a_second_consumer_is_refused_until_the_first_one_closes(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(StateInvalid, match="another consumer has it open"):
        opened(tmp_path)
    first.close()
    first.close()
    with pytest.raises(StateInvalid, match="it was closed"):
        first.check(["a"], [1])
    opened(tmp_path).close()


def test_another_interval_key_or_kind_of_storing_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as dedup:
        dedup.check(["a"], [1])
    with pytest.raises(StateMismatch, match="To change the retention, give interval='50 days'"):
        opened(tmp_path, "50 days")
    with pytest.raises(StateMismatch, match="stored as xxhash64-pair"):
        opened(tmp_path, exact_keys=True)
    with opened(tmp_path, "50 days", interval="50 days") as dedup:
        assert dedup.check(["a"], [2]).outcome == ["duplicate"]
        with pytest.raises(StateMismatch, match=r"its keys are \(string\), and this one is \(bigint\)"):
            dedup.check([1], [2])
        with pytest.raises(StateMismatch, match="without offsets"):
            dedup.check(["a"], [2], [3])
        assert dedup.check(["b"], [2]).outcome == ["unique"]


def test_a_column_that_is_not_named_goes_on_with_a_named_one_of_its_type(tmp_path: Path) -> None:
    checkpoint_store = operator_store(str(tmp_path), "orders")
    named = DedupIdentity(DAY_US, DAY_US // 2, False, False, (("event_id", "string"),))
    check_identity(checkpoint_store, named, "orders")
    assert read_identity(checkpoint_store, "orders") == named
    with opened(tmp_path, "1 day") as dedup:
        assert dedup.check(["a"], [1]).outcome == ["unique"]
    numbered = operator_store(str(tmp_path / "numbers"), "orders")
    check_identity(
        numbered, DedupIdentity(DAY_US, DAY_US // 2, True, False, (("n", "int"),), "exact"), "orders"
    )
    with opened(tmp_path / "numbers", "1 day", exact_keys=True) as dedup:
        assert dedup.check([7, 7], [1, 2]).outcome == ["unique", "duplicate"]
    with pytest.raises(StateMismatch, match="Every key is stored by these columns"):
        other = DedupIdentity(DAY_US, DAY_US // 2, False, False, (("order_id", "string"),))
        check_identity(checkpoint_store, other, "orders")


REFUSED: list[tuple[Any, Any, Any, str]] = [
    (["a", 1], [1, 2], None, "not of one type"),
    (["a"], [1, 2], None, "there are 1 and 2 of them"),
    (["a"], ["noon"], None, "neither a datetime nor a whole number"),
    (["a"], [True], None, "neither a datetime nor a whole number"),
    (["a"], [None], None, "a message has no event time"),
    (["a"], pa.array([None], pa.timestamp("us")), None, "a message has no event time"),
    (["a"], pa.array([1.5]), None, "not a timestamp"),
    (["a"], [1], [(-1, 2)], "is expected"),
    (["a"], [1], ["x"], "neither a whole number"),
    ([None], [1], None, "its type is not known"),
    ([("a", 1), ("b",)], [1, 2], None, "tuple of 2"),
    ([[1]], [1], None, "is no key here"),
    ([2**70], [1], None, "the keys"),
    (pa.table({}), [], None, "no column"),
]


def test_what_cannot_be_judged_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    with opened(tmp_path) as dedup:
        for keys, times, offsets, text in REFUSED:
            with pytest.raises(TidegateError, match=text):
                dedup.check(keys, times, offsets)
        assert dedup.check(["a"], [1]).outcome == ["unique"]


def test_times_are_the_same_in_whatever_form_they_come() -> None:
    zones = [UTC, dt.timezone(dt.timedelta(hours=5, minutes=30)), dt.timezone(dt.timedelta(hours=-8))]
    moments = [
        dt.datetime(year, 7, 1, 12, 30, 1, 7, tzinfo=zone) for year in (1, 1969, 2026) for zone in zones
    ]
    plain = [(one - dt.datetime(1970, 1, 1, tzinfo=UTC)) // dt.timedelta(microseconds=1) for one in moments]
    naive = [one.astimezone(UTC).replace(tzinfo=None) for one in moments]
    forms = [moments, plain, naive, [*moments[:4], *naive[4:]], [*plain[:2], *moments[2:]], np.array(plain)]
    for form in [*forms, pa.array(moments), pa.chunked_array([pa.array(plain)])]:
        assert times_of(form, "orders", 1).tolist() == plain


def test_positions_of_two_partitions_are_never_the_same() -> None:
    assert position(0, 5) == 5
    assert position(1, 5) != position(5, 1)
    assert offsets_of([(1, 5), (5, 1)]).tolist() == [position(1, 5), position(5, 1)]
    assert offsets_of([(1, 5), 9]).tolist() == [position(1, 5), 9]
    assert position(2**15 - 1, 2**48 - 1) == 2**63 - 1
    with pytest.raises(ValueInvalid):
        position(2**15, 0)


def test_digests_are_those_of_spark_for_one_plain_column() -> None:
    """The hash of the null flag is the seed of the value's."""
    keys = keys_of([("é", 7), (None, -1), ("", None)])
    first, second = digest_columns(keys.arrays)
    codec = StateKeyCodec(
        KeyType(
            (
                StateKeyColumn("text is null", "boolean"),
                StateKeyColumn("text", "string"),
                StateKeyColumn("number is null", "boolean"),
                StateKeyColumn("number", "bigint"),
            )
        )
    )
    salted = StateKeyCodec(KeyType((StateKeyColumn("salt", "bigint"), *codec.key_type.columns)))
    rows = [(False, "é", False, 7), (True, None, False, -1), (False, "", True, None)]
    columns = key_columns(salted.key_type, [(SALT, *row) for row in rows])
    assert first.tolist() == codec.hash_columns(columns[1:]).tolist()
    assert second.tolist() == salted.hash_columns(columns).tolist()


def test_the_head_of_a_call_says_what_it_did(tmp_path: Path) -> None:
    with opened(tmp_path) as dedup:
        dedup.check(["a", "a"], [10, 20])
        dedup.check(["b"], [15])
    head = read_commit_record(operator_store(str(tmp_path), "orders"), 0, 0, 1)
    assert head is not None
    assert head.newest_event_us == 20
    assert head.totals["unique"] == 2
    assert head.totals["duplicate"] == 1
    assert head.notes["kind"] == "dedup"
    assert head.notes["stream_us"] == 20
    assert [segment["number"] for segment in head.notes["segments"]] == [0]


def test_importing_tidegate_does_not_import_what_it_needs() -> None:
    told = "print('numpy' in sys.modules)"
    code = f"import sys, tidegate; {told}; tidegate.Deduplicator; {told}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "True"]
    assert "Deduplicator" in tidegate.__all__


def test_times_that_would_make_too_many_segments_are_refused_and_nothing_is_kept(tmp_path: Path) -> None:
    with opened(tmp_path, "10 min") as dedup:
        times = [number * 3_600 * SECOND_US for number in range(600)]
        with pytest.raises(StateInvalid, match="512 are the most"):
            dedup.check([str(number) for number in range(600)], times)
        assert dedup.check(["0"], [0]).outcome == ["unique"]


def test_whole_numbers_are_milliseconds_unless_told_otherwise(tmp_path: Path) -> None:
    hour_ms = 3_600_000
    with Deduplicator("orders", tmp_path, "1 h", clock=ManualClock()) as dedup:
        assert dedup.check(["a", "a"], [0, hour_ms]).outcome == ["unique", "unique"]
        told = dedup.check(["a"], pa.array([hour_ms + 1]))
        assert (told.outcome, told.first_us) == (["duplicate"], [hour_ms * 1_000])
        with pytest.raises(ValueInvalid, match="beyond 64 bits"):
            dedup.check(["b"], [2**62])
    with pytest.raises(ValueInvalid, match="neither 'ms' nor 'us'"):
        Deduplicator("other", tmp_path / "other", "1 h", time_unit="s")  # type: ignore[arg-type]
