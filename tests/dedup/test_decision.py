"""The decision against the dictionary model, and its edges one by one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.dedup.model import Judged, Model, Row
from tests.dedup.store.dict_store import DictStore, columns_of, key_column
from tests.dedup.streams import DAY_US, SECOND_US, Stream, draw
from tidegate.dedup.columns import SegmentKeys, StoredTimes
from tidegate.dedup.decision import DUPLICATE, OUTCOMES, UNIQUE, BatchColumns, Decision, decide
from tidegate.dedup.settings import SegmentRule
from tidegate.errors import InvariantBroken, ValueInvalid

K = ("k", 1)
RETENTION_US = 100


def judged(decision: Decision) -> list[Judged]:
    """Return a decision as the model gives it."""
    marks = zip(decision.outcome.tolist(), decision.first_us.tolist(), strict=True)
    return [Judged(OUTCOMES[mark], first if mark == DUPLICATE else None) for mark, first in marks]


def run(stream: Stream, *, exact: bool = False, redeliver: random.Random | None = None) -> None:
    """Take a stream through decision and model, and compare rows and stored times after every batch."""
    rule = SegmentRule.of(stream.retention_us, stream.interval_us)
    model, store = Model(stream.retention_us), DictStore(rule, with_offsets=stream.with_offsets)
    is_again = redeliver is not None and stream.with_offsets
    before: list[Row] = []
    for batch in stream.batches:
        rows = list(batch)
        if redeliver is not None and is_again:
            rows += redeliver.sample(before, k=min(5, len(before)))
            redeliver.shuffle(rows)
        before += batch
        store.expire(model.stream_us)
        columns = columns_of(rows, with_offsets=stream.with_offsets, exact=exact)
        decision = decide(columns, store, rule, model.stream_us, is_redelivered=is_again)
        assert judged(decision) == model.batch(rows, redelivered=is_again)
        assert decision.newest_us == max((row.time_us for row in rows), default=None)
        assert sum(decision.counts.values()) == len(rows)
        store.apply(decision.changes)
        for key in model.known():
            stored = key_column([key], exact=exact).to_list()[0]  # type: ignore[list-item]
            from_us = rule.counts_from_us(model.stream_us)
            assert from_us is not None
            assert [t for t in store.times(stored) if t >= from_us] == model.counted(key)


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_decisions_are_those_of_the_model(seed: int) -> None:
    """Case 18."""
    run(draw(seed))


@settings(max_examples=15)
@given(st.integers(0, 2**32))
def test_exact_keys_are_judged_alike(seed: int) -> None:
    """Case 21."""
    run(draw(seed), exact=True)


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_a_message_that_is_given_again_is_unique_again(seed: int) -> None:
    """Case 20."""
    run(draw(seed), redeliver=random.Random(seed))


@settings(max_examples=15)
@given(st.integers(0, 2**32))
def test_the_order_of_rows_does_not_matter(seed: int) -> None:
    stream = draw(seed, batches=3)
    rule = SegmentRule.of(stream.retention_us, stream.interval_us)
    store, stream_us = DictStore(rule, with_offsets=stream.with_offsets), None
    for batch in stream.batches:
        rows = list(batch)
        order = list(range(len(rows)))
        random.Random(seed).shuffle(order)
        plain = decide(columns_of(rows, with_offsets=stream.with_offsets), store, rule, stream_us)
        mixed = [rows[at] for at in order]
        other = decide(columns_of(mixed, with_offsets=stream.with_offsets), store, rule, stream_us)
        # Rows that are the same in everything may change places.
        told = sorted(zip(map(repr, rows), map(repr, judged(plain)), strict=True))
        assert sorted(zip(map(repr, mixed), map(repr, judged(other)), strict=True)) == told
        store.apply(plain.changes)
        stream_us = max(
            [row.time_us for row in rows] + ([] if stream_us is None else [stream_us]), default=None
        )


def outcomes(batches: Sequence[Sequence[Row]], retention_us: int = RETENTION_US) -> list[list[Judged]]:
    rule = SegmentRule.of(retention_us)
    store, stream_us, found = DictStore(rule, with_offsets=False), None, []
    for rows in batches:
        decision = decide(columns_of(rows, with_offsets=False), store, rule, stream_us)
        store.apply(decision.changes)
        found.append(judged(decision))
        times = [row.time_us for row in rows] + ([] if stream_us is None else [stream_us])
        stream_us = max(times)
    return found


def test_exactly_the_retention_apart_is_no_duplicate() -> None:
    """Case 18: less than the retention, before or after."""
    rows = [[Row(K, 1000)], [Row(K, 1100)], [Row(K, 1001)], [Row(K, 1199)]]
    assert outcomes(rows) == [
        [Judged("unique")],
        [Judged("unique")],
        [Judged("duplicate", 1000)],
        [Judged("duplicate", 1100)],
    ]


def test_an_older_row_is_a_duplicate_of_a_newer_one_that_came_first() -> None:
    assert outcomes([[Row(K, 50 * DAY_US)], [Row(K, 20 * DAY_US)]], 100 * DAY_US)[1] == [
        Judged("duplicate", 50 * DAY_US)
    ]


def test_of_two_in_one_batch_the_earlier_event_time_is_kept() -> None:
    assert outcomes([[Row(K, 30), Row(K, 10), Row(K, 20)]])[0] == [
        Judged("duplicate", 10),
        Judged("unique"),
        Judged("duplicate", 10),
    ]


def test_a_chain_in_one_batch_keeps_each_that_is_far_enough_from_the_one_kept_before() -> None:
    """150 is near 60, which is no first occurrence: it counts for nothing."""
    assert outcomes([[Row(K, t) for t in (0, 60, 150, 210, 250)]])[0] == [
        Judged("unique"),
        Judged("duplicate", 0),
        Judged("unique"),
        Judged("duplicate", 150),
        Judged("unique"),
    ]


def test_the_first_time_is_the_earliest_of_stored_and_new_ones() -> None:
    assert outcomes([[Row(K, 150)], [Row(K, 50), Row(K, 100)]])[1] == [
        Judged("unique"),
        Judged("duplicate", 50),
    ]


def test_the_first_time_is_the_earliest_also_where_several_of_the_batch_are_kept() -> None:
    assert outcomes([[Row(K, 350)], [Row(K, 250), Row(K, 300), Row(K, 450)]])[1] == [
        Judged("unique"),
        Judged("duplicate", 250),
        Judged("unique"),
    ]


def test_late_is_said_before_duplicate_and_nothing_is_late_in_the_first_batch() -> None:
    found = outcomes([[Row(K, 5), Row(("z", 1), 5000)], [Row(K, 5), Row(K, 4899), Row(K, 4900)]])
    assert found[0] == [Judged("unique"), Judged("unique")]
    assert found[1] == [Judged("late"), Judged("late"), Judged("unique")]


class Nothing:
    """A store that finds nothing."""

    def lookup(self, keys: SegmentKeys, from_us: object, to_us: object) -> StoredTimes:  # noqa: ARG002
        none = np.empty(0, np.int64)
        return StoredTimes(none, none, none)


def digests(*tails: int) -> SegmentKeys:
    """Return keys that share all but the last bytes."""
    rows = [b"\x00\x01" + b"\xab" * 12 + tail.to_bytes(4, "big") for tail in tails]
    return SegmentKeys.of_digests(np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), 18))


def test_keys_that_differ_in_their_last_byte_only_are_different_keys() -> None:
    """Case 21: never judged by less than the whole digest."""
    tails = [3, 1, 2, 1, 3, 1, 9, 2]
    times = np.array([10, 20, 30, 15, 40, 25, 50, 5], np.int64)
    columns = BatchColumns(digests(*tails), times, None, lambda rows: rows.astype(np.uint64))
    decision = decide(columns, Nothing(), SegmentRule.of(RETENTION_US), None)
    assert decision.outcome.tolist() == [0, 1, 1, 0, 1, 1, 0, 0]
    stored = [key.tobytes()[-1] for packed in decision.changes.packed for key in packed.keys]
    assert stored == [1, 2, 3, 9]


def test_ties_are_asked_only_for_rows_that_nothing_else_tells_apart() -> None:
    asked: list[int] = []

    def tie(rows: np.ndarray) -> np.ndarray:
        asked.extend(rows.tolist())
        return rows.astype(np.uint64)[::-1]

    times = np.array([7, 7, 8, 7, 7], np.int64)
    offsets = np.array([2, 1, 1, 1, 5], np.int64)
    decision = decide(
        BatchColumns(digests(1, 1, 1, 1, 2), times, offsets, tie),
        Nothing(),
        SegmentRule.of(RETENTION_US),
        None,
    )
    assert sorted(asked) == [1, 3]
    assert np.flatnonzero(decision.outcome == UNIQUE).tolist() == [3, 4]


def test_without_rows_nothing_is_decided() -> None:
    decision = decide(columns_of([], with_offsets=False), Nothing(), SegmentRule.of(RETENTION_US), None)
    assert decision.counts == {"unique": 0, "duplicate": 0, "late": 0}
    assert decision.newest_us is None
    assert not decision.changes


def test_times_beyond_what_can_be_added_to_are_refused() -> None:
    with pytest.raises(ValueInvalid, match="away from 1970"):
        decide(columns_of([Row(K, 2**62)], with_offsets=False), Nothing(), SegmentRule.of(RETENTION_US), None)


def test_columns_of_different_lengths_are_our_mistake() -> None:
    columns = columns_of([Row(K, 1), Row(K, 2)], with_offsets=False)
    short = replace(columns, times_us=columns.times_us[:1])
    with pytest.raises(InvariantBroken, match="do not fit"):
        decide(short, Nothing(), SegmentRule.of(RETENTION_US), None)


def test_changes_go_to_the_segment_of_each_time_and_are_sorted() -> None:
    """Case 19: also before 1970, and with more segments than are picked one by one."""
    rows = [Row((str(at), at), (at - 5) * 60 * SECOND_US + at) for at in range(12)]
    decision = decide(columns_of(rows, with_offsets=False), Nothing(), SegmentRule.of(2 * SECOND_US), None)
    assert [packed.segment for packed in decision.changes.packed] == list(range(-5, 7))


def test_one_key_may_have_several_times_in_one_segment() -> None:
    """Case 19: 60 s are longer than the retention."""
    rule = SegmentRule.of(SECOND_US)
    store, stream_us = DictStore(rule, with_offsets=False), None
    for seconds in (0, 1, 3, 2, 3):
        columns = columns_of([Row(K, seconds * SECOND_US)], with_offsets=False)
        store.apply(decide(columns, store, rule, stream_us).changes)
        stream_us = max(stream_us or 0, seconds * SECOND_US)
    # What no longer counted is left out whenever the entry is written anew.
    assert store.times(key_column([K]).to_list()[0]) == [2 * SECOND_US, 3 * SECOND_US]
