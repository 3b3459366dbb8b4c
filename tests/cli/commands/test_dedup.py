"""`tidegate dedup`: estimates for a load, and what a checkpoint holds."""

from __future__ import annotations

import datetime as dt
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.checkpoints import Job
from tests.cli.calls import tidegate_here
from tests.dedup.counted_batches import OPERATOR, NotedJob, notes, segment, two_partitions
from tests.paths import ROOT
from tidegate.checkpoint.commit_record import RunFacts
from tidegate.dedup.deduplicator import Deduplicator
from tidegate.storage.home.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Return a home in which the pipeline `orders` has deduplicated two batches in two partitions."""
    opened = Home.open(tmp_path / "home", lambda: "token")
    two_partitions(NotedJob(opened.checkpoints_path / "orders", tmp_path / "local"))
    return opened


def answer(home: Path, *words: str) -> Any:
    said = tidegate_here("dedup", *words, "--json", home=home)
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def refused(home: Path, *words: str) -> str:
    said = tidegate_here("dedup", *words, home=home)
    assert said.returncode in (1, 2), said.stdout
    assert not said.stdout
    return said.stderr


def test_the_defaults_are_the_load_of_the_plan(tmp_path: Path) -> None:
    """Case 24: no flags and the flags with their defaults give the same: 439, 878 and 878 GiB."""
    found = answer(tmp_path, "estimate")
    flags = ["--rate", "1000", "--retention", "100 days", "--key-bytes", "64", "--interval", "50 days"]
    plain = ["--value-bytes", "8", "--metadata-bytes", "12", "--overhead", "1.3"]
    assert answer(tmp_path, "estimate", *flags, *plain, "--changelog-overhead", "1.3") == found
    store = found["windowStore"]
    assert (store["segmentGib"], store["storeGib"], store["changelogGib"]) == (439, 878, 878)
    assert (store["totalGib"], store["liveGib"]) == (1_756, 1_317)
    assert found["segmentsLive"] == 3
    assert found["tidegate"]["liveKeys"] == round(12_960_000_000 * 0.99999)


def test_an_estimate_for_people_has_both_layouts_and_the_notes(tmp_path: Path) -> None:
    """Case 24: the seed's figures stand beside ours, with what differs."""
    text = tidegate_here("dedup", "estimate", home=tmp_path).stdout
    for part in ("439 GiB", "878 GiB", "1,317 GiB", "109.2 B", "memory for filters", "471 GB", "316 GB"):
        assert part in text, part


def test_numbers_may_be_written_as_people_write_them(tmp_path: Path) -> None:
    for text in ("1,000", "1e3", "1000.0", "1_000", "+1E+3"):
        assert answer(tmp_path, "estimate", "--rate", text)["load"]["rate"] == 1_000


def test_a_small_load_has_units_that_fit(tmp_path: Path) -> None:
    text = tidegate_here("dedup", "estimate", "--rate", "0.1", "--retention", "3 days", home=tmp_path).stdout
    assert " 0 GiB" not in text
    assert "are the same segment" not in text
    # 12,960 messages in half of the retention, 109.2 bytes each; and twice that.
    assert re.search(r"a segment +1 MiB +1 MiB", text)
    assert re.search(r"all segments +2 MiB +4 MiB", text)


def test_an_estimate_needs_no_home_and_makes_none(tmp_path: Path) -> None:
    answer(tmp_path / "nowhere", "estimate", "--rate", "0.5", "--retention", "PT1H")
    assert not (tmp_path / "nowhere").exists()


