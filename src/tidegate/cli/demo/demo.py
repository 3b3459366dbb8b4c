"""The writer of the demo: readings of meters, presence, clicks, and questions for an agent."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.demo.clicks import USER_NAMES, ClickSource
from tidegate.cli.demo.feeds import (
    ANSWERS_TOPIC,
    CLICKS_TOPIC,
    DEMO_TOPIC,
    PRESENCE_DEFINITION,
    QUESTIONS_DEFINITION,
    QUESTIONS_ROUTE,
    QUESTIONS_TOPIC,
    RETENTION_SECONDS,
    SESSIONS_TOPIC,
)
from tidegate.cli.invocation import Invocation, command
from tidegate.cli.supervision.child import StopWithParentOption, stop_with_parent
from tidegate.errors import RouteExists, TopicExists, Unavailable

if TYPE_CHECKING:
    from tidegate.sdk.client import Client
    from tidegate.storage.home.home import Home

DEMO_PARTITIONS = 2
DEMO_FILES = tuple(
    Path(__file__).with_name(name) for name in ("readings_pipeline.py", "sessions_pipeline.py")
)
METER_COUNT = 40
READINGS_PER_SECOND = 200
REQUESTS_PER_SECOND = 10
LATE_SHARE = 0.02  # of the readings are late, as from a meter that was offline
LATE_SECONDS_MAX = 600.0
SEED_DEFAULT = 7
ROOMS = ("lobby", "help", "grid")
LEAVE_SHARE = 0.05  # of the updates of one person
TYPING_SHARE = 0.4
PRESENCE_INSERT = "INSERT INTO demo.presence (who, room, typing) VALUES (?, ?, ?)"
QUESTION_INSERT = "INSERT INTO demo.questions (who, text) VALUES (?, ?)"
QUESTION_SHARE = 0.08  # of the steps of a tenth of a second bring a question
BURST_SHARE = 0.004  # of the steps bring many at once: the lag of the agent rises and falls
BURST_QUESTIONS = 12
QUESTIONS = ("Who is in {room}?", "How many are in {room}?", "Who types in {room}?")
RETRY_SECONDS = 0.5
US = 1_000_000


def register(app: typer.Typer) -> None:
    """Add the hidden command of the source to the root."""
    command(app, "demo-source", hidden=True)(demo_source)


def demo_source(
    call: Invocation,
    seed: Annotated[int, typer.Option(help="The same seed gives the same readings.")] = SEED_DEFAULT,
    rate: Annotated[int, typer.Option(min=1, max=100_000, help="Readings per second.")] = READINGS_PER_SECOND,
    with_parent: StopWithParentOption = False,
) -> None:
    """Publish meter readings, presence, clicks and questions, until Ctrl-C or SIGTERM."""
    if with_parent:
        stop_with_parent(1.0)
    batches = _paced_batches(meter_readings(seed, rate, time.time_ns() // 1000), rate)
    presence_rows, question_rows = presences(seed), questions(seed)
    clicked = ClickSource(seed, time.time_ns() // 1000)
    unsent: list[dict[str, Any]] = []
    while True:
        try:
            with call.client() as client:
                while True:
                    unsent = unsent or next(batches)
                    client.topic(DEMO_TOPIC).publish(unsent)
                    unsent = []
                    for row in next(presence_rows):
                        client.sql(PRESENCE_INSERT, row)
                    rows = next(question_rows)
                    if rows:
                        client.sql(QUESTION_INSERT, rows)
                    messages = clicked.step(time.time_ns() // 1000)
                    if messages:
                        client.topic(CLICKS_TOPIC).publish(messages)
        except Unavailable as error:
            typer.echo(f"waiting for the server: {error.message}", err=True)
            time.sleep(RETRY_SECONDS)


def prepare_demo(client: Client, home: Home) -> None:
    """Create the demo's topics, tables and route and install its pipelines, unless they are there."""
    from tidegate.cli.installed_pipelines import install_pipeline

    for topic, retention_seconds in (
        (DEMO_TOPIC, None),
        (QUESTIONS_TOPIC, RETENTION_SECONDS),
        (ANSWERS_TOPIC, RETENTION_SECONDS),
        (CLICKS_TOPIC, RETENTION_SECONDS),
        (SESSIONS_TOPIC, RETENTION_SECONDS),
    ):
        try:
            client.topics.create(topic, partitions=DEMO_PARTITIONS, retention_seconds=retention_seconds)
        except TopicExists:
            pass  # of an earlier run, which this one continues
    client.sql(f"CREATE NAMESPACE IF NOT EXISTS demo; {PRESENCE_DEFINITION}; {QUESTIONS_DEFINITION}")
    try:
        client.sql(QUESTIONS_ROUTE)
    except RouteExists:
        pass  # of an earlier run
    for file in DEMO_FILES:
        install_pipeline(home, file)


