"""The demo's stream: who is there, who types, and the live panel of the console view."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

from rich.console import Console

import tidegate
from tests.cli.pictures import picture
from tidegate.cli.console.view import render
from tidegate.cli.demo.clicks import USER_NAMES
from tidegate.cli.demo.demo import PRESENCE_INSERT, presences
from tidegate.cli.demo.feeds import (
    PRESENCE_DEFINITION,
    PRESENCE_TTL_SECONDS,
    Person,
    PresenceFeed,
    PresenceTable,
)
from tidegate.sdk.live import RowChange
from tidegate.testing.clock import ManualClock
from tidegate.testing.server import running_server

WAIT_SECONDS = 60.0


def test_the_same_seed_gives_the_same_people_and_some_of_them_type() -> None:
    first = list(islice(presences(7), 600))
    assert first == list(islice(presences(7), 600))
    rows = [row for step in first for row in step]
    assert {row[0] for row in rows} == set(USER_NAMES)
    assert 0 < sum(row[2] for row in rows) < len(rows)


def test_someone_who_is_not_heard_of_is_gone() -> None:
    table = PresenceTable()
    row = {"who": "ada", "room": "lobby", "typing": True}
    table.apply(RowChange("snapshot", row), 100.0)
    table.apply(RowChange("insert", {**row, "who": "bob", "typing": False}), 105.0)
    assert [person.who for person in table.here(106.0)] == ["ada", "bob"]
    assert [person.who for person in table.here(100.5 + PRESENCE_TTL_SECONDS)] == ["bob"]
    table.apply(RowChange("delete", {**row, "who": "bob"}), 107.0)
    assert [person.who for person in table.here(107.0)] == ["ada"]
    table.apply(RowChange("lagged"), 108.0)
    assert table.here(108.0) == []


def test_the_view_shows_who_types() -> None:
    users = [Person("ada", "lobby", True, 1.0), Person("bob", "help", False, 1.0)]
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(render(replace(picture(), users=users)))
    text = console.export_text()
    assert "ada@lobby types…" in text
    assert "bob@help" in text


def test_the_panel_follows_the_stream(tmp_path: Path) -> None:
    with (
        running_server(tmp_path / "home") as server,
        tidegate.connect(server.url, token=server.token) as client,
    ):
        # By its clock nobody stays away for long.
        feed = PresenceFeed(lambda: tidegate.connect(server.url, token=server.token), ManualClock())
        feed.start()  # the table is not there yet: it waits for it
        client.sql(f"CREATE NAMESPACE demo; {PRESENCE_DEFINITION}")
        for room in ("lobby", "help"):
            deadline = time.monotonic() + WAIT_SECONDS
            while [person.room for person in feed.here()] != [room]:
                assert time.monotonic() < deadline
                client.sql(PRESENCE_INSERT, ["ada", room, True])  # rows from before it follows may expire
                time.sleep(0.05)
        feed.stop()
