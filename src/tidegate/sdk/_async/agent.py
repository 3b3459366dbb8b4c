"""The agent: runs a function on each message of a topic, publishes its answers, and retries what fails."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tidegate.errors import Forbidden, IdempotencyKeyReused, NotFound, RequestInvalid, TokenWrong
from tidegate.sdk._async.concurrency import BackgroundTask, call_function, check_function
from tidegate.sdk._async.prefetch import Prefetcher
from tidegate.sdk._async.transport import Transport
from tidegate.sdk.agent_policy import WORKERS_MAX, ConsumerOptions, Reject, answer_request, reason_of
from tidegate.sdk.requests import get, quoted
from tidegate.sdk.retries import EndlessRetryState
from tidegate.sdk.signals import stopped_by_signals
from tidegate.sdk.types import MessageDict

logger = logging.getLogger("tidegate.agent")

Work = Callable[[MessageDict], Any]
F = TypeVar("F", bound=Work)


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """How many messages an agent works on at once, and the topic of its answers."""

    path: str
    consumer: ConsumerOptions
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


def message_fields(message: MessageDict) -> tuple[object, ...]:
    """Return what a log line names: topic, partition, offset, id and delivery of a message."""
    position = (message["topic"], message["partition"], message["offset"])
    return (*position, message["messageId"], message["deliveries"])


class Agent:
    """Works on the messages of a group, several at once, until it is stopped."""

    def __init__(self, transport: Transport, options: AgentOptions) -> None:
        self._transport = transport
        self._options = options
        self._function: Work | None = None
        self._prefetcher: Prefetcher | None = None
        self._is_stopped = False
        self._answers_created_at = ""

    def on(self, function: F) -> F:
        """Set the function to run, as a decorator: it takes a message and returns an answer or None."""
        self._function = function
        return function

    def stop(self) -> None:
        """End when the messages in work are done. Any thread and signal handlers may call it."""
        self._is_stopped = True
        if self._prefetcher is not None:
            self._prefetcher.stop()

    async def run(self, function: Work | None = None) -> None:
        """Work until `stop`, SIGTERM or SIGINT; a second signal does not wait for messages in work.

        A message is acknowledged when the function has returned and its answer is stored. When the function
        raises, the message is delivered again after a pause; after the last attempt, or at `Reject`, it
        becomes a dead letter with the reason.
        """
        function = function or self._function
        if function is None:
            raise RequestInvalid(
                reason="The agent has no function.", hint="Give one to run(), or use @agent.on."
            )
        check_function(function)
        options = self._options
        if options.answers is not None:
            topic = await self._transport.call(get(f"/topics/{quoted(options.answers)}"))
            self._answers_created_at = str(topic["createdAt"])
        prefetcher = self._prefetcher = Prefetcher(self._transport, options.path, options.consumer)
        with stopped_by_signals(self.stop):
            if self._is_stopped:
                prefetcher.stop()
            await prefetcher.open()
            await self._run_workers(prefetcher, function)
        prefetcher.check()

    async def _run_workers(self, prefetcher: Prefetcher, function: Work) -> None:
        prefetcher.start_fetching()
        work = functools.partial(self._run_worker, prefetcher, function)
        name = f"tidegate-agent-{self._options.consumer.group}"
        workers = [BackgroundTask(work, f"{name}-{number}") for number in range(self._options.workers)]
        try:
            for worker in workers:
                await worker.join()
        except BaseException:
            for worker in workers:
                await worker.cancel()
            raise
        finally:
            await prefetcher.close()

    async def _run_worker(self, prefetcher: Prefetcher, function: Work) -> None:
        try:
            while (message := await prefetcher.next()) is not None:
                await self._run_function(prefetcher, function, message)
        except BaseException:
            # The program ends, or there is a bug here: the other workers do not continue without this one.
            prefetcher.stop()
            raise

    async def _run_function(self, prefetcher: Prefetcher, function: Work, message: MessageDict) -> None:
        try:
            answer = await call_function(function, message)
            if answer is not None and self._options.answers is not None:
                await self._publish(prefetcher, message, answer)
        except NotAnswerable as problem:
            # The message is not at fault: every message would end as a dead letter.
            await prefetcher.nack({"leases": [str(message["lease"])], "release": True})
            raise problem.cause from None
        except Reject as problem:
            outcome = await prefetcher.fail(message, problem)
            logger.warning(
                "message rejected topic=%s partition=%s offset=%s message=%s delivery=%s reason=%r next=%r",
                *(*message_fields(message), reason_of(problem), outcome),
            )
        except Exception as problem:
            outcome = await prefetcher.fail(message, problem)
            logger.warning(
                "message failed topic=%s partition=%s offset=%s message=%s delivery=%s next=%r",
                *(*message_fields(message), outcome),
                exc_info=problem,
            )
        else:
            prefetcher.done([str(message["lease"])])

    async def _publish(self, prefetcher: Prefetcher, message: MessageDict, answer: object) -> None:
        """Store an answer, once for a message."""
        path = f"/topics/{quoted(str(self._options.answers))}/publish"
        scope = (self._options.consumer.group, self._answers_created_at)
        request = answer_request(path, scope, message, answer)
        retry_state = EndlessRetryState(self._transport.retry_policy, request, prefetcher.is_stopped)
        try:
            await self._transport.send(request, retry_state)
        except IdempotencyKeyReused:
            logger.warning(
                "message answered before topic=%s partition=%s offset=%s message=%s delivery=%s",
                *message_fields(message),
            )
        except (Forbidden, NotFound, TokenWrong) as problem:
            raise NotAnswerable(problem) from problem
