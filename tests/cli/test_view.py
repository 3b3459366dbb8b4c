from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.cli.pictures import history, picture, status
from tidegate.cli.feed import History
from tidegate.cli.status import write_svg
from tidegate.cli.supervisor import ChildState
from tidegate.cli.view import Picture, render, spark_text, summary_line


def draw(shown: Picture, *, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding, errors="replace")
    Console(file=out, width=shown.size[0], height=shown.size[1], force_terminal=False).print(render(shown))
    out.flush()
    return raw.getvalue().decode(encoding)


def line_with(text: str, word: str) -> str:
    return next(line for line in text.splitlines() if word in line)


def test_the_view_shows_address_home_version_and_uptime() -> None:
    heading = draw(picture()).splitlines()[0]
    for part in ("Tidegate 0.1.0", "http://127.0.0.1:8787", "/srv/tide", "up 2 min 10 s"):
        assert part in heading


def test_rates_come_from_the_history() -> None:
    text = draw(picture())
    assert "200/s" in line_with(text, "messages in")
    assert "180/s" in line_with(text, "rows out")
    assert "6,000" in line_with(text, "demo.readings")
    assert "200/s" in line_with(text, "demo.readings")


def test_a_pipeline_shows_state_batches_rows_lag_and_last_batch() -> None:
    text = draw(picture())
    line = next(line for line in text.splitlines() if "running" in line and "5,400" in line)
    for part in ("readings", "30", "5,400", "180/s", "600", "0.8 s"):
        assert part in line


def test_a_failed_pipeline_shows_the_first_line_of_its_error() -> None:
    seen = status(3)
    seen["pipelines"][0] |= {"state": "failed", "error": "no such column: wind\n  at line 3"}
    text = draw(replace(picture(), status=seen))
    assert "no such column: wind" in text
    assert "at line 3" not in text


def test_a_silent_worker_is_called_silent() -> None:
    seen = status(3)
    seen["worker"]["seenSecondsAgo"] = 42.0
    text = draw(replace(picture(), status=seen))
    assert "silent" in text
    assert "last heard of 42 s ago" in text


def test_a_worker_that_fell_is_not_shown_by_its_last_report() -> None:
    child = ChildState("worker", "running", 5000, 1, 0.0, Path("/srv/tide/logs/worker.log"))
    text = draw(replace(picture(), children=[child]))
    assert "process 5000 · started again 1 ×" in text
    assert "4712" not in text


def test_without_a_status_the_view_says_what_it_waits_for() -> None:
    child = ChildState("server", "waiting", None, 2, 4.0, Path("/srv/tide/logs/server.log"))
    shown = Picture("/srv/tide", "", None, History(), children=[child], trouble="the server does not answer")
    text = draw(shown)
    assert "the server does not answer" in text
    assert "starts again in 4.0 s" in text
    assert "started again 2 ×" in text


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (120, 40), (200, 60)])
@pytest.mark.parametrize("topics", [0, 1, 50])
def test_the_view_fits_the_screen_and_keeps_its_footer(size: tuple[int, int], topics: int) -> None:
    text = draw(picture(topics=topics, size=size)).rstrip("\n")
    assert len(text.splitlines()) <= size[1]
    assert "tidegate pipeline list" in text.splitlines()[-1]


def test_what_does_not_fit_is_counted() -> None:
    assert "and " in draw(picture(topics=50, size=(80, 24)))
    assert "more" in draw(picture(topics=50, size=(80, 24)))


def test_a_terminal_without_unicode_gets_plain_bars() -> None:
    text = draw(replace(picture(), commands=()), encoding="ascii")
    assert "@" in line_with(text, "messages in")


def test_bars_rise_from_zero_to_the_largest() -> None:
    assert spark_text([0, 1, 2, 4, 8]) == "▁▂▃▅█"
    assert spark_text([0, 0]) == "▁▁"
    assert spark_text([]) == ""


def test_markup_in_names_is_text() -> None:
    seen = status(3)
    seen["pipelines"][0] |= {"state": "failed", "error": "bad [bold]index[/nope]"}
    assert "bad [bold]index[/nope]" in draw(replace(picture(), status=seen))


def test_the_line_for_logs_has_every_figure() -> None:
    line = summary_line(picture())
    for part in (
        "messages in 200/s",
        "rows out 180/s",
        "lag 600",
        "batches 30",
        "210 MB",
        "890 MB",
        "readings",
    ):
        assert part in line


def test_a_worker_that_starts_again_does_not_make_rates_negative() -> None:
    kept = history(5)
    kept.add({**status(6), "pipelines": []}, 6.0)
    assert kept.row_rate() == 0.0
    assert min(kept.row_steps()) == 0.0


def test_a_new_topic_has_a_rate_from_its_second_sample_on() -> None:
    kept = History()
    for second in range(4):
        kept.add(status(second, topics=1 if second < 2 else 2), float(second))
    assert kept.topic_rate("demo.readings1") == 200.0


def test_a_deleted_topic_has_no_rate() -> None:
    assert history(5).topic_rate("gone") is None


def test_the_view_is_saved_as_a_picture(tmp_path: Path) -> None:
    write_svg(picture(), tmp_path / "console.svg")
    svg = (tmp_path / "console.svg").read_text(encoding="utf-8")
    assert svg.startswith("<svg")
    assert "Tidegate" in svg
    assert "url(http" not in svg