def meter_readings(seed: int, rate: int, start_us: int) -> Iterator[dict[str, Any]]:
    """Yield readings endlessly, the same for the same arguments; some are late by up to ten minutes."""
    from tidegate.model.times import format_time

    chance = random.Random(seed)
    phases = [chance.uniform(0, math.tau) for _ in range(METER_COUNT)]
    number = 0
    while True:
        at_us = start_us + number * US // rate
        meter = chance.randrange(METER_COUNT)
        late = chance.random() < LATE_SHARE
        if late:
            at_us -= int(chance.uniform(0, LATE_SECONDS_MAX) * US)
        turn = math.sin(at_us / US * math.tau / 60 + phases[meter])
        yield {
            "entity": f"meter-{meter:02d}",
            "measured_at": format_time(at_us),
            "voltage": round(230 + 4 * turn + chance.gauss(0, 0.5), 2),
            "current": round(max(0.0, 8 + 5 * turn + chance.gauss(0, 0.3)), 3),
            "late": late,
        }
        number += 1


def presences(seed: int) -> Iterator[list[list[Any]]]:
    """Yield rows of `demo.presence`, a few now and then: people come, change rooms, type and leave."""
    chance = random.Random(seed)
    rooms = {name: chance.choice(ROOMS) for name in USER_NAMES[::2]}
    while True:
        rows: list[list[Any]] = []
        for name in USER_NAMES:
            if chance.random() < 1 / REQUESTS_PER_SECOND / 3:  # about every third second
                if name in rooms and chance.random() < LEAVE_SHARE:
                    del rooms[name]
                elif name in rooms or chance.random() < LEAVE_SHARE:
                    rooms.setdefault(name, chance.choice(ROOMS))
                if name in rooms:
                    rows.append([name, rooms[name], chance.random() < TYPING_SHARE])
        yield rows


def questions(seed: int) -> Iterator[list[list[Any]]]:
    """Yield rows of `demo.questions`, one now and then, and sometimes many: the same for the same seed."""
    chance = random.Random(seed)
    while True:
        share = chance.random()
        count = BURST_QUESTIONS if share < BURST_SHARE else int(share < BURST_SHARE + QUESTION_SHARE)
        yield [
            [chance.choice(USER_NAMES), chance.choice(QUESTIONS).format(room=chance.choice(ROOMS))]
            for _ in range(count)
        ]


def _paced_batches(source: Iterator[dict[str, Any]], rate: int) -> Iterator[list[dict[str, Any]]]:
    per_request = max(1, rate // REQUESTS_PER_SECOND)
    due = time.monotonic()
    while True:
        readings = [next(source) for _ in range(per_request)]
        yield [{"key": reading["entity"], "payload": reading} for reading in readings]
        due = max(
            due + per_request / rate, time.monotonic() - 1.0
        )  # after a pause it does not race to catch up
        time.sleep(max(0.0, due - time.monotonic()))
