"""Group commit: takes staged changes from many writers, gives each its answer once the disk has them.

One thread owns all writes to an engine. It takes every change that waits, lets each `stage` its puts in
turn (so that offsets and counters are given out in commit order, without locks), writes them as one atomic
batch and syncs once for all. While the disk works the next group gathers.

- A change that raises while staging is refused alone: nothing of it is written, the others go on.
- Staging reads through what the changes before it in the group have put.
- A failed write or sync fails the whole group and reopens the engine from what the disk holds, so that
  memory never runs ahead of the disk.
- What changes `gather` under one name is turned into puts once, for the whole group: many small appends to
  one place become one value.
- `when_durable` runs after the sync and before any answer, in commit order, on the committer's thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from itertools import repeat
from typing import Any, Generic, TypeVar

from tidegate.errors import InvariantBroken, NotReady, TidegateError
from tidegate.storage.engine import Engine

T = TypeVar("T")
Notice = Callable[[int, int, float], None]

# A group larger than this gains nothing from sharing its sync and makes its first writer wait.
GROUP_CHANGES_MAX = 512
GROUP_BYTES_MAX = 16 * 1024 * 1024
# A group that removes a range and puts no more than this makes room in the end: it may use the room that is
# kept in reserve, so that a full disk can be helped. The counters of some hundred partitions are that much.
FREEING_BYTES_MAX = 64 * 1024
# Waiting changes beyond this are refused: the disk is slower than the callers.
QUEUE_CHANGES_MAX = 16_384

log = logging.getLogger(__name__)

_PUT, _DELETE, _DELETE_RANGE = 0, 1, 2
_Operation = tuple[int, bytes, bytes]

# Takes the parts of one name in commit order; gives keys and values, and what to do once they are durable.
Finish = Callable[[list[Any]], tuple[list[tuple[bytes, bytes]], Callable[[], None]]]
_Gathered = tuple[Hashable, Any, Finish]


class StageLater(Exception):
    """Raised by a stage function that must read what changes before it in the same group have put."""


class Staging:
    """What one change writes, and what it reads while it does.

    Belongs to the committer's thread; a change must not keep it.
    """

    __slots__ = (
        "_engine",
        "_group",
        "_own",
        "_pending",
        "callbacks",
        "gathered",
        "is_last_of_group",
        "operations",
        "own_pending",
        "size_bytes",
    )

    def __init__(
        self, engine: Engine, group: dict[bytes, bytes | None], pending: Mapping[Hashable, Any] | None = None
    ) -> None:
        self._engine = engine
        self._group = group
        self._own: dict[bytes, bytes | None] = {}
        self._pending = pending or {}
        self.own_pending: dict[Hashable, Any] = {}
        self.operations: list[tuple[int, bytes, bytes]] = []
        self.callbacks: list[Callable[[], None]] = []
        self.gathered: list[_Gathered] = []
        self.size_bytes = 0
        self.is_last_of_group = False

    def get(self, key: bytes) -> bytes | None:
        """Return a value as it is after the changes before this one and after what this one put so far."""
        if key in self._own:
            return self._own[key]
        if key in self._group:
            return self._group[key]
        return self._engine.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of many keys as `get` does, in the order asked.

        Far cheaper than as many calls.
        """
        own, group = self._own, self._group
        if not (own or group):
            return self._engine.get_many(keys)
        unknown = [key for key in keys if key not in own and key not in group]
        stored = dict(zip(unknown, self._engine.get_many(unknown), strict=True))
        return [own[key] if key in own else group[key] if key in group else stored[key] for key in keys]

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key."""
        self._own[key] = value
        self.operations.append((_PUT, key, value))
        self.size_bytes += len(key) + len(value)

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Set many keys, each to the value at its place."""
        self._own.update(zip(keys, values, strict=True))
        self.operations.extend(zip(repeat(_PUT), keys, values))
        self.size_bytes += sum(map(len, keys)) + sum(map(len, values))

    def delete(self, key: bytes) -> None:
        """Remove a key; one that is not there is no error."""
        self._own[key] = None
        self.operations.append((_DELETE, key, b""))

    def delete_range(self, start: bytes, stop: bytes) -> None:
        """Remove the keys from `start` (in) to `stop` (out); the group ends here, nobody reads through it."""
        for key in [*self._own, *self._group]:
            if start <= key < stop:
                self._own[key] = None
        self.operations.append((_DELETE_RANGE, start, stop))
        self.close_group()

    def close_group(self) -> None:
        """End the group with this change: the next change sees it in the engine, and in memory."""
        self.is_last_of_group = True

    def foresee(self, key: bytes, value: bytes) -> None:
        """Let the changes after this one read a value that a `gather` of this one is going to put."""
        self._own[key] = value

    def set_pending(self, name: Hashable, state: Any) -> None:
        """Leave a state for the changes after this one in the group; nothing of it is stored.

        For what a `gather` under this name is going to put, and whose bytes are only known at the end.
        """
        self.own_pending[name] = state

    def pending(self, name: Hashable) -> Any:
        """Return what this change, or one before it in the group, left under a name; None if none did."""
        found = self.own_pending.get(name)
        return self._pending.get(name) if found is None else found

    def gather(self, name: Hashable, part: Any, size_bytes: int, finish: Finish) -> None:
        """Leave a part under a name: at the end of the group `finish` turns all parts of it into puts."""
        self.gathered.append((name, part, finish))
        self.size_bytes += size_bytes

    def when_durable(self, callback: Callable[[], None]) -> None:
        """Run something after the sync, before the writer gets its answer."""
        self.callbacks.append(callback)

    def written(self) -> dict[bytes, bytes | None]:
        """Return the final value of every key this change touched; None for removed."""
        return self._own


