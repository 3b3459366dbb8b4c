"""The estimate: the published formulas to the last GiB, and ours beside it."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.paths import ROOT
from tidegate.checkpoint.settings import StateSettings
from tidegate.dedup import sizing as module
from tidegate.dedup.settings import INTERVAL_US_MIN, SEGMENTS_MAX, SegmentRule
from tidegate.dedup.sizing import GIB, Estimate, Workload, estimate
from tidegate.errors import RequestInvalid
from tidegate.model.epoch import DAY_US

RATES = st.fractions(min_value=Fraction(1, 100), max_value=10**6, max_denominator=100)
RETENTIONS_US = st.integers(min_value=1, max_value=1_000 * 86_400_000).map(lambda ms: ms * 1_000)


def test_the_window_store_has_the_figures_of_its_script() -> None:
    """Case 24: 439 GiB a segment, 878 GiB for two, 878 GiB changelog, 1,756 GiB together."""
    store = estimate(Workload()).window_store
    assert (store.raw_entry_bytes, store.entry_bytes) == (84, Fraction("109.2"))
    assert (store.segment_gib, store.store_gib, store.changelog_gib) == (439, 878, 878)
    assert store.store_gib + store.changelog_gib == 1_756


def test_three_segments_are_live_from_day_100_to_150() -> None:
    """Case 24: by its own formula the oldest segment is needed until day 150, so disk is for three."""
    found = estimate(Workload())
    assert (found.load.segments_in_retention, found.load.segments_live) == (2, 3)
    assert found.window_store.live_gib == 1_317
    assert any("3 segments of 50 days are live at once, not 2" in note for note in found.notes)


def test_where_the_text_differs_from_its_formulas_is_named() -> None:
    """Case 24: 471 GB is 439 GiB; 316 GB of changelog is wrong; no such note for other loads."""
    notes = " ".join(estimate(Workload()).notes)
    assert "471 GB and 439 GiB are the same" in notes
    assert "316 GB" in notes
    assert "943 GB (878 GiB)" in notes
    assert "316 GB" not in " ".join(estimate(Workload(rate=Fraction(999))).notes)
    assert "same segment" in " ".join(estimate(Workload(rate=Fraction(3))).notes)
    assert "same segment" not in " ".join(estimate(Workload(rate=Fraction(2))).notes)


def test_as_many_segments_are_live_as_the_rule_of_cleanup_leaves() -> None:
    for retention, interval in [(100, 50), (100, 30), (7, 7), (10, 20), (5, 1)]:
        load = Workload(retention_us=retention * DAY_US, interval_us=interval * DAY_US)
        rule = SegmentRule.of(load.retention_us, load.segment_us)
        live = set()
        for hour in range(0, 400 * 24, 3):
            stream_us = hour * DAY_US // 24
            live.add(rule.segment_of(stream_us) - rule.segment_of(stream_us - rule.retention_us) + 1)
        assert max(live) == load.segments_live


@given(retention_us=RETENTIONS_US)
@settings(max_examples=50)
def test_segments_are_as_long_as_the_store_makes_them(retention_us: int) -> None:
    assert Workload(retention_us=retention_us).segment_us == SegmentRule.of(retention_us).interval_us


def test_the_guide_has_the_figures_of_the_estimate() -> None:
    """What docs/guide/dedup.md says beside `tidegate dedup estimate` is what the command answers."""
    guide = (ROOT / "docs/guide/dedup.md").read_text("utf-8")
    section = guide.partition("## Resources")[2].partition("\n## ")[0]
    command = re.search(r'tidegate dedup estimate --rate 1000 --retention "100 days" --key-bytes 64', section)
    assert command is not None
    found = estimate(Workload(rate=Fraction(1_000), retention_us=100 * DAY_US, key_bytes=64))
    ours = found.segments
    bytes_a_key = re.search(r"About (\d+) bytes of local disk for each key, filters included", section)
    assert bytes_a_key is not None
    assert int(bytes_a_key[1]) == round(ours.store_bytes_a_key + module.FILTER_BYTES_A_KEY)
    keys = re.search(
        r"for 100 days are ([\d.]+) billion keys; (\w+) segments of 50 days are on the disk at once, "
        r"([\d.]+) billion keys at most",
        section,
    )
    assert keys is not None
    assert float(keys[1]) == round(float(found.load.keys(100 * DAY_US)) / 10**9, 2)
    assert (keys[2], found.load.segments_live) == ("three", 3)
    assert float(keys[3]) == round(ours.live_keys / 10**9, 2)


def test_the_limits_are_those_of_the_store() -> None:
    interval_us = INTERVAL_US_MIN
    assert Workload(retention_us=interval_us, interval_us=None).segment_us == interval_us
    most = Workload(retention_us=interval_us * (SEGMENTS_MAX - 1), interval_us=interval_us)
    assert most.segments_live == SEGMENTS_MAX
    with pytest.raises(RequestInvalid, match="live segments"):
        Workload(retention_us=interval_us * SEGMENTS_MAX, interval_us=interval_us)
    usual = StateSettings()
    assert usual.snapshots_retained == module.SNAPSHOTS_RETAINED


def test_our_layout_is_sized_for_its_largest_moment() -> None:
    """Case 24: just before the oldest goes, 150 days of keys are stored; the disk is 70 % full then."""
    ours = estimate(Workload(duplicate_share=Fraction(0))).segments
    assert ours.live_keys == 12_960_000_000
    assert ours.segment_keys == 4_320_000_000
    assert ours.local_bytes == ours.live_keys * (module.STORE_BYTES_A_KEY + module.FILTER_BYTES_A_KEY)
    assert ours.segment_bytes * 3 == ours.local_bytes
    assert ours.disk_bytes == (ours.local_bytes + ours.segment_bytes) * 10 // 7
    assert ours.partition_bytes <= 64 * GIB


def test_ours_takes_less_than_the_window_store_at_the_same_moment() -> None:
    found = estimate(Workload())
    assert found.segments.local_bytes < found.window_store.live_gib * GIB / 3
    assert found.segments.checkpoint_bytes < found.window_store.changelog_bytes


def test_standbys_are_whole_copies() -> None:
    alone, three = estimate(Workload()).segments, estimate(Workload(standbys=2)).segments
    assert three.disk_bytes == pytest.approx(3 * alone.disk_bytes, abs=3)
    assert three.checkpoint_bytes == alone.checkpoint_bytes


def test_exact_keys_and_offsets_take_their_bytes() -> None:
    digests = estimate(Workload()).segments
    assert estimate(Workload(key_bytes=500)).segments == digests  # a digest is as long for any key
    assert estimate(Workload(exact_keys=True)).segments.change_bytes_a_key == digests.change_bytes_a_key + 48
    assert estimate(Workload(with_offsets=True)).segments.change_bytes_a_key == digests.change_bytes_a_key + 8
    assert estimate(Workload(exact_keys=True)).segments.store_bytes > 2 * digests.store_bytes


def test_duplicates_are_not_stored_and_the_window_store_does_not_count_on_them() -> None:
    none, half = (
        estimate(Workload(duplicate_share=Fraction(0))),
        estimate(Workload(duplicate_share=Fraction(1, 2))),
    )
    assert half.segments.live_keys * 2 == none.segments.live_keys
    assert half.window_store == none.window_store


def test_too_few_partitions_are_said() -> None:
    assert any("8 partitions are better" in note for note in estimate(Workload(partitions=2)).notes)
    assert not any("better" in note for note in estimate(Workload(partitions=8)).notes)


def sizes(found: Estimate) -> list[int]:
    """Return everything that must not shrink when more comes, or is kept for longer."""
    store, ours = found.window_store, found.segments
    return [
        *(store.segment_bytes, store.store_gib, store.live_gib, store.changelog_gib),
        *(ours.live_keys, ours.local_bytes, ours.filter_bytes, ours.segment_bytes),
        *(ours.checkpoint_bytes, ours.disk_bytes, ours.checkpoint_disk_bytes, ours.partitions),
    ]


@given(rates=st.tuples(RATES, RATES), retention_us=RETENTIONS_US)
@settings(max_examples=60)
def test_more_messages_never_take_less(rates: tuple[Fraction, Fraction], retention_us: int) -> None:
    less, more = (estimate(Workload(rate=rate, retention_us=retention_us)) for rate in sorted(rates))
    assert all(a <= b for a, b in zip(sizes(less), sizes(more), strict=True))


@given(rate=RATES, retentions_us=st.tuples(RETENTIONS_US, RETENTIONS_US))
@settings(max_examples=60)
def test_a_longer_retention_never_takes_less(rate: Fraction, retentions_us: tuple[int, int]) -> None:
    less, more = (estimate(Workload(rate=rate, retention_us=us)) for us in sorted(retentions_us))
    assert all(a <= b for a, b in zip(sizes(less), sizes(more), strict=True))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"rate": Fraction(0)}, "The rate is 0 messages a second. It must be more than 0"),
        ({"rate": Fraction(-5)}, "The rate is -5"),
        ({"rate": Fraction(2 * 10**9)}, "at most 1,000,000,000"),
        ({"retention_us": 0}, "The retention is 0 s"),
        ({"retention_us": 40_000 * DAY_US}, "to 36525 days"),
        ({"interval_us": 0}, "The interval is 0 s"),
        ({"interval_us": 1_000_000}, "live segments, and 512 is the most"),
        ({"key_bytes": 0}, "The key size is 0 bytes"),
        ({"value_bytes": -1}, "The value size is -1 bytes"),
        ({"metadata_bytes": 2**30}, "at most 1,048,576"),
        ({"overhead": Fraction(0)}, "The overhead is 0"),
        ({"changelog_overhead": Fraction(1000)}, "The changelog overhead is 1,000"),
        ({"duplicate_share": Fraction(1)}, "less than 1"),
        ({"duplicate_share": Fraction(-1, 2)}, "at least 0"),
        ({"partitions": 0}, "The number of partitions is 0"),
        ({"standbys": 11}, "at most 10"),
    ],
)
def test_what_cannot_be_is_refused_with_words(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(RequestInvalid) as caught:
        Workload(**wrong)  # type: ignore[arg-type]
    assert words in caught.value.message
