"""Pages of messages: takes what consume was asked for, gives pages, waits for a server that is away."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from tidegate.cli.commands.topic.arguments import parse_start, worded
from tidegate.cli.invocation import Invocation
from tidegate.cli.output.format import plural
from tidegate.cli.supervision.child import HeldInterrupts
from tidegate.errors import LeaseLost, NotReady, ServerNotRunning, TidegateError

if TYPE_CHECKING:
    from tidegate.sdk.client import Client, TopicClient

PAGE_MESSAGES = 1000  # messages asked for at a time
FOLLOW_WAIT_MS = 5000  # how long the server holds a question that finds nothing; Ctrl-C ends it at once
# In a group fewer: what is taken and not printed yet is held, and nobody else gets it meanwhile.
GROUP_PAGE_MESSAGES = 100
# In a group Ctrl-C waits for the answer under way, so that nothing is taken that nobody gives back.
GROUP_WAIT_MS = 1000
# Between two questions to a server that is away; whoever presses Ctrl-C waits for no longer than this.
AWAY_SECONDS = 0.25

Page = Sequence[Mapping[str, Any]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reading:
    """What consume was asked for."""

    topic: str
    start: str
    partition: int | None
    limit: int | None
    wait_ms: int
    follow: bool

    def question(self) -> dict[str, Any]:
        """Return what the server is asked for each page."""
        question: dict[str, Any] = {"start": parse_start(self.start)}
        if self.partition is not None:
            question["partition"] = self.partition
        return question


@dataclass(frozen=True, slots=True)
class Membership:
    """As whom a group's messages are taken, and whether what was printed counts as done."""

    group: str
    member: str | None
    lease_ms: int | None
    ack: bool


class Patience:
    """Asks a server that may go away meanwhile: who follows waits for it, everyone else is told."""

    def __init__(self, call: Invocation, *, follow: bool, stop: HeldInterrupts | None = None) -> None:
        self._call = call
        self._stop = stop
        self._waits = follow
        # A server that never answered is most likely the wrong one, and that is said at once.
        self._answered = False

    @property
    def is_over(self) -> bool:
        """Whether Ctrl-C was pressed, and nothing more is to be asked."""
        return self._stop is not None and self._stop.asked

    def ask(self, question: Callable[[], T]) -> T:
        """Return the answer to a question, also where the server has to come back first."""
        away = False
        while True:
            try:
                answer = question()
            except (NotReady, ServerNotRunning) as lost:
                if not self._waits or not self._answered or self.is_over:
                    raise
                if not away:
                    sentence = f"The server is away ({lost.message.rstrip('.')}). Waiting for it."
                    self.tell(sentence, {"event": "the server is away"})
                away = True
                time.sleep(AWAY_SECONDS)
                continue
            except TidegateError:
                self._tell_back(away)  # it refuses, so it is there
                raise
            self._tell_back(away)
            self._answered = True
            return answer

    def _tell_back(self, away: bool) -> None:
        if away:
            self.tell("The server is back.", {"event": "the server is back"})

    def tell(self, sentence: str, wire: Mapping[str, Any]) -> None:
        """Say on stderr what happened meanwhile: a sentence to people, a line of JSON to machines."""
        said = json.dumps(wire, ensure_ascii=False, default=str) if self._call.as_json else sentence
        typer.echo(said, err=True)


def pages(client: Client, reading: Reading, patience: Patience) -> Iterator[Page]:
    """Yield messages from a place on; an empty page while there is nothing and more is waited for."""
    question = reading.question()
    topic = client.topic(reading.topic)
    left = reading.limit
    waited_ms = 0
    while left is None or left > 0:
        page = PAGE_MESSAGES if left is None else min(PAGE_MESSAGES, left)
        step_ms = FOLLOW_WAIT_MS if reading.follow else min(FOLLOW_WAIT_MS, reading.wait_ms - waited_ms)
        asked = {**question, "limit": page, "wait_ms": step_ms}
        answer = patience.ask(partial(topic.consume, **asked))
        messages = answer["messages"]
        waited_ms = reading.wait_ms if messages else waited_ms + step_ms
        if not messages and not reading.follow and waited_ms >= reading.wait_ms:
            return
        yield messages
        left = None if left is None else left - len(messages)
        question["start"] = {"offsets": answer["nextOffsets"]}


def taken_pages(
    call: Invocation, client: Client, reading: Reading, membership: Membership, patience: Patience
) -> Iterator[Page]:
    """Yield messages that the group gives, each page after the one before is settled.

    Without --ack it is one page: by the next question leases may be over, and the same messages would come
    again and again until they are dead letters.
    """
    who = {"group": membership.group, "member": membership.member, "lease_ms": membership.lease_ms}
    question = {**reading.question(), **who}
    topic = client.topic(reading.topic)
    most = GROUP_PAGE_MESSAGES if membership.ack else PAGE_MESSAGES
    left = reading.limit
    waited_ms = 0
    while not patience.is_over and (left is None or left > 0):
        page = most if left is None else min(most, left)
        step_ms = GROUP_WAIT_MS if reading.follow else min(GROUP_WAIT_MS, reading.wait_ms - waited_ms)
        asked = {**question, "limit": page, "wait_ms": step_ms}
        with worded("leaseMs", "--lease"):
            answer = patience.ask(partial(topic.consume, **asked))
        messages = answer["messages"]
        _tell_missed(call, answer.get("missed") or {})
        waited_ms = reading.wait_ms if messages else waited_ms + step_ms
        if not messages and not reading.follow and waited_ms >= reading.wait_ms:
            return
        yield messages
        if messages and not membership.ack:
            return
        left = None if left is None else left - len(messages)


def settle(
    client: Client, reading: Reading, membership: Membership, leases: Sequence[str], patience: Patience
) -> None:
    """Acknowledge what was printed."""
    topic = client.topic(reading.topic)
    try:
        patience.ask(lambda: topic.ack(membership.group, leases=leases, member=membership.member))
    except LeaseLost as lost:
        if not reading.follow:
            raise
        patience.tell(f"{lost.message} {lost.hint}", lost.to_wire())


def give_back(topic: TopicClient, membership: Membership, leases: Sequence[str]) -> None:
    """Give back what was not begun; it counts as not delivered."""
    try:
        topic.nack(membership.group, leases, release=True, member=membership.member)
    except LeaseLost:
        pass  # their time is over, which gives them back as well


def _tell_missed(call: Invocation, missed: Mapping[str, int]) -> None:
    """Say on stderr what the group can no longer get."""
    if not any(missed.values()):
        return
    if call.as_json:
        typer.echo(json.dumps({"missed": dict(missed)}), err=True)
        return
    for partition, count in missed.items():
        typer.echo(
            f"Missed {plural(count, 'message')} of partition {partition}: removed before the group had them.",
            err=True,
        )
