from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.cli.pictures import history, picture, status
from tidegate.cli.commands.status import commands_to_try, write_svg
from tidegate.cli.console.panels import spark_text
from tidegate.cli.console.status_feed import CounterHistory, GroupLag
from tidegate.cli.console.view import Picture, render, summary_line
from tidegate.cli.demo.feeds import AGENT_GROUP, QUESTIONS_TOPIC, Exchange, Person
from tidegate.cli.installed_pipelines import with_waiting
from tidegate.cli.output.format import HOME_DEFAULT
from tidegate.cli.supervision.supervisor import ChildState


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
    shown = Picture(
        "/srv/tide", "", None, CounterHistory(), children=[child], trouble="the server does not answer"
    )
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


def test_people_who_do_not_fit_are_counted() -> None:
    users = [Person(f"person{number}", "lobby", number == 0, 0.0) for number in range(12)]
    shown = replace(picture(size=(80, 30)), users=users)
    line = line_with(draw(shown), "who is here").rstrip()
    assert line == "who is here  person0@lobby types…  person1@lobby  person2@lobby  and 9 more"
    line = line_with(draw(replace(shown, users=users[:3])), "who is here").rstrip()
    assert line.endswith("person2@lobby")


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
    assert 0.0 <= (kept.row_rate() or 0.0) <= 180.0
    assert min(kept.row_steps()) == 0.0


def test_counters_that_come_back_after_a_restart_are_not_taken_for_growth() -> None:
    kept = history(100)
    kept.add({**status(101), "pipelines": []}, 101.0)
    kept.add(status(102), 102.0)
    kept.add(status(103), 103.0)
    assert (kept.row_rate() or 0.0) <= 180.0
    assert max(kept.row_steps()) <= 180.0


def test_what_grew_while_the_server_was_away_is_not_a_rate() -> None:
    kept = history(10)
    kept.add(status(5000), 60.0)
    assert kept.message_rate() is None
    kept.add(status(5001), 61.0)
    assert kept.message_rate() == 200.0
    assert max(kept.message_steps()) == 200.0


def test_a_new_topic_has_a_rate_from_its_second_sample_on() -> None:
    kept = CounterHistory()
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


@pytest.mark.parametrize("size", [(80, 24), (112, 40)])
def test_a_long_name_is_cut_in_its_middle_and_figures_are_whole(size: tuple[int, int]) -> None:
    seen = status(1_234_567)
    seen["topics"][0]["name"] = f"plant.{'x' * 150}.last"
    seen["pipelines"][0]["name"] = f"p{'y' * 60}z"
    text = draw(replace(picture(100, size=size), status=seen))
    topic = line_with(text, "plant.")
    assert ".last " in topic
    for figure in ("246,913,400", "30 GB"):
        assert figure in topic
    assert "messages in" in text
    for heading in ("messages", "msg/s", "partitions", "size", "version", "rows out"):
        assert f"{heading} " in f"{text} ".replace("\n", " ")
    assert "222,222,060" in text
    assert "24,691,340" in text


def test_of_many_topics_those_with_traffic_and_the_fullest_are_shown() -> None:
    shown = picture(topics=50, size=(80, 24))
    quiet = {**status(30, topics=50)}
    quiet["topics"] = [
        {**topic, "messages": 10_000 if topic["name"].endswith("37") else 0} for topic in quiet["topics"]
    ]
    still = CounterHistory()
    assert "demo.readings37" in draw(replace(shown, status=quiet, history=still))


def test_the_commands_to_try_fit_a_line_and_name_a_topic_with_messages() -> None:
    seen = status(30)
    empty = {**seen["topics"][0], "name": "app.empty", "messages": 0}
    long = {**seen["topics"][0], "name": "a" * 150, "messages": 10**9}
    seen["topics"] = [empty, long, seen["topics"][0]]
    lines = commands_to_try(HOME_DEFAULT.expanduser().absolute(), seen, 110)
    assert "topic consume demo.readings " in lines[1]
    assert all(len(line) <= 110 for line in lines)


def test_an_installed_pipeline_is_drawn_as_waiting() -> None:
    seen = {**status(3, worker=False), "pipelines": with_waiting([], ["hourly"])}
    text = draw(replace(picture(), status=seen))
    assert "waiting" in line_with(text, "hourly")
    assert "no pipeline yet" not in text
    assert "hourly waiting" in summary_line(replace(picture(), status=seen))


def test_a_topic_shows_the_lag_of_the_group_that_is_furthest_behind() -> None:
    assert " lag " not in line_with(draw(picture()), "msg/s")
    lags = [GroupLag("demo.readings", "slow", 4321, 2), GroupLag("demo.readings", "quick", 0, 0)]
    text = draw(replace(picture(topics=2), lags=lags))
    assert " lag " in line_with(text, "msg/s")
    assert "4,321" in line_with(text, "demo.readings ")
    assert "–" in line_with(text, "demo.readings1")
    assert "demo.readings slow lag 4,321" in summary_line(replace(picture(), lags=lags))


def exchanges(count: int) -> list[Exchange]:
    return [Exchange("ada", f"Who is in room {number}?", "Bob and Cleo.", 0.4) for number in range(count)]


def test_the_agent_shows_its_lag_and_the_newest_answers() -> None:
    lags = [GroupLag(QUESTIONS_TOPIC, AGENT_GROUP, 11, 2)]
    shown = replace(picture(size=(100, 40)), exchanges=exchanges(5), lags=lags)
    text = draw(shown)
    assert "lag 11 · 2 in work" in line_with(text, "agent")
    assert "asked – · answered –" in line_with(text, "agent")
    assert "asked" not in summary_line(picture())
    seen = status(3)
    seen["topics"] = [{**seen["topics"][0], "name": QUESTIONS_TOPIC}]
    shown.history.add({**seen, "topics": []}, 1000.0)
    shown.history.add({**seen, "topics": seen["topics"]}, 1001.0)
    more = {**seen["topics"][0], "partitions": [{"partition": 0, "start": 0, "end": 612}]}
    shown.history.add({**seen, "topics": [more]}, 1002.0)
    assert "asked 12/s · answered –" in summary_line(shown)
    assert "ada: Who is in room 4?  →  Bob and Cleo.  0.4 s" in text
    assert "room 3" in text
    assert "room 2" not in text


@pytest.mark.parametrize("size", [(80, 24), (80, 30), (120, 40)])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_the_view_of_the_demo_fits_the_screen_and_never_jumps(size: tuple[int, int], count: int) -> None:
    users = [Person("ada", "lobby", True, 0.0)]
    lags = [GroupLag(QUESTIONS_TOPIC, AGENT_GROUP, 11, 2)]
    shown = replace(picture(topics=3, size=size), users=users, exchanges=exchanges(count), lags=lags)
    lines = draw(shown).rstrip("\n").splitlines()
    assert len(lines) <= size[1]
    assert "tidegate pipeline list" in lines[-1]
    full = draw(replace(shown, exchanges=exchanges(8))).rstrip("\n").splitlines()
    assert len(full) == len(lines)


def test_a_long_answer_is_cut_and_takes_one_line() -> None:
    long = [Exchange("ada", "Who?", "Bob, " * 100, 0.4)]
    line = line_with(draw(replace(picture(size=(80, 40)), exchanges=long)), "ada: Who?")
    assert len(line.rstrip()) <= 80
