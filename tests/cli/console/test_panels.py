"""Duplicates in the console view: what is shown, of what the worker reports."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from tests.cli.console.test_view import draw
from tests.cli.pictures import picture
from tidegate.cli.console.panels import DedupCounts, dedup_counts, dedup_line, dedup_words
from tidegate.cli.console.view import summary_line
from tidegate.cli.demo.clicks import REMEMBERED_CLICKS, ClickSource

SECOND_US = 1_000_000


def reported(name: str, **dedup: int) -> dict[str, Any]:
    """Return a pipeline as a status has it, with one operator that deduplicates and one that does not."""
    return {
        "name": name,
        "operators": [{"name": "clicks", "dedup": dedup}, {"name": "visits", "dedup": None}],
    }


def test_operators_that_deduplicate_are_found_with_what_they_caught() -> None:
    status = {
        "pipelines": [
            reported("sessions", unique=900, duplicates=90, late=10),
            {"name": "readings", "operators": []},
        ]
    }
    assert dedup_counts(status) == [DedupCounts("sessions/clicks", 90, 10, 1000)]
    assert dedup_words(dedup_counts(status)[0]) == "90 of 1,000 (9.00 %) in sessions/clicks, 10 late"


def test_before_the_first_row_nothing_is_divided_by_zero() -> None:
    assert dedup_words(DedupCounts("a/b", 0, 0, 0)) == "0 of 0 (0.00 %) in a/b"


def test_the_operator_that_caught_most_comes_first_and_what_does_not_fit_is_counted() -> None:
    found = [DedupCounts(f"pipeline-{number}/clicks", number, 0, 100) for number in range(5)]
    text = dedup_line(found, 80).plain
    assert text.startswith("duplicates   4 of 100 (4.00 %) in pipeline-4/clicks")
    assert text.endswith(" · and 4 more")


def test_the_view_and_its_line_for_logs_tell_of_duplicates() -> None:
    shown = picture(size=(100, 40))
    assert "duplicates" not in draw(shown)
    assert shown.status is not None
    first, *rest = shown.status["pipelines"]
    dedup = {"unique": 7, "duplicates": 3, "late": 0}
    pipelines = [first | {"operators": [{"name": "clicks", "dedup": dedup}]}, *rest]
    shown = replace(shown, status={**shown.status, "pipelines": pipelines})
    assert f"3 of 10 (30.00 %) in {first['name']}/clicks" in draw(shown)
    assert f"duplicates 3 of 10 (30.00 %) in {first['name']}/clicks" in summary_line(shown)


def test_the_demo_sends_some_clicks_again_as_they_were() -> None:
    source = ClickSource(3, 5)
    sent = [message for step in range(3000) for message in source.step(step * SECOND_US)]
    by_id = Counter(message["payload"]["id"] for message in sent)
    assert len(by_id) > 100
    again = [one for one, count in by_id.items() if count > 1]
    assert again
    for one in again:
        assert len({str(message) for message in sent if message["payload"]["id"] == one}) == 1
    assert max(len(source.step(0)) for _ in range(1000)) <= REMEMBERED_CLICKS + 10
