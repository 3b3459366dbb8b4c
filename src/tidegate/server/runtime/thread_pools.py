"""Threads: where blocking work runs, apart by kind, so that a slow kind never holds up another."""

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
from tidegate.query.duckdb.session import Stopper
from tidegate.telemetry.metrics import Metrics, StatementTurn

# Reads are short and mostly wait for Python's lock: more threads would only take turns.
READ_THREADS = 8
# Catalog calls mostly wait for a database; SQLite takes one writer at a time.
CATALOG_THREADS = 8
# Flushing must not wait for a long removal of files, nor that for the filling of an index.
UPKEEP_THREADS = 3
# Statements that wait for their turn, for each that may run; more would wait longer than callers do.
STATEMENTS_WAITING_PER_THREAD = 16
# What a caller who finds too many waiting is asked to wait.
RETRY_SECONDS = 2

T = TypeVar("T")


class Threads:
    """Thread pools for reads, statements and the catalog."""

    def __init__(self, statements_max: int, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._reads = ThreadPoolExecutor(READ_THREADS, "tidegate-read")
        self._catalog = ThreadPoolExecutor(CATALOG_THREADS, "tidegate-catalog")
        self._statements = ThreadPoolExecutor(statements_max, "tidegate-sql")
        self._upkeep = ThreadPoolExecutor(UPKEEP_THREADS, "tidegate-upkeep")
        self._statements_max = statements_max
        self._statements_here = 0

    async def read(self, call: Callable[..., T], *arguments: Any) -> T:
        """Run a short read of the engine or of a file."""
        return await _run_in(self._reads, call, *arguments)

    async def upkeep(self, call: Callable[..., T], *arguments: Any) -> T:
        """Run what the server does by itself; requests never wait behind it."""
        return await _run_in(self._upkeep, call, *arguments)

    async def catalog(self, call: Callable[..., T], *arguments: Any) -> T:
        """Run a call of the catalog, and note how long it took and whether its database answered."""
        return await _run_in(self._catalog, self._asked, call, arguments)

    def _asked(self, call: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        began, answered = self._clock.monotonic_seconds(), True
        try:
            return call(*arguments)
        except CatalogUnavailable:
            answered = False
            raise
        finally:
            self._metrics.observe_catalog(self._clock.monotonic_seconds() - began, answered=answered)

    async def statement(self, call: Callable[..., T], *arguments: Any) -> T:
        """Run a statement when its turn has come; refuse where too many wait already."""
        with self._place() as turn:
            return await _run_in(self._statements, turn.run, call, *arguments)

    async def statement_for(
        self, left: Callable[[], Coroutine[Any, Any, None]], call: Callable[..., T], *arguments: Any
    ) -> T:
        """Run a statement as `statement` does, as long as its caller is there: `left` returns when not.

        Raises ClientDisconnect for a statement that was dropped or broken off. What only writes by now goes
        on to its end, and is given as if the caller were there.
        """
        stopper, gone = Stopper(), NotReady(reason="nobody waits for this statement")
        context = contextvars.copy_context()
        context.run(stopper.enter)
        with self._place() as turn:
            queued = self._statements.submit(context.run, turn.run, call, *arguments)
            work, leaving = asyncio.wrap_future(queued), asyncio.ensure_future(left())
            try:
                await asyncio.wait((work, leaving), return_when=asyncio.FIRST_COMPLETED)
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
                leaving.cancel()
                # Also where this task is cancelled: nobody takes the answer any more.
                stopper.stop(gone)
                work.cancel()

    @contextmanager
    def _place(self) -> Iterator[StatementTurn]:
        """Take a place among the statements that run and wait."""
        most = self._statements_max * (1 + STATEMENTS_WAITING_PER_THREAD)
        if self._statements_here >= most:
            raise TooManyRequests(
                what="statements wait already",
                limit=most,
                setting="query.statements_max",
                retry_after_seconds=RETRY_SECONDS,
            )
        self._statements_here += 1
        try:
            with self._metrics.statement() as turn:
                yield turn
        finally:
            self._statements_here -= 1

    def close(self) -> None:
        """Wait for what runs."""
        self._reads.shutdown()
        self._statements.shutdown()
        self._upkeep.shutdown()
        self._catalog.shutdown()


def _run_in(pool: ThreadPoolExecutor, call: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
    """Run a call in a pool as part of the request that asks for it, so that its log lines carry the id."""
    context = contextvars.copy_context()
    return asyncio.get_running_loop().run_in_executor(pool, lambda: context.run(call, *arguments))
