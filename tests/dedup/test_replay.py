"""A batch that comes again gets the outcome that it had, from what it stored."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.dedup.model import Row
from tests.dedup.store.dict_store import DictStore, columns_of
from tests.dedup.streams import SECOND_US, Stream, draw
from tests.dedup.test_decision import digests, judged
from tidegate.checkpoint.backend import StateChanges
from tidegate.dedup.columns import SegmentKeys
from tidegate.dedup.decision import BatchColumns, Decision, decide
from tidegate.dedup.decision_changes import added_times
from tidegate.dedup.replay import Flags, PublishedBatch, duplicates_table, replay_decision
from tidegate.dedup.settings import SegmentRule
from tidegate.errors import StateMismatch, StorageCorrupt

K = ("k", 1)


def run_again(stream: Stream, seed: int, *, exact: bool = False) -> None:
    """Take a stream through the decision, and replay every batch in another order of rows."""
    chance = random.Random(seed)
    rule = SegmentRule.of(stream.retention_us, stream.interval_us)
    store, stream_us = DictStore(rule, with_offsets=stream.with_offsets), None
    for batch in stream.batches:
        rows = list(batch)
        columns = columns_of(rows, with_offsets=stream.with_offsets, exact=exact)
        decision = decide(columns, store, rule, stream_us)
        table = duplicates_table(columns, decision)
        store.apply(decision.changes)
        order = list(range(len(rows)))
        chance.shuffle(order)
        mixed = columns_of([rows[at] for at in order], with_offsets=stream.with_offsets, exact=exact)
        again = replay_decision(mixed, PublishedBatch("orders", [decision.changes], table), rule, stream_us)
        assert judged(again) == [judged(decision)[at] for at in order]
        assert again.counts == decision.counts
        assert again.newest_us == decision.newest_us
        assert not again.changes
        plain = replay_decision(mixed, PublishedBatch("orders", split(decision.changes)), rule, stream_us)
        assert plain.outcome.tolist() == again.outcome.tolist()
        stream_us = max(
            [row.time_us for row in rows] + ([] if stream_us is None else [stream_us]), default=None
        )


def split(changes: StateChanges) -> list[StateChanges]:
    """Return changes in several parts, as a change file gives them."""
    return [
        *(StateChanges(entries={key: value}) for key, value in changes.entries.items()),
        *(StateChanges(packed=[packed]) for packed in changes.packed),
    ]


@settings(max_examples=30)
@given(st.integers(0, 2**32))
def test_a_repeated_batch_gets_the_same_outcome_in_any_order(seed: int) -> None:
    """Case 20."""
    run_again(draw(seed), seed)


@settings(max_examples=10)
@given(st.integers(0, 2**32))
def test_exact_keys_are_found_again(seed: int) -> None:
    """Cases 20 and 21."""
    run_again(draw(seed), seed, exact=True)


def decided(rows: list[Row], stored: list[Row] | None = None) -> tuple[Decision, SegmentRule]:
    rule = SegmentRule.of(SECOND_US)
    store = DictStore(rule, with_offsets=False)
    if stored:
        store.apply(decide(columns_of(stored, with_offsets=False), store, rule, None).changes)
    return decide(columns_of(rows, with_offsets=False), store, rule, None), rule


def test_a_row_at_a_time_stored_before_stays_a_duplicate_when_its_entry_was_written_anew() -> None:
    """Case 19: the entry has both times, and only one of them is new."""
    rows = [Row(K, 0), Row(K, 5 * SECOND_US)]
    decision, rule = decided(rows, stored=[Row(K, 0)])
    assert decision.counts == {"unique": 1, "duplicate": 1, "late": 0}
    again = replay_decision(
        columns_of(rows, with_offsets=False), PublishedBatch("orders", [decision.changes]), rule, None
    )
    assert again.outcome.tolist() == decision.outcome.tolist() == [1, 0]


def test_rows_that_lack_a_stored_key_are_refused() -> None:
    decision, rule = decided([Row(K, 0), Row(("z", 2), 1)])
    with pytest.raises(StateMismatch, match="its rows are not those of the first time"):
        replay_decision(
            columns_of([Row(K, 0)], with_offsets=False), PublishedBatch("o", [decision.changes]), rule, None
        )
    with pytest.raises(StateMismatch, match="its rows are not those of the first time"):
        other = columns_of([Row(K, 7), Row(("z", 2), 1)], with_offsets=False)
        replay_decision(other, PublishedBatch("o", [decision.changes]), rule, None)


def test_another_offset_is_another_row() -> None:
    rule = SegmentRule.of(SECOND_US)
    rows = columns_of([Row(K, 0, offset=4)], with_offsets=True)
    changes = decide(rows, DictStore(rule, with_offsets=True), rule, None).changes
    with pytest.raises(StateMismatch, match="not those of the first time"):
        other = columns_of([Row(K, 0, offset=5)], with_offsets=True)
        replay_decision(other, PublishedBatch("o", [changes]), rule, None)


def test_a_duplicate_that_was_not_there_is_refused_where_first_times_are_kept() -> None:
    rows = [Row(K, 0), Row(K, 1)]
    decision, rule = decided(rows)
    table = duplicates_table(columns_of(rows, with_offsets=False), decision)
    more = columns_of([*rows, Row(K, 2)], with_offsets=False)
    with pytest.raises(StateMismatch, match="was not among them"):
        replay_decision(more, PublishedBatch("o", [decision.changes], table), rule, None)


def test_a_part_of_a_batch_is_compared_with_its_own_keys_alone() -> None:
    rows = [Row((str(at), at), at) for at in range(64)]
    decision, rule = decided(rows)

    def even(keys: SegmentKeys) -> Flags:
        found: Flags = keys.hashes % np.uint64(2) == 0
        return found

    whole = columns_of(rows, with_offsets=False)
    numbers = np.flatnonzero(even(whole.keys)).tolist()
    part = columns_of([rows[at] for at in numbers], with_offsets=False)
    again = replay_decision(part, PublishedBatch("o", [decision.changes], keep=even), rule, None)
    assert again.counts == {"unique": len(numbers), "duplicate": 0, "late": 0}


def test_keys_that_share_their_first_bytes_and_have_many_times_are_told_apart() -> None:
    """More times of one key than are looked at together, beside keys that differ in the last byte."""
    rule = SegmentRule.of(10)
    tails = [1, 2, 3] * 8
    times = np.array([100 * (at // 3) + at % 3 for at in range(24)], np.int64)
    rows = BatchColumns(digests(*tails), times, None, lambda at: at.astype(np.uint64))
    decision = decide(rows, DictStore(rule, with_offsets=False), rule, None)
    assert decision.counts["unique"] == 24
    again = replay_decision(rows, PublishedBatch("o", [decision.changes]), rule, None)
    assert again.outcome.tolist() == [0] * 24


def test_another_key_that_shares_its_first_bytes_is_not_taken_for_the_stored_one() -> None:
    rule = SegmentRule.of(10)
    times = np.array([5], np.int64)
    rows = BatchColumns(digests(3), times, None, lambda at: at.astype(np.uint64))
    changes = decide(rows, DictStore(rule, with_offsets=False), rule, None).changes
    with pytest.raises(StateMismatch, match="not those of the first time"):
        replay_decision(
            BatchColumns(digests(4), times, None, rows.tie), PublishedBatch("o", [changes]), rule, None
        )


def test_late_rows_are_late_again() -> None:
    rule = SegmentRule.of(SECOND_US)
    rows = columns_of([Row(K, 0), Row(K, 9 * SECOND_US)], with_offsets=False)
    decision = decide(rows, DictStore(rule, with_offsets=False), rule, 5 * SECOND_US)
    again = replay_decision(rows, PublishedBatch("o", [decision.changes]), rule, 5 * SECOND_US)
    assert again.outcome.tolist() == decision.outcome.tolist() == [2, 0]


def test_a_value_of_another_width_is_damage() -> None:
    with pytest.raises(StorageCorrupt, match="are not 3 bytes"):
        added_times(b"123", with_offsets=False)
