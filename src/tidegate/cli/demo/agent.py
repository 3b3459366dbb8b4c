"""The agent of the demo: a consumer group that answers questions from a table.

It may be killed at any moment: what it had not acknowledged is redelivered, and an answer is published once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from tidegate.cli.demo.demo import RETRY_SECONDS, ROOMS
from tidegate.cli.demo.feeds import AGENT_GROUP, ANSWERS_TOPIC, QUESTIONS_TOPIC
from tidegate.cli.invocation import Invocation, command
from tidegate.cli.supervision.child import StopWithParentOption, stop_with_parent
from tidegate.errors import Unavailable

if TYPE_CHECKING:
    from tidegate.sdk.client import Client

GRACE_SECONDS = 5.0  # an answer that is under way when the parent dies takes less
WORKERS = 2
# As a model would.
THINKING_SECONDS_MIN = 0.1
THINKING_SECONDS_MAX = 0.9
PRESENT_SQL = "SELECT DISTINCT who FROM demo.presence WHERE room = ? ORDER BY who"
TYPING_SQL = "SELECT DISTINCT who FROM demo.presence WHERE room = ? AND typing ORDER BY who"


def register(app: typer.Typer) -> None:
    """Add the hidden command of the agent to the root."""
    command(app, "demo-agent", hidden=True)(demo_agent)


def demo_agent(call: Invocation, with_parent: StopWithParentOption = False) -> None:
    """Answer the questions of the demo until Ctrl-C or SIGTERM."""
    import tidegate

    if with_parent:
        stop_with_parent(GRACE_SECONDS)
    while True:
        try:
            # With the retries of the client, unlike a command that a person waits for: a server that is
            # restarted fails no question.
            with tidegate.connect(home=call.home_path) as client:
                agent = client.topic(QUESTIONS_TOPIC).agent(
                    group=AGENT_GROUP, answers=ANSWERS_TOPIC, workers=WORKERS
                )
                agent.run(lambda message: reply(client, message))
                return
        except Unavailable as error:
            typer.echo(f"waiting for the server: {error.message}", err=True)
            time.sleep(RETRY_SECONDS)


def reply(client: Client, message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message that answers a question, keyed by the person who asked."""
    from tidegate.model.times import parse_time

    question = message["payload"]
    time.sleep(random.uniform(THINKING_SECONDS_MIN, THINKING_SECONDS_MAX))
    answer = answer_to(client, question["text"])
    waited_seconds = (time.time_ns() // 1000 - parse_time(message["ts"])) / 1_000_000
    payload = {
        "who": question["who"],
        "question": question["text"],
        "answer": answer,
        "seconds": round(max(0.0, waited_seconds), 3),
    }
    return {"key": question["who"], "payload": payload}


def answer_to(client: Client, question: str) -> str:
    """Return the answer to a question, from the table of presence."""
    room = next((room for room in ROOMS if room in question), None)
    if room is None:
        return "That I do not know."
    types = "types" in question
    names = [str(row[0]) for row in client.sql(TYPING_SQL if types else PRESENT_SQL, [room]).rows]
    if question.startswith("How many"):
        return f"{len(names)} in {room}."
    if not names:
        return f"Nobody {'types' if types else 'is'} in {room}."
    return f"{_listed(names)}."


def _listed(names: list[str]) -> str:
    shown = [name.capitalize() for name in names]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