class _Change(Generic[T]):
    """A stage function, and where its answer goes."""

    __slots__ = ("answer", "error", "future", "loop", "stage")

    def __init__(
        self,
        stage: Callable[[Staging], T],
        future: Future[T] | asyncio.Future[T],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self.stage = stage
        self.future = future
        self.loop = loop
        self.answer: T | None = None
        self.error: BaseException | None = None

    def settle(self) -> None:
        """Hand the answer over; on an event loop this runs on its own thread."""
        if isinstance(self.future, Future):
            if not self.future.set_running_or_notify_cancel():
                return
        elif self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.answer)  # type: ignore[arg-type]


class GroupCommitter:
    """The one writer of an engine. Start it once; every method may be called from any thread."""

    def __init__(self, engine: Engine, *, sync: bool = True) -> None:
        self._engine = engine
        self._sync = sync
        self._queue: deque[_Change[Any]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._reopened: list[Callable[[], None]] = []
        self._failed: list[Callable[[], None]] = []
        self._must_forget = False
        self._seconds: Callable[[], float] | None = None
        self._notice: Notice | None = None
        self._thread = threading.Thread(target=self._run, name="tidegate-committer", daemon=True)
        self._thread.start()

    def when_reopened(self, callback: Callable[[], None]) -> None:
        """Run something whenever the engine was opened again: what is kept in memory of it may be wrong."""
        self._reopened.append(callback)

    def when_failed(self, callback: Callable[[], None]) -> None:
        """Run something whenever a group failed: what its changes did to memory is not so. Must not raise."""
        self._failed.append(callback)

    def watch(self, monotonic_seconds: Callable[[], float], notice: Notice) -> None:
        """Tell how many changes and bytes each group had and how long its sync took; from now on."""
        self._notice = notice
        self._seconds = monotonic_seconds

    def submit(self, stage: Callable[[Staging], T]) -> Future[T]:
        """Queue a change; the future holds what `stage` returned, once that is durable."""
        future: Future[T] = Future()
        self._enqueue(_Change(stage, future, None))
        return future

    async def commit(self, stage: Callable[[Staging], T]) -> T:
        """Queue a change and wait for it without holding a thread."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._enqueue(_Change(stage, future, loop))
        return await future

    def close(self) -> None:
        """Finish what was accepted, then stop; later changes are refused."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _enqueue(self, change: _Change[Any]) -> None:
        with self._wake:
            if self._closing:
                raise NotReady(reason="it is stopping")
            if len(self._queue) >= QUEUE_CHANGES_MAX:
                raise NotReady(reason=f"{QUEUE_CHANGES_MAX} writes wait for the disk already")
            self._queue.append(change)
            if len(self._queue) == 1:
                self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._closing:
                    self._wake.wait()
                if not self._queue:
                    return
            taken: list[_Change[Any]] = []
            try:
                self._commit_group(taken)
            except Exception as problem:  # noqa: BLE001 - told to every writer of the group
                # Nothing taken: the engine does not open again, so nobody who waits can be served.
                _fail(taken or self._take_all(taken), _as_ours(problem))
                for forget in self._failed:
                    forget()
            _settle(taken)

    def _commit_group(self, taken: list[_Change[Any]]) -> None:
        # 1. a group before this one failed half way: start again from what the disk holds
        if self._engine.reopen_needed:
            self._engine.reopen()
            self._must_forget = True
        if self._must_forget:
            for forget in self._reopened:
                forget()
            self._must_forget = False
        # 2. stage in order
        operations, callbacks, size_bytes = self._stage(taken)
        # 3. one batch, one sync
        if operations:
            self._write(operations, len(taken), size_bytes)
        # 4. tell readers, before writers are answered
        for callback in callbacks:
            _tell(callback)

    def _stage(self, taken: list[_Change[Any]]) -> tuple[list[_Operation], list[Callable[[], None]], int]:
        group: dict[bytes, bytes | None] = {}
        pending: dict[Hashable, Any] = {}
        operations: list[_Operation] = []
        callbacks: list[Callable[[], None]] = []
        gathered: list[_Gathered] = []
        size_bytes = 0
        while size_bytes < GROUP_BYTES_MAX and len(taken) < GROUP_CHANGES_MAX:
            change = self._take_one(taken)
            if change is None:
                break
            staging = Staging(self._engine, group, pending)
            try:
                change.answer = change.stage(staging)
            except StageLater:
                self._put_back(taken)
                break
            except Exception as problem:  # noqa: BLE001 - refused alone, and told to its writer
                change.error = _as_ours(problem)
                continue
            if staging.is_last_of_group:
                # It may remove what the changes before it gathered: those come first.
                _finish(gathered, operations, callbacks)
                gathered = []
            group.update(staging.written())
            pending.update(staging.own_pending)
            operations.extend(staging.operations)
            callbacks.extend(staging.callbacks)
            gathered.extend(staging.gathered)
            size_bytes += staging.size_bytes
            if staging.is_last_of_group:
                break
        _finish(gathered, operations, callbacks)
        return operations, callbacks, size_bytes

    def _write(self, operations: list[_Operation], changes: int, size_bytes: int) -> None:
        batch = self._engine.batch()
        put = batch.put
        kinds = {kind for kind, _, _ in operations}
        frees = _PUT not in kinds or (_DELETE_RANGE in kinds and size_bytes <= FREEING_BYTES_MAX)
        for kind, first, second in operations:
            if kind == _PUT:
                put(first, second)
            elif kind == _DELETE:
                batch.delete(first)
            else:
                batch.delete_range(first, second)
        self._engine.write(batch, frees=frees)
        began = self._seconds() if self._seconds else 0.0
        if self._sync:
            self._engine.sync()
        if self._seconds and self._notice:
            self._notice(changes, size_bytes, self._seconds() - began)

    def _take_one(self, taken: list[_Change[Any]]) -> _Change[Any] | None:
        with self._wake:
            if not self._queue:
                return None
            change = self._queue.popleft()
        taken.append(change)
        return change

    def _take_all(self, taken: list[_Change[Any]]) -> list[_Change[Any]]:
        with self._wake:
            taken.extend(self._queue)
            self._queue.clear()
        return taken

    def _put_back(self, taken: list[_Change[Any]]) -> None:
        change = taken.pop()
        if not taken:
            change.error = InvariantBroken(
                reason="a change asked to be staged later, but nothing is before it"
            )
            taken.append(change)
            return
        with self._wake:
            self._queue.appendleft(change)


def _tell(callback: Callable[[], None]) -> None:
    """Run what follows a durable group; the group is on the disk, so nothing here can make it fail."""
    try:
        callback()
    except Exception:
        log.exception("what follows a write failed; the write itself is done")


def _finish(
    gathered: list[_Gathered], operations: list[_Operation], callbacks: list[Callable[[], None]]
) -> None:
    """Turn what a group gathered into puts, name by name."""
    parts_of: dict[Hashable, tuple[Finish, list[Any]]] = {}
    for name, part, finish in gathered:
        parts_of.setdefault(name, (finish, []))[1].append(part)
    for finish, parts in parts_of.values():
        puts, callback = finish(parts)
        operations.extend((_PUT, key, value) for key, value in puts)
        callbacks.append(callback)


def _as_ours(problem: Exception) -> TidegateError:
    if isinstance(problem, TidegateError):
        return problem
    log.error("a change failed in a way that is not foreseen", exc_info=problem)
    return InvariantBroken(reason=f"{type(problem).__name__}: {problem}")


def _fail(changes: list[_Change[Any]], problem: TidegateError) -> None:
    for change in changes:
        if change.error is None:
            change.error = problem


def _settle(changes: list[_Change[Any]]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[_Change[Any]]] = {}
    for change in changes:
        if change.loop is None:
            change.settle()
        else:
            by_loop.setdefault(change.loop, []).append(change)
    for loop, settled in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle_on_loop, settled)
        except RuntimeError:  # the loop is closed: nobody waits for these answers any more
            log.warning("%d writes were stored, but their callers are gone", len(settled))


def _settle_on_loop(changes: list[_Change[Any]]) -> None:
    for change in changes:
        change.settle()
