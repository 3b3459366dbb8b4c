"""The history of a table gives every change behind a number, or says that some are gone."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.live.follower import TABLE, inserted
from tidegate.live.change_buffer import ChangeBuffer, estimate_bytes
from tidegate.model.changes import Changes


def filled(sizes: list[int], changes_max: int) -> ChangeBuffer:
    history = ChangeBuffer(100, changes_max, 1 << 30)
    seq = 101
    for size in sizes:
        rows = [inserted(seq + at, "r", 1) for at in range(size)]
        history.append(Changes(TABLE, "", rows), seq)
        seq += size + 5  # other tables take numbers, too
    return history


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 9), max_size=12),
    st.integers(1, 30),
    st.integers(1, 8),
    st.integers(1, 3000),
    st.data(),
)
def test_reading_in_steps_gives_each_change_behind_a_number_once(
    sizes: list[int], changes_max: int, step_changes: int, step_bytes: int, data: st.DataObject
) -> None:
    history = filled(sizes, changes_max)
    start = data.draw(st.integers(90, history.last_seq + 3))
    stop = data.draw(st.integers(start, history.last_seq + 3))
    seen: list[int] = []
    seq = start
    while seq < stop:
        step = history.after(seq, stop, step_changes, step_bytes)
        if step is None:
            assert seq == start < history.floor_seq, "gone before the first step, not in the middle"
            return
        assert seq < step.end_seq <= stop
        assert len(step.changes) <= step_changes
        assert all(number.change.new == (number.seq, "r", 1) for number in step.changes)
        seen += [number.seq for number in step.changes]
        seq = step.end_seq
    everything: list[int] = []
    first = 101
    for size in sizes:
        everything += range(first, first + size)
        first += size + 5
    assert start >= history.floor_seq or start == stop
    assert seen == [number for number in everything if start < number <= stop]


def test_the_oldest_go_first_and_the_newest_statement_stays() -> None:
    history = filled([3, 3, 3], changes_max=6)
    assert (len(history), history.floor_seq) == (6, 103)
    assert history.after(102, history.last_seq, 100, 1 << 20) is None
    history = filled([3, 50], changes_max=6)
    assert (len(history), history.floor_seq) == (50, 103)


def test_large_values_count_against_the_size() -> None:
    history = ChangeBuffer(0, 1000, 100_000)
    for seq in range(1, 51):
        history.append(Changes(TABLE, "", [inserted(seq, "x" * 10_000, 1)]), seq)
    assert 50_000 < history.size_bytes <= 100_000
    assert len(history) < 10
    assert history.last_seq == 50


def test_an_estimate_sees_old_and_new_rows() -> None:
    both = [inserted(1, "x" * 1000, 1)._replace(old=(1, "y" * 1000, 1))]
    assert 2000 < estimate_bytes(TABLE, both) < 4000
