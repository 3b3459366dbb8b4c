"""Lists on a terminal of 80 columns: ids and names are whole, so that they can be copied."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from tidegate.cli.commands.audit import details_text, events_table
from tidegate.cli.commands.job import job_page, jobs_table
from tidegate.cli.commands.pipeline import pipeline_table, pipelines_table
from tidegate.cli.commands.status import settings_table
from tidegate.cli.commands.user import tokens_table
from tidegate.cli.output.tables import Listing
from tidegate.settings import Settings, describe_settings

AT = "2026-11-15T12:27:56Z"
TOKEN_ID = "home-0123456789abcdef"
LONG_NAME = "readings_of_the_northern_grid"
LONG_TOPIC = "grid.north.readings.raw"

PIPELINE = {
    "name": LONG_NAME,
    "state": "failed",
    "topic": LONG_TOPIC,
    "table": LONG_NAME,
    "batches": 12_345,
    "rows": 1_234_567,
    "rowsPerSecond": 12_345.0,
    "lag": 1_000_000,
    "lastBatchSeconds": 1.5,
    "error": "no such column: wind\n\nTraceback (most recent call last)",
    "restarts": 2,
}
TOKEN = {
    "id": TOKEN_ID,
    "kind": "session",
    "label": "the laptop of Ann",
    "createdAt": AT,
    "lastUsedAt": AT,
    "expiresAt": AT,
    "endedAt": AT,
}
JOB = {
    "id": "6a5f0c1e9d3b4a7788c0ffee",
    "kind": "backup",
    "subject": "home/0123456789abcdef",
    "state": "running",
    "progress": 0.5,
    "createdBy": "system:backup",
    "createdAt": AT,
    "finishedAt": None,
    "attempts": 1,
    "error": None,
    "result": None,
    "history": [{"at": AT, "state": "queued", "note": ""}],
}
EVENT = {
    "at": AT,
    "user": "grid-gateway",
    "action": "token.create",
    "subject": f"user/grid-gateway/token/{TOKEN_ID}",
    "outcome": "done",
    "details": {"label": "ci", "expires_us": 1_000_000},
}


def drawn(shown: RenderableType, width: int = 80) -> list[str]:
    out = Console(file=io.StringIO(), width=width)
    out.print(shown)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("shown", "names"),
    [
        (pipelines_table([PIPELINE]), [LONG_NAME, LONG_NAME]),
        (pipeline_table(PIPELINE), [LONG_NAME, LONG_TOPIC, "1,234,567"]),
        (tokens_table("ann", [TOKEN, TOKEN]), [TOKEN_ID]),
        (jobs_table([JOB]), [JOB["id"], JOB["subject"]]),
        (job_page(JOB), [JOB["id"], JOB["subject"], JOB["createdBy"]]),
        (events_table([EVENT]), [EVENT["user"], EVENT["action"], EVENT["subject"]]),
        (settings_table(Settings()), [note.key for note in describe_settings()]),
    ],
    ids=["pipelines", "pipeline", "tokens", "jobs", "job", "events", "settings"],
)
@pytest.mark.parametrize("width", [80, 60])
def test_names_are_whole(shown: RenderableType, names: list[str], width: int) -> None:
    lines = drawn(shown, width)
    for name in names:
        assert any(name in line for line in lines), "\n".join(lines)


def test_what_has_no_room_is_named_and_where_there_is_room_nothing_goes() -> None:
    listing = Listing(("name", "figure"), [("a" * 60, "1" * 30)], whole=(0, 1), spare=(1,))
    assert drawn(listing)[-1] == "No room for: figure. --json has all."
    wide = drawn(listing, 200)
    assert any("1" * 30 in line for line in wide)
    assert not any("No room" in line for line in wide)


def test_rows_that_fit_nowhere_are_stacked_and_lose_nothing() -> None:
    lines = drawn(Listing(("id", "subject"), [("a" * 50, "b" * 50)], whole=(0, 1)))
    assert lines == [f"id       {'a' * 50}", f"subject  {'b' * 50}"]


def test_a_list_of_pipelines_tells_the_first_line_of_an_error_and_one_alone_all_of_it() -> None:
    assert "Traceback" not in "\n".join(drawn(pipelines_table([PIPELINE])))
    assert "no such column: wind" in "\n".join(drawn(pipelines_table([PIPELINE])))
    assert "Traceback" in "\n".join(drawn(pipeline_table(PIPELINE)))


def test_a_pipeline_tells_what_its_operators_caught() -> None:
    operator = {"partitions": 2, "batch": 3, "entries": 9, "stateBytes": 1, "checkpointBytes": 1}
    caught = {"unique": 3_920, "duplicates": 81, "late": 7, "keys": 2_640, "segments": 3}
    both = [
        {"name": "once", **operator, "snapshotBatch": None, "dedup": caught},
        {"name": "counts", **operator, "snapshotBatch": None, "dedup": None},
    ]
    lines = drawn(pipeline_table({**PIPELINE, "operators": both}), 120)
    (heading,) = (number for number, line in enumerate(lines) if "unique" in line)
    assert lines[heading].split()[:4] == ["operator", "unique", "duplicate", "late"]
    assert lines[heading + 2].split()[:4] == ["once", "3,920", "81", "7"]
    assert "unique" not in "\n".join(drawn(pipeline_table({**PIPELINE, "operators": both[1:]}), 120))


def test_details_are_words_and_times() -> None:
    assert (
        details_text({"label": "ci", "expires_us": 1_000_000}) == "label: ci; expires: 1970-01-01T00:00:01Z"
    )
    assert details_text({"expires_us": None}) == "expires: never"
    assert details_text({"roles": ["a", "b"], "enabled": True}) == "roles: a, b; enabled: true"


def test_tokens_say_how_exact_their_last_use_is() -> None:
    assert "exact to the hour" in drawn(tokens_table("ann", [TOKEN]))[-1]
