"""The loop of `tidegate topic consume`: pages of messages, with or without a group, over server restarts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from tidegate.cli.commands.topic.arguments import option_errors, parse_start
from tidegate.cli.invocation import Invocation
from tidegate.cli.output.format import plural
from tidegate.cli.supervision.child import DeferredInterrupt
from tidegate.errors import LeaseLost, NotReady, ServerNotRunning, TidegateError

if TYPE_CHECKING:
    from tidegate.sdk.client import Client, TopicClient

PAGE_MESSAGES = 1000  # messages of one request
FOLLOW_WAIT_MS = 5000  # how long the server holds a request that finds nothing; Ctrl-C ends it at once
# In a group fewer: what is fetched and not printed yet is leased, and no other member gets it meanwhile.
GROUP_PAGE_MESSAGES = 100
# In a group Ctrl-C waits for the current answer, so that nothing is fetched and never released.
GROUP_WAIT_MS = 1000
# Between two requests to a server that is away; Ctrl-C waits for no longer than this.
AWAY_SECONDS = 0.25

Page = Sequence[Mapping[str, Any]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """The options of consume without those of a group."""

    topic: str
    start: str
    partition: int | None
    limit: int | None
    wait_ms: int
    follow: bool

    def request(self) -> dict[str, Any]:
        """Return the parameters of the first request."""
        request: dict[str, Any] = {"start": parse_start(self.start)}
        if self.partition is not None:
            request["partition"] = self.partition
        return request


@dataclass(frozen=True, slots=True)
class Membership:
    """The member that fetches a group's messages, and whether it acknowledges what was printed."""

    group: str
    member: str | None
    lease_ms: int | None
    ack: bool


class RetryLoop:
    """Sends requests; with `follow` it waits for a server that goes away, else that is an error."""

    def __init__(self, call: Invocation, *, follow: bool, stop: DeferredInterrupt | None = None) -> None:
        self._call = call
        self._stop = stop
        self._waits = follow
        # A server that never answered is most likely the wrong one, and that is reported at once.
        self._answered = False

    @property
    def is_stopped(self) -> bool:
        """True if Ctrl-C was pressed: no more requests are sent."""
        return self._stop is not None and self._stop.is_set

    def run(self, request: Callable[[], T]) -> T:
        """Return the answer to a request, if need be after the server is back."""
        away = False
        while True:
            try:
                answer = request()
            except (NotReady, ServerNotRunning) as lost:
                if not self._waits or not self._answered or self.is_stopped:
                    raise
                if not away:
                    sentence = f"The server is away ({lost.message.rstrip('.')}). Waiting for it."
                    self.notify(sentence, {"event": "the server is away"})
                away = True
                time.sleep(AWAY_SECONDS)
                continue
            except TidegateError:
                self._notify_back(away)  # it refuses, so it is there
                raise
            self._notify_back(away)
            self._answered = True
            return answer

    def _notify_back(self, away: bool) -> None:
        if away:
            self.notify("The server is back.", {"event": "the server is back"})

    def notify(self, sentence: str, wire: Mapping[str, Any]) -> None:
        """Print an event on stderr: a sentence for people, a line of JSON for machines."""
        text = json.dumps(wire, ensure_ascii=False, default=str) if self._call.as_json else sentence
        typer.echo(text, err=True)


def pages(client: Client, options: ConsumeOptions, loop: RetryLoop) -> Iterator[Page]:
    """Yield messages from an offset on; an empty page while there is nothing and more is waited for."""
    request = options.request()

    def advance(answer: Mapping[str, Any]) -> None:
        request["start"] = {"offsets": answer["nextOffsets"]}

    yield from _pages(client, options, loop, request, (PAGE_MESSAGES, FOLLOW_WAIT_MS), advance)


def group_pages(
    call: Invocation, client: Client, options: ConsumeOptions, membership: Membership, loop: RetryLoop
) -> Iterator[Page]:
    """Yield messages that the group leases, each page after the one before is settled.

    Without --ack it is one page: at the next request leases may have expired, and the same messages would be
    redelivered until they are dead letters.
    """
    member = {"group": membership.group, "member": membership.member, "lease_ms": membership.lease_ms}
    size = (GROUP_PAGE_MESSAGES if membership.ack else PAGE_MESSAGES, GROUP_WAIT_MS)

    def report(answer: Mapping[str, Any]) -> None:
        _report_missed(call, answer.get("missed") or {})

    with option_errors("leaseMs", "--lease"):
        for page in _pages(client, options, loop, {**options.request(), **member}, size, report):
            yield page
            if page and not membership.ack:
                return


def _pages(
    client: Client,
    options: ConsumeOptions,
    loop: RetryLoop,
    request: Mapping[str, Any],
    size: tuple[int, int],
    on_answer: Callable[[Mapping[str, Any]], None],
) -> Iterator[Page]:
    """Yield pages until the limit, the wait or Ctrl-C; `size` is messages and milliseconds of one request."""
    topic = client.topic(options.topic)
    left, waited_ms = options.limit, 0
    while not loop.is_stopped and (left is None or left > 0):
        limit = size[0] if left is None else min(size[0], left)
        step_ms = size[1] if options.follow else min(size[1], options.wait_ms - waited_ms)
        answer = loop.run(partial(topic.consume, **request, limit=limit, wait_ms=step_ms))
        on_answer(answer)
        messages = answer["messages"]
        waited_ms = options.wait_ms if messages else waited_ms + step_ms
        if not messages and not options.follow and waited_ms >= options.wait_ms:
            return
        yield messages
        left = None if left is None else left - len(messages)


def settle(
    client: Client, options: ConsumeOptions, membership: Membership, leases: Sequence[str], loop: RetryLoop
) -> None:
    """Acknowledge what was printed."""
    topic = client.topic(options.topic)
    try:
        loop.run(lambda: topic.ack(membership.group, leases=leases, member=membership.member))
    except LeaseLost as lost:
        if not options.follow:
            raise
        loop.notify(f"{lost.message} {lost.hint}", lost.to_wire())


def release(topic: TopicClient, membership: Membership, leases: Sequence[str]) -> None:
    """Release messages that were not begun; they count as not delivered."""
    try:
        topic.nack(membership.group, leases, release=True, member=membership.member)
    except LeaseLost:
        pass  # they expired, which releases the messages as well


def _report_missed(call: Invocation, missed: Mapping[str, int]) -> None:
    """Print on stderr how many messages retention removed before the group got them."""
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
