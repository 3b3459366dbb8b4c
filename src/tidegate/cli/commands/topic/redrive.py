"""`tidegate topic redrive`: dead letters of a topic are sent to it again, each once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.commands.topic.arguments import TopicArgument
from tidegate.cli.commands.topic.consume_loop import GROUP_PAGE_MESSAGES, Membership, Page, give_back
from tidegate.cli.hints import DEAD_SUFFIX
from tidegate.cli.invocation import Invocation, command, confirm
from tidegate.cli.output.format import plural
from tidegate.cli.supervision.child import HeldInterrupts
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.sdk.client import Client, TopicClient

GROUP = "redrive"
# Longer than a page takes, also on a slow disk: a letter that comes again is sent once all the same.
LEASE_MS = 120_000
MEMBERSHIP = Membership(GROUP, None, LEASE_MS, ack=True)
OP = "DEAD"
# What the server writes before the reason of a letter whose message was damaged in the log.
UNREAD = "the message could not be read"


def register(app: typer.Typer) -> None:
    """Add the command to `tidegate topic`."""
    command(app, "redrive", tenant=True)(redrive)


def redrive(
    call: Invocation,
    topic: TopicArgument,
    limit: Annotated[int | None, typer.Option(min=1, help="Most letters; else all that are there.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Send dead letters of a topic to it again, those that were not yet; asks first, or needs --yes."""
    dead = f"{topic}{DEAD_SUFFIX}"
    if not yes:
        call.need_someone_to_ask(f"whether letters of {dead} may be sent again: add --yes to send them.")
    with call.client() as client:
        made = str(client.topics.show(topic)["createdAt"])
        # Not more than there are now: one that fails again meanwhile would be sent for ever.
        there = int(client.topics.show(dead)["messages"])
        most = there if limit is None else min(limit, there)
        if not yes:
            confirm(f"Send up to {plural(most, 'letter')} of {dead} to {topic} again?", "Nothing was sent.")
        work = _Redrive(client, topic, made)
        try:
            work.run(most)
        except (KeyboardInterrupt, TidegateError):
            typer.echo(f"Before that, {plural(work.sent, 'letter')} of {dead} went to {topic}.", err=True)
            raise
    sent, left_out = work.sent, work.left_out

    def sentence() -> str:
        if not sent and not left_out:
            return f"Nothing to send: every letter of {dead} was sent again before."
        said = f"Sent {plural(sent, 'letter')} to {topic} again; {dead} keeps them as well."
        return (
            f"{said} Left out: {plural(left_out, 'letter')} without a message to send." if left_out else said
        )

    call.answer({"sent": sent, "leftOut": left_out}, sentence)


@dataclass(slots=True)
class _Redrive:
    """Takes letters as a group, so that each is taken once; `made` is when the topic was made."""

    client: Client
    topic: str
    made: str
    sent: int = 0
    left_out: int = 0

    def run(self, most: int) -> None:
        """Send up to so many letters; counts those that were sent, and those that had nothing to send."""
        letters = self.client.topic(f"{self.topic}{DEAD_SUFFIX}")
        with HeldInterrupts() as stop:
            while not stop.asked and (left := most - self.sent - self.left_out) > 0:
                page = min(GROUP_PAGE_MESSAGES, left)
                messages = letters.consume(limit=page, group=GROUP, lease_ms=LEASE_MS)["messages"]
                if not messages:
                    return
                self._send_all(letters, messages, stop)

    def _send_all(self, letters: TopicClient, messages: Page, stop: HeldInterrupts) -> None:
        """Send letters and acknowledge them; give back those that were not begun."""
        leases = [str(message["lease"]) for message in messages]
        done = 0
        try:
            for message in messages:
                if stop.asked:
                    break
                if is_letter(message):
                    self._send(message)
                    self.sent += 1
                else:
                    self.left_out += 1
                done += 1
        finally:
            if leases[done:]:
                give_back(letters, MEMBERSHIP, leases[done:])
            if done:
                letters.ack(GROUP, leases=leases[:done])

    def _send(self, letter: Mapping[str, Any]) -> None:
        """Publish what a letter holds; a key lets the server know a letter that it has already."""
        from tidegate.sdk.requests import API, Request, encoded, quoted

        outgoing = {"payload": letter["payload"]["payload"], "key": letter["key"]}
        parts = (self.topic, self.made, str(letter["messageId"]))
        digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
        path = f"{API}/topics/{quoted(self.topic)}/publish"
        request = Request("POST", path, encoded({"messages": [outgoing]}), key=f"redrive-{digest}")
        # Topic.publish numbers messages of a producer, and remembers each producer for good; a key is
        # forgotten in time.
        self.client._transport.call(request)


def is_letter(message: Mapping[str, Any]) -> bool:
    """Return whether a message of a topic of dead letters is one, with something to send again."""
    payload = message["payload"]
    if message["op"] != OP or not isinstance(payload, dict) or "payload" not in payload:
        return False  # someone else put it there
    return payload["payload"] is not None or not str(payload.get("reason", "")).startswith(UNREAD)