def test_flags_change_what_they_say(tmp_path: Path) -> None:
    usual = answer(tmp_path, "estimate")["tidegate"]
    exact = answer(tmp_path, "estimate", "--exact-keys", "--offsets", "--standbys", "2")["tidegate"]
    assert exact["entryBytes"] > 2 * usual["entryBytes"]
    assert exact["diskBytes"] > 6 * usual["diskBytes"]
    assert answer(tmp_path, "estimate", "--duplicate-rate", "50%")["tidegate"]["liveKeys"] == 6_480_000_000
    assert answer(tmp_path, "estimate", "--duplicate-rate", "0.5")["tidegate"]["liveKeys"] == 6_480_000_000
    assert answer(tmp_path, "estimate", "--partitions", "16")["tidegate"]["partitions"] == 16


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rate", "0"), "more than 0"),
        (("--rate", "-1"), "more than 0"),
        (("--rate", "many"), "takes a number such as 1000"),
        (("--rate", "nan"), "takes a number such as 1000"),
        (("--rate", "1e999999999"), "takes a number such as 1000"),
        (("--rate", "1,00"), "takes a number such as 1000"),
        (("--rate", ""), "takes a number such as 1000"),
        (("--rate", "9" * 5_000), "takes a number such as 1000"),
        (("--retention", "100"), "it has no unit"),
        (("--retention", "5 parsecs"), "is not a unit of time"),
        (("--retention", "3 months"), "have no fixed length"),
        (("--retention", "0 s"), "It must be from 1 ms"),
        (("--retention", "900000 days"), "to 36525 days"),
        (("--interval", "1 min"), "512 is the most"),
        (("--key-bytes", "x"), "--key-bytes"),
        (("--duplicate-rate", "100%"), "less than 1"),
        (("--duplicate-rate", "%"), "takes a number"),
        (("--overhead", "1/0"), "takes a number"),
        (("--partitions", "0"), "at least 1"),
    ],
)
def test_wrong_input_is_refused_with_words(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    """Case 24: zero, negative, absurd, no number, no unit."""
    assert said in " ".join(refused(tmp_path, "estimate", *words).split())


def test_show_adds_partitions_up_by_name_and_by_path(home: Home) -> None:
    by_name = answer(home.path, "show", "orders")["operators"]
    (line,) = by_name
    assert (line["name"], line["partitions"], line["batch"], line["keys"]) == (OPERATOR, 2, 1, 2_640)
    assert (line["unique"], line["duplicates"], line["duplicateRate"]) == (3_920, 80, 0.02)
    assert (line["streamTime"], line["retention"]) == ("1970-05-01T00:00:00Z", "100 days")
    assert line["streamLagSeconds"] > 1e9
    first, _, last = line["segments"]
    assert (first["start"], first["expiresAt"]) == ("1970-01-01T00:00:00Z", "1970-05-31T00:00:00Z")
    assert (first["live"], first["active"], last["active"]) == (True, False, True)
    assert first["filterFalseRate"] == pytest.approx(30 / 1_930, abs=1e-6)
    path = str(home.checkpoints_path / "orders")
    (by_path,) = answer(home.path, "show", path, "--operator", OPERATOR)["operators"]
    assert by_path["segments"] == line["segments"]


def test_show_for_people_says_when_segments_go(home: Home) -> None:
    text = tidegate_here("dedup", "show", "orders", home=home.path).stdout
    for part in ("3,920 unique", "80 duplicate (2 %)", "2,640 keys", "1970-05-31 00:00:00", "active"):
        assert part in text, part


def test_what_a_consumer_stored_is_shown_without_spark(tmp_path: Path) -> None:
    """The heads of a real deduplication: two days of keys, of which some come twice."""
    folder = tmp_path / "seen"
    with Deduplicator("orders", folder, "100 days") as seen:
        for day in (1, 2):
            keys = [f"{day}-{number}" for number in range(100)] + ["1-0", "1-1"]
            seen.check(keys, [dt.datetime(2026, 1, day, tzinfo=dt.UTC)] * len(keys))
    (line,) = answer(tmp_path, "show", str(folder))["operators"]
    assert (line["unique"], line["duplicates"], line["late"], line["keys"]) == (200, 4, 0, 200)
    assert (line["streamTime"], line["addedKeys"]) == ("2026-01-02T00:00:00Z", 100)
    (one,) = line["segments"]
    assert (one["oldest"], one["active"]) == ("2026-01-01T00:00:00Z", True)
    assert (one["start"], one["end"]) == ("2025-12-28T00:00:00Z", "2026-02-16T00:00:00Z")
    assert one["bytes"] > 0
    assert one["filterBytes"] > 0
    text = tidegate_here("dedup", "show", str(folder), home=tmp_path).stdout
    assert "after batch 1, which added 100 keys" in text


def test_a_time_that_no_calendar_has_is_shown_as_none(home: Home, tmp_path: Path) -> None:
    job = NotedJob(home.checkpoints_path / "far", tmp_path / "local")
    far = segment(10**9, 1)
    job.batch(0, [RunFacts(newest_event_us=2**62, notes=notes(far))])
    (line,) = answer(home.path, "show", "far")["operators"]
    assert (line["streamTime"], line["segments"][0]["start"]) == (None, None)
    assert "no calendar has it" in tidegate_here("dedup", "show", "far", home=home.path).stdout


def test_what_does_not_deduplicate_is_named(home: Home) -> None:
    Job(home.checkpoints_path, checkpoint="words").run(0, ["tide"], parallelism=1)
    assert "There is no state" in refused(home.path, "show", "nothing")
    assert "`tidegate state show` has counts" in refused(home.path, "show", "words")
    Job(home.checkpoints_path, checkpoint="orders").run(0, ["tide"], parallelism=1)
    said = refused(home.path, "show", "orders", "--operator", "counts")
    assert "deduplicates there; orders does" in said


def test_why_there_is_no_state_is_said(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without a slash, one that is no checkpoint, and pipelines that have stored nothing."""
    (home.checkpoints_path / "plain").mkdir()
    (home.pipelines_path / "young.py").write_text("")
    (tmp_path / "check.point").mkdir()
    monkeypatch.chdir(tmp_path)
    for words, said in [
        ("check.point", "A path needs a '/': ./check.point"),
        ("local", "A path needs a '/': ./local"),
        ("./check.point", "no folder `state/` in"),
        ("./nowhere", f"There is no folder {tmp_path / 'nowhere'}"),
        ("plain", "Pipeline plain keeps no state"),
        ("young", "Pipeline young has not done a batch yet"),
    ]:
        assert said in " ".join(refused(home.path, "show", words).split()), words
    assert "A path needs a '/'" in refused(tmp_path / "no-home", "show", "local")


def test_the_page_on_sizing_shows_what_the_command_says(tmp_path: Path) -> None:
    """Case 24: every command of the page is followed by its answer, to the last figure."""
    page = (ROOT / "docs/operate/sizing.md").read_text("utf-8")
    shown = re.findall(r"```bash\ntidegate ([^\n]+)\n```\n\n```text\n(.+?)\n```", page, re.DOTALL)
    assert len(shown) == 2
    for line, text in shown:
        said = tidegate_here(*shlex.split(line), home=tmp_path).stdout
        assert [one.rstrip() for one in said.rstrip().splitlines()] == text.splitlines()
