"""The thread pools for blocking work, one for each kind, so that a slow kind never delays another."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect

from tidegate.errors import CatalogUnavailable, NotReady, TooManyRequests
from tidegate.model.clock import Clock
from tidegate.query.processes.watch import Stopper
from tidegate.telemetry.metrics import Metrics, StatementTurn

# Reads are short and mostly wait for the GIL: more threads would not help.
READ_THREADS = 8
# Catalog calls mostly wait for a database; SQLite has one writer at a time.
CATALOG_THREADS = 8
# Flushing must not wait for a long removal of files, nor that for the build of an index.
UPKEEP_THREADS = 3
# Queued statements for each that may run; more would wait longer than clients do.
STATEMENTS_WAITING_PER_THREAD = 16
# Retry-After where too many statements are queued.
RETRY_SECONDS = 2

T = TypeVar("T")


class Threads:
    """Thread pools for reads, statements, the catalog and background work."""

    def __init__(self, statements_max: int, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._reads = ThreadPoolExecutor(READ_THREADS, "tidegate-read")
        self._catalog = ThreadPoolExecutor(CATALOG_THREADS, "tidegate-catalog")
        self._statements = ThreadPoolExecutor(statements_max, "tidegate-sql")
        self._upkeep = ThreadPoolExecutor(UPKEEP_THREADS, "tidegate-upkeep")
        self._statements_max = statements_max
        self._statement_count = 0

    async def read(self, call: Callable[..., T], *arguments: Any) -> T:
        """Run a short read of the engine or of a file."""
        return await _run_in(self._reads, call, *arguments)

    async def upkeep(self, call: Callable[..., T], *arguments: Any) -> T:
        """Run background work; requests never wait behind it."""
        return await _run_in(self._upkeep, call, *arguments)

    async def catalog(self, call: Callable[..., T], *arguments: Any) -> T:
        """Run a call of the catalog, and record its duration and whether the database answered."""
        return await _run_in(self._catalog, self._observe_call, call, arguments)

    def _observe_call(self, call: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        began, answered = self._clock.monotonic_seconds(), True
        try:
            return call(*arguments)
        except CatalogUnavailable:
            answered = False
            raise
        finally:
            self._metrics.observe_catalog(self._clock.monotonic_seconds() - began, answered=answered)

    async def statement(self, call: Callable[..., T], *arguments: Any) -> T:
        """Run a statement; raise TooManyRequests where too many are queued already."""
        with self._queue_slot() as turn:
            return await _run_in(self._statements, turn.run, call, *arguments)

    async def statement_for(
        self,
        wait_disconnect: Callable[[], Coroutine[Any, Any, None]],
        call: Callable[..., T],
        *arguments: Any,
    ) -> T:
        """Run a statement as `statement` does, until `wait_disconnect` returns because the client is gone.

        Raises ClientDisconnect for a statement that was dropped or interrupted. One that only writes by then
        continues to its end, and its result is returned as if the client were there.
        """
        stopper, gone = Stopper(), NotReady(reason="nobody waits for this statement")
        context = contextvars.copy_context()
        context.run(stopper.enter)
        with self._queue_slot() as turn:
            queued = self._statements.submit(context.run, turn.run, call, *arguments)
            work, disconnected = asyncio.wrap_future(queued), asyncio.ensure_future(wait_disconnect())
            try:
                await asyncio.wait((work, disconnected), return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    if queued.cancel():
                        raise ClientDisconnect
                    stopper.stop(gone)
                return await work
            except NotReady as problem:
                if problem is not gone:
                    raise
                raise ClientDisconnect from problem
            finally:
                disconnected.cancel()
                # Also where this task is cancelled: nobody waits for the result any more.
                stopper.stop(gone)
                work.cancel()

    @contextmanager
    def _queue_slot(self) -> Iterator[StatementTurn]:
        """Count a statement while it is queued or runs."""
        most = self._statements_max * (1 + STATEMENTS_WAITING_PER_THREAD)
        if self._statement_count >= most:
            raise TooManyRequests(
                what="statements wait already",
                limit=most,
                setting="query.statements_max",
                retry_after_seconds=RETRY_SECONDS,
            )
        self._statement_count += 1
        try:
            with self._metrics.statement() as turn:
                yield turn
        finally:
            self._statement_count -= 1

    def close(self) -> None:
        """Wait for running work."""
        self._reads.shutdown()
        self._statements.shutdown()
        self._upkeep.shutdown()
        self._catalog.shutdown()


def _run_in(pool: ThreadPoolExecutor, call: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
    """Run a call in a pool, in the context of the request, so that its log lines have the request's id."""
    context = contextvars.copy_context()
    return asyncio.get_running_loop().run_in_executor(pool, lambda: context.run(call, *arguments))
