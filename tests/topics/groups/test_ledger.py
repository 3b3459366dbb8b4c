"""The ledger by itself: cutting entries, what is due when, counts, and an index that does not grow."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.topics.groups.codec import HELD, WAITING, Entry, Position
from tidegate.topics.groups.ledger import INDEX_SLACK, Draft, Ledger

WIDTH = 30


def entry(start: int, stop: int, ends_us: int, kind: int = HELD) -> Entry:
    return Entry(start, stop, kind, 1, 77, ends_us, 10, 0, "a")


def applied(ledger: Ledger, draft: Draft) -> None:
    draft.finish()
    ledger.apply(draft)


def states(ledger: Ledger) -> dict[int, tuple[int, int]]:
    """Return kind and end of every offset in an entry."""
    found: dict[int, tuple[int, int]] = {}
    for one in ledger.entries():
        for offset in range(one.start, one.stop):
            assert offset not in found, "entries do not overlap"
            found[offset] = (one.kind, one.ends_us)
    return found


CUTS = st.lists(st.integers(0, WIDTH), min_size=2, max_size=12, unique=True).map(sorted)
STEPS = st.lists(
    st.tuples(CUTS, st.sampled_from(["drop", "wait", "extend"]), st.integers(0, 40)), max_size=12
)


@settings(max_examples=150)
@given(CUTS, STEPS)
def test_any_cuts_leave_exactly_the_rest(bounds: list[int], steps: list[tuple[list[int], str, int]]) -> None:
    entries = [entry(a, b, a % 7) for a, b in zip(bounds[::2], bounds[1::2], strict=False)]
    ledger = Ledger(Position(WIDTH), entries)
    expected = states(ledger)
    for number, (cuts, what, ends_us) in enumerate(steps):
        draft = Draft(ledger)
        ranges = list(zip(cuts[::2], cuts[1::2], strict=False))
        for one, parts in ledger.clipped(ranges):

            def change(
                _held: Entry, a: int, b: int, what: str = what, ends_us: int = ends_us
            ) -> Entry | None:
                return None if what == "drop" else entry(a, b, ends_us, WAITING if what == "wait" else HELD)

            draft.replace(one, parts, change)
        inside = {offset for start, stop in ranges for offset in range(start, stop)}
        for offset in inside & expected.keys():
            if what == "drop":
                del expected[offset]
            else:
                expected[offset] = (WAITING if what == "wait" else HELD, ends_us)
        before = states(ledger)
        draft.finish()
        assert states(ledger) == before, "a draft changes nothing"
        ledger.apply(draft)
        assert states(ledger) == expected
        assert ledger.outstanding == len(expected)
        now_us = number * 3
        due = [offset for one in ledger.due(now_us) for offset in range(one.start, one.stop)]
        assert due == sorted(offset for offset, (_, ends) in expected.items() if ends <= now_us)
        later = [ends for _, ends in expected.values() if ends > now_us]
        assert ledger.due_later_us(now_us) == min(later, default=None)
        lapsed = any(kind == HELD and ends <= now_us for kind, ends in expected.values())
        assert ledger.has_lapsed(now_us) == lapsed


def test_looking_with_an_earlier_time_after_a_later_one_loses_nothing() -> None:
    ledger = Ledger(Position(9), [entry(0, 3, 10), entry(5, 9, 20)])
    assert [one.start for one in ledger.due(30)] == [0, 5]
    assert [one.start for one in ledger.due(15)] == [0]
    assert [one.start for one in ledger.due(30)] == [0, 5]


def test_an_index_does_not_grow_with_leases_that_are_long_gone() -> None:
    ledger = Ledger(Position(0))
    for number in range(2000):
        draft = Draft(ledger)
        draft.put[number] = entry(number, number + 1, 10**12 + number)
        applied(ledger, draft)
        draft = Draft(ledger)
        for one, parts in ledger.clipped([(number, number + 1)]):
            draft.replace(one, parts)
        applied(ledger, draft)
    assert len(ledger) == 0
    assert len(ledger._later) <= INDEX_SLACK + 2
    assert len(ledger._lapses) <= INDEX_SLACK + 2


def test_a_position_has_a_new_revision_after_every_change() -> None:
    ledger = Ledger(Position(3))
    seen = {ledger.stored}
    for _ in range(3):
        draft = Draft(ledger)
        assert draft.is_empty
        applied(ledger, draft)
        seen.add(ledger.stored)
    assert len(seen) == 4
