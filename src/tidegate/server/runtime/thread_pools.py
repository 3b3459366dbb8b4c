"""The thread pools for blocking work, one for each kind, so that a slow kind never delays another."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect

from tidegate.errors import CatalogUnavailable, NotReady
from tidegate.model.clock import Clock
from tidegate.query.processes.watch import Stopper
from tidegate.server.runtime.statement_queue import (
    StatementOwner,
    StatementQueue,
    StatementShares,
    StatementSlot,
)
from tidegate.telemetry.metrics import Metrics

# Reads are short and mostly wait for the GIL: more threads would not help.
READ_THREADS = 8
# Catalog calls mostly wait for a database; SQLite has one writer at a time.
CATALOG_THREADS = 8
# Flushing must not wait for a long removal of files, nor that for the build of an index, nor that for the
# removal of a user's rows.
UPKEEP_THREADS = 4

T = TypeVar("T")


class Threads:
    """Thread pools for reads, statements, the catalog and background work."""

    def __init__(self, shares: StatementShares, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._reads = ThreadPoolExecutor(READ_THREADS, "tidegate-read")
        self._catalog = ThreadPoolExecutor(CATALOG_THREADS, "tidegate-catalog")
        self._statements = ThreadPoolExecutor(shares.most, "tidegate-sql")
        self._upkeep = ThreadPoolExecutor(UPKEEP_THREADS, "tidegate-upkeep")
        self.statement_queue = StatementQueue(shares)

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

    async def statement(self, owner: StatementOwner, call: Callable[..., T], *arguments: Any) -> T:
        """Run a statement when it is its turn; raise TooManyRequests where too many wait already."""
        with self._metrics.statement() as turn:
            slot = self.statement_queue.enter(owner)
            try:
                await asyncio.shield(slot.granted)
            except asyncio.CancelledError:
                slot.leave()
                raise
            return await asyncio.wrap_future(
                self._submit(slot, contextvars.copy_context(), turn.run, call, *arguments)
            )

    async def statement_for(
        self,
        owner: StatementOwner,
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
        with self._metrics.statement() as turn:
            slot, disconnected = self.statement_queue.enter(owner), asyncio.ensure_future(wait_disconnect())
            work: asyncio.Future[T] | None = None
            try:
                await asyncio.wait((slot.granted, disconnected), return_when=asyncio.FIRST_COMPLETED)
                if disconnected.done():
                    raise ClientDisconnect
                work = asyncio.wrap_future(self._submit(slot, context, turn.run, call, *arguments))
                await asyncio.wait((work, disconnected), return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
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
                if work is None:
                    slot.leave()

    def _submit(
        self, slot: StatementSlot, context: contextvars.Context, call: Callable[..., T], *arguments: Any
    ) -> Future[T]:
        """Run a call that has its turn; the turn ends with the call, whoever still waits for it."""
        loop = asyncio.get_running_loop()

        def leave(_: Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for a turn
                loop.call_soon_threadsafe(slot.leave)

        work = self._statements.submit(context.run, call, *arguments)
        work.add_done_callback(leave)
        return work

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
