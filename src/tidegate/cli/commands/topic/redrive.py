"""`tidegate topic redrive`: publish the dead letters of a topic to it again, each once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.commands.topic.arguments import TopicArgument
from tidegate.cli.commands.topic.consume_loop import GROUP_PAGE_MESSAGES, Membership, Page, release
from tidegate.cli.invocation import Invocation, YesOption, command, confirm
from tidegate.cli.output.format import plural
from tidegate.cli.supervision.child import DeferredInterrupt
from tidegate.errors import RequestInvalid, RequestMalformed, TidegateError
from tidegate.model.names import DEAD_SUFFIX

if TYPE_CHECKING:
    from tidegate.sdk.client import Client, TopicClient

GROUP = "redrive"
# Longer than a page takes, also on a slow disk. A letter that is redelivered is sent once all the same.
LEASE_MS = 120_000
MEMBERSHIP = Membership(GROUP, None, LEASE_MS, ack=True)
OP = "DEAD"
# The beginning of the reason of a letter whose message was damaged in the log.
UNREAD = "the message could not be read"


def register(app: typer.Typer) -> None:
    """Add the command to `tidegate topic`."""
    command(app, "redrive", tenant=True)(redrive)


def redrive(
    call: Invocation,
    topic: TopicArgument,
    limit: Annotated[int | None, typer.Option(min=1, help="Most letters; else all of them.")] = None,
    yes: YesOption = False,
) -> None:
    """Send dead letters of a topic to it again, those that were not yet; asks first, or needs --yes."""
    dead = f"{topic}{DEAD_SUFFIX}"
    if not yes:
        call.require_terminal(f"whether letters of {dead} may be sent again: add --yes to send them.")
    with call.client() as client:
        created_at = str(client.topics.show(topic)["createdAt"])
        # Not more than there are now: one that fails again meanwhile would be sent endlessly.
        count = int(client.topics.show(dead)["messages"])
        most = count if limit is None else min(limit, count)
        if not yes:
            confirm(f"Send up to {plural(most, 'letter')} of {dead} to {topic} again?", "Nothing was sent.")
        work = _Redrive(client, topic, created_at)
        try:
            work.run(most)
        except (KeyboardInterrupt, TidegateError):
            typer.echo(f"Before that, {plural(work.sent, 'letter')} of {dead} went to {topic}.", err=True)
            raise
    sent, left_out, refused = work.sent, work.left_out, work.refused

    def sentence() -> str:
        if not sent and not left_out and not refused:
            return f"Nothing to send: every letter of {dead} was sent again before."
        text = f"Sent {plural(sent, 'letter')} to {topic} again; {dead} keeps them as well."
        if left_out:
            text += f" Left out: {plural(left_out, 'letter')} without a message to send."
        if refused:
            text += f" Refused by {topic}: {plural(len(refused), 'letter')}; the first: {refused[0]}"
        return text

    call.answer({"sent": sent, "leftOut": left_out, "refused": len(refused)}, sentence)


@dataclass(slots=True)
class _Redrive:
    """Fetches letters as a group, so that each is fetched once."""

    client: Client
    topic: str
    created_at: str  # of the topic
    sent: int = 0
    left_out: int = 0
    # Why the topic does not take a letter, one reason each.
    refused: list[str] = field(default_factory=list)

    @property
    def done(self) -> int:
        """The number of letters that were sent, left out or refused."""
        return self.sent + self.left_out + len(self.refused)

    def run(self, most: int) -> None:
        """Send up to so many letters, and count what became of them."""
        letters = self.client.topic(f"{self.topic}{DEAD_SUFFIX}")
        with DeferredInterrupt() as stop:
            while not stop.is_set and (left := most - self.done) > 0:
                page = min(GROUP_PAGE_MESSAGES, left)
                messages = letters.consume(limit=page, group=GROUP, lease_ms=LEASE_MS)["messages"]
                if not messages:
                    return
                self._send_all(letters, messages, stop)

    def _send_all(self, letters: TopicClient, messages: Page, stop: DeferredInterrupt) -> None:
        """Send letters and acknowledge them; release those that were not begun."""
        leases = [str(message["lease"]) for message in messages]
        done = 0
        try:
            for message in messages:
                if stop.is_set:
                    break
                self._send_one(message)
                done += 1
        finally:
            if leases[done:]:
                release(letters, MEMBERSHIP, leases[done:])
            if done:
                letters.ack(GROUP, leases=leases[:done])

    def _send_one(self, message: Mapping[str, Any]) -> None:
        """Send one letter; one that has no message, or that the topic does not take, holds up no other."""
        if not is_letter(message):
            self.left_out += 1
            return
        try:
            self._send(message)
        except (RequestInvalid, RequestMalformed) as problem:
            self.refused.append(problem.message)
        else:
            self.sent += 1

    def _send(self, letter: Mapping[str, Any]) -> None:
        """Publish the message of a letter, with an idempotency key: a repeat is published once."""
        from tidegate.sdk.requests import API, Request, encoded, quoted

        outgoing = {"payload": letter["payload"]["payload"], "key": letter["key"]}
        parts = (self.topic, self.created_at, str(letter["messageId"]))
        digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
        path = f"{API}/topics/{quoted(self.topic)}/publish"
        request = Request("POST", path, encoded({"messages": [outgoing]}), key=f"redrive-{digest}")
        # Topic.publish numbers the messages of a producer, and the server keeps each producer for good; a key
        # expires.
        self.client._transport.call(request)


def is_letter(message: Mapping[str, Any]) -> bool:
    """True if a message in a topic of dead letters is a letter with a message to send again."""
    payload = message["payload"]
    if message["op"] != OP or not isinstance(payload, dict) or "payload" not in payload:
        return False  # someone else published it there
    return payload["payload"] is not None or not str(payload.get("reason", "")).startswith(UNREAD)
