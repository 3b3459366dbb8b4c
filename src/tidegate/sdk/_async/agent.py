"""An agent: runs a function on each message of a topic, publishes its answers, tries again what fails."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tidegate.errors import Forbidden, IdempotencyKeyReused, NotFound, RequestInvalid, TokenWrong
from tidegate.sdk._async.concurrency import BackgroundTask, called, check_function
from tidegate.sdk._async.prefetch import Prefetcher
from tidegate.sdk._async.transport import Transport
from tidegate.sdk.agent_policy import WORKERS_MAX, ConsumerOptions, Reject, answer_request, reason_of
from tidegate.sdk.requests import get, quoted
from tidegate.sdk.retries import EndlessRetryState
from tidegate.sdk.signals import stopped_by_signals
from tidegate.sdk.types import Message

logger = logging.getLogger("tidegate.agent")

Work = Callable[[Message], Any]
F = TypeVar("F", bound=Work)


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What an agent does: how many messages at once, and where its answers go."""

    path: str
    asking: ConsumerOptions
    workers: int
    answers: str | None

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= WORKERS_MAX:
            reason = f"An agent has 1 to {WORKERS_MAX} workers, not {self.workers}."
            raise RequestInvalid(reason=reason, hint="Run it several times for more.")


class NotAnswerable(Exception):
    """The answers cannot be published, whatever the message."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def place_of(message: Message) -> str:
    """Name a message in the log as the command line finds it again."""
    return (
        f"{message['topic']} {message['partition']}:{message['offset']}"
        f" (message {message['messageId']}, delivery {message['deliveries']})"
    )


class Agent:
    """Works on the messages of a group, several at once; runs until it is stopped."""

    def __init__(self, transport: Transport, duty: AgentOptions) -> None:
        self._transport = transport
        self._duty = duty
        self._function: Work | None = None
        self._intake: Prefetcher | None = None
        self._is_stopped = False
        self._answers_made = ""

    def on(self, function: F) -> F:
        """Name the function to run, as a decorator: takes a message, gives an answer or None."""
        self._function = function
        return function

    def stop(self) -> None:
        """End when the messages in work are done. Any thread and signal handlers may call it."""
        self._is_stopped = True
        if self._intake is not None:
            self._intake.stop()

    async def run(self, function: Work | None = None) -> None:
        """Work until `stop`, SIGTERM or SIGINT; a second signal does not wait for what is in work.

        A message is acknowledged when the function has returned and its answer is stored. When the function
        raises, the message comes again after a pause; after the last attempt, or at `Reject`, it is a dead
        letter with the reason.
        """
        function = function or self._function
        if function is None:
            raise RequestInvalid(
                reason="The agent has no function.", hint="Give one to run(), or use @agent.on."
            )
        check_function(function)
        duty = self._duty
        if duty.answers is not None:
            found = await self._transport.call(get(f"/topics/{quoted(duty.answers)}"))
            self._answers_made = str(found["createdAt"])
        intake = self._intake = Prefetcher(self._transport, duty.path, duty.asking)
        with stopped_by_signals(self.stop):
            if self._is_stopped:
                intake.stop()
            await intake.open()
            await self._work_together(intake, function)
        intake.check()

    async def _work_together(self, intake: Prefetcher, function: Work) -> None:
        intake.follow()
        work = functools.partial(self._work, intake, function)
        name = f"tidegate-agent-{self._duty.asking.group}"
        crew = [BackgroundTask(work, f"{name}-{number}") for number in range(self._duty.workers)]
        try:
            for worker in crew:
                await worker.join()
        except BaseException:
            for worker in crew:
                await worker.cancel()
            raise
        finally:
            await intake.close()

    async def _work(self, intake: Prefetcher, function: Work) -> None:
        try:
            while (message := await intake.next()) is not None:
                await self._work_on(intake, function, message)
        except BaseException:
            # The program ends, or a mistake of ours: the others do not go on without this one.
            intake.stop()
            raise

    async def _work_on(self, intake: Prefetcher, function: Work, message: Message) -> None:
        try:
            answer = await called(function, message)
            if answer is not None and self._duty.answers is not None:
                await self._publish(intake, message, answer)
        except NotAnswerable as problem:
            # No fault of the message: each one would end as a dead letter.
            await intake.give_back({"leases": [str(message["lease"])], "release": True})
            raise problem.cause from None
        except Reject as refusal:
            follows = await intake.failed(message, refusal)
            logger.warning("%s is rejected (%s): %s", place_of(message), reason_of(refusal), follows)
        except Exception as problem:
            follows = await intake.failed(message, problem)
            logger.warning("%s failed: %s", place_of(message), follows, exc_info=problem)
        else:
            intake.done([str(message["lease"])])

    async def _publish(self, intake: Prefetcher, message: Message, answer: object) -> None:
        """Store an answer, and no second one for the same message."""
        path = f"/topics/{quoted(str(self._duty.answers))}/publish"
        request = answer_request(path, (self._duty.asking.group, self._answers_made), message, answer)
        course = EndlessRetryState(self._transport.retrying, request, intake.is_stopped)
        try:
            await self._transport.send(request, course)
        except IdempotencyKeyReused:
            logger.warning("%s was answered before; that answer stays", place_of(message))
        except (Forbidden, NotFound, TokenWrong) as problem:
            raise NotAnswerable(problem) from problem
