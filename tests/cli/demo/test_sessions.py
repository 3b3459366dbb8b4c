"""The demo's sessions as the console view sees them, and the clicks they come from."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from tests.cli.console.test_view import draw
from tests.cli.pictures import picture
from tidegate.cli.console.view import summary_line
from tidegate.cli.demo.clicks import VISITORS_MAX, clicks
from tidegate.cli.demo.feeds import Visit, VisitFeed, Visits, visit_of


def told(who: str, state: str = "open", count: int = 1) -> dict[str, Any]:
    return {"who": who, "state": state, "clicks": count, "seconds": 4.5, "feature": "map"}


def feed_with(*payloads: Any) -> VisitFeed:
    def nobody() -> Any:
        raise AssertionError("nobody connects: the feed is not started")

    feed = VisitFeed(nobody)
    feed.take(list(payloads))
    return feed


def test_the_newest_word_about_a_session_counts_and_the_longest_comes_first() -> None:
    now = feed_with(told("ada"), told("bob", count=3), told("ada", count=7)).now()
    assert [(visit.who, visit.clicks) for visit in now.open] == [("ada", 7), ("bob", 3)]
    assert now.closed == 0


def test_a_closed_session_is_counted_once() -> None:
    now = feed_with(told("ada"), told("ada", "closed"), told("ada", "closed"), told("eve", "closed")).now()
    assert now == Visits((), 1)


def test_what_someone_else_publishes_there_is_passed_over() -> None:
    assert visit_of("hello") is None
    assert visit_of({"who": 7}) is None
    assert visit_of({"who": "ada", "clicks": "many"}) == Visit("ada", False, 0, 0.0, "")


def test_sessions_are_a_line_of_the_view_and_words_in_a_log() -> None:
    visits = feed_with(told("ada", count=7), told("bob")).now()
    shown = replace(picture(size=(100, 40)), visits=visits)
    (line,) = [line for line in draw(shown).splitlines() if line.startswith("sessions")]
    assert "2 open, 0 closed · ada 7 in 4.5 s, map most · bob 1 in 4.5 s, map most" in line
    assert "sessions 2 open, 0 closed" in summary_line(shown)


def test_sessions_that_do_not_fit_are_left_out_whole() -> None:
    visits = feed_with(*(told(f"someone-{number}") for number in range(9))).now()
    (line,) = [
        line
        for line in draw(replace(picture(size=(80, 40)), visits=visits)).splitlines()
        if line.startswith("sessions")
    ]
    assert "9 open" in line
    assert line.rstrip().endswith("map most")


def test_clicks_are_the_same_for_the_same_seed_and_people_come_and_go() -> None:
    steps = list(itertools.islice(clicks(3), 3000))
    assert steps == list(itertools.islice(clicks(3), 3000))
    assert any(steps)
    assert all(len(step) <= VISITORS_MAX for step in steps)
    assert len({who for step in steps for who, _feature in step}) > 3
