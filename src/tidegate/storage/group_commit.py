"""Group commit: the changes of many writers in one write batch with one sync.

One thread owns all writes to an engine. It takes every change that waits, lets each `stage` its puts in
turn (so that offsets and counters are assigned in commit order, without locks), writes them as one atomic
write batch and syncs once for all. While the disk works the next group gathers.

- A change that raises while staging is refused alone: nothing of it is written, the others are not affected.
- Staging reads through what the changes before it in the group have put.
- A failed write or sync fails the whole group and reopens the engine from what is on the disk, so that
  memory never stays ahead of the disk.
- What changes `gather` under one name is turned into puts once, for the whole group: many small appends to
  one partition become one value.
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
from tidegate.storage.engine import Engine, KeyRange

T = TypeVar("T")
Notice = Callable[[int, int, float], None]

# A group larger than this gains nothing from sharing its sync and makes its first writer wait.
GROUP_CHANGES_MAX = 512
GROUP_BYTES_MAX = 16 * 1024 * 1024
# A group that removes a range and puts no more than this frees room in the end: it may use the room that is
# held in reserve, so that deletes work on a full disk. Counters of some hundred partitions are that much.
FREEING_BYTES_MAX = 64 * 1024
# Waiting changes beyond this are refused: the disk is slower than the callers.
QUEUE_CHANGES_MAX = 16_384

log = logging.getLogger(__name__)

_PUT, _DELETE, _DELETE_RANGE = 0, 1, 2
_Operation = tuple[int, bytes, bytes]

# Takes the parts of one name in commit order; returns keys and values, and a callback for after the sync.
Finish = Callable[[list[Any]], tuple[list[tuple[bytes, bytes]], Callable[[], None]]]
_Gathered = tuple[Hashable, Any, Finish]


class StageLater(Exception):
    """Raised by a stage function that must read what changes before it in the same group have put."""


class Staging:
    """The transaction of one change: its puts and deletes, and reads through them.

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
        """Return the values of many keys, in the order of `keys`; far cheaper than as many calls of `get`."""
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
        """Remove the keys from `start` (in) to `stop` (out); this closes the group."""
        for key in [*self._own, *self._group]:
            if start <= key < stop:
                self._own[key] = None
        self.operations.append((_DELETE_RANGE, start, stop))
        self.close_group()

    def delete_keys(self, span: KeyRange) -> None:
        """Remove the keys of a range; this closes the group."""
        self.delete_range(span.start, span.stop)

    def close_group(self) -> None:
        """End the group with this change: later changes find it in the engine, and in memory."""
        self.is_last_of_group = True

    def foresee(self, key: bytes, value: bytes) -> None:
        """Let the changes after this one read a value that a `gather` of this one will put."""
        self._own[key] = value

    def set_pending(self, name: Hashable, state: Any) -> None:
        """Set a state for the changes after this one in the group; nothing of it is stored.

        For what a `gather` under this name will put, and whose bytes are only known at the end.
        """
        self.own_pending[name] = state

    def pending(self, name: Hashable) -> Any:
        """Return the state that this change, or one before it in the group, set under a name, or None."""
        found = self.own_pending.get(name)
        return self._pending.get(name) if found is None else found

    def gather(self, name: Hashable, part: Any, size_bytes: int, finish: Finish) -> None:
        """Add a part under a name: at the end of the group `finish` turns all its parts into puts."""
        self.gathered.append((name, part, finish))
        self.size_bytes += size_bytes

    def when_durable(self, callback: Callable[[], None]) -> None:
        """Call back after the sync, before the writer gets its answer."""
        self.callbacks.append(callback)

    def written(self) -> dict[bytes, bytes | None]:
        """Return the final value of every key this change touched; None for removed."""
        return self._own


class _Change(Generic[T]):
    """A stage function, and the future of its result."""

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
        """Set the future; that of an event loop is set on the loop's thread."""
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
        """Call back whenever the engine was reopened: state in memory may be wrong."""
        self._reopened.append(callback)

    def when_failed(self, callback: Callable[[], None]) -> None:
        """Call back whenever a group failed: what its changes did to memory is void. Must not raise."""
        self._failed.append(callback)

    def watch(self, monotonic_seconds: Callable[[], float], notice: Notice) -> None:
        """Report the changes, the bytes and the seconds of the sync of each group from now on."""
        self._notice = notice
        self._seconds = monotonic_seconds

    def submit(self, stage: Callable[[Staging], T]) -> Future[T]:
        """Queue a change; return the future of what `stage` returns, which is set once it is durable."""
        future: Future[T] = Future()
        self._enqueue(_Change(stage, future, None))
        return future

    async def commit(self, stage: Callable[[Staging], T]) -> T:
        """Queue a change and await its result."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._enqueue(_Change(stage, future, loop))
        return await future

    def close(self) -> None:
        """Finish the accepted changes, then stop; later ones are refused."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def refuse_waiting(self) -> None:
        """Refuse the changes that wait, and all later ones; return when those in work are settled.

        A change is in work once it is staged: it becomes durable, and its caller is told so.
        """
        with self._wake:
            self._closing = True
            waiting = list(self._queue)
            self._queue.clear()
            self._wake.notify()
        _fail(waiting, NotReady(reason="it is stopping"))
        _settle(waiting)
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
            group: list[_Change[Any]] = []
            try:
                self._commit_group(group)
            except Exception as problem:  # noqa: BLE001 - every writer of the group gets it
                # An empty group: the engine does not open again, so that no waiting change can be written.
                _fail(group or self._take_all(group), _tidegate_error(problem))
                for forget in self._failed:
                    forget()
            _settle(group)

    def _commit_group(self, group: list[_Change[Any]]) -> None:
        # 1. a group before this one failed half way: start again from what is on the disk
        if self._engine.reopen_needed:
            self._engine.reopen()
            self._must_forget = True
        if self._must_forget:
            for forget in self._reopened:
                forget()
            self._must_forget = False
        # 2. stage in order
        operations, callbacks, size_bytes = self._stage(group)
        # 3. one batch, one sync
        if operations:
            self._write(operations, len(group), size_bytes)
        # 4. notify readers, before writers are answered
        for callback in callbacks:
            _notify(callback)

    def _stage(self, group: list[_Change[Any]]) -> tuple[list[_Operation], list[Callable[[], None]], int]:
        staged: dict[bytes, bytes | None] = {}
        pending: dict[Hashable, Any] = {}
        operations: list[_Operation] = []
        callbacks: list[Callable[[], None]] = []
        gathered: list[_Gathered] = []
        size_bytes = 0
        while size_bytes < GROUP_BYTES_MAX and len(group) < GROUP_CHANGES_MAX:
            change = self._take_one(group)
            if change is None:
                break
            staging = Staging(self._engine, staged, pending)
            try:
                change.answer = change.stage(staging)
            except StageLater:
                self._put_back(group)
                break
            except Exception as problem:  # noqa: BLE001 - refused alone, its writer gets it
                change.error = _tidegate_error(problem)
                continue
            if staging.is_last_of_group:
                # It may remove what the changes before it gathered: those come first.
                _finish(gathered, operations, callbacks)
                gathered = []
            staged.update(staging.written())
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

    def _take_one(self, group: list[_Change[Any]]) -> _Change[Any] | None:
        with self._wake:
            if not self._queue:
                return None
            change = self._queue.popleft()
        group.append(change)
        return change

    def _take_all(self, group: list[_Change[Any]]) -> list[_Change[Any]]:
        with self._wake:
            group.extend(self._queue)
            self._queue.clear()
        return group

    def _put_back(self, group: list[_Change[Any]]) -> None:
        change = group.pop()
        if not group:
            change.error = InvariantBroken(
                reason="a change asked to be staged later, but nothing is before it"
            )
            group.append(change)
            return
        with self._wake:
            self._queue.appendleft(change)


def _notify(callback: Callable[[], None]) -> None:
    """Run a callback of a durable group; the group is on the disk, so that no error here can undo it."""
    try:
        callback()
    except Exception:
        log.exception("callback after a durable write failed")


def _finish(
    gathered: list[_Gathered], operations: list[_Operation], callbacks: list[Callable[[], None]]
) -> None:
    """Build the puts of a group, per name."""
    parts_of: dict[Hashable, tuple[Finish, list[Any]]] = {}
    for name, part, finish in gathered:
        parts_of.setdefault(name, (finish, []))[1].append(part)
    for finish, parts in parts_of.values():
        puts, callback = finish(parts)
        operations.extend((_PUT, key, value) for key, value in puts)
        callbacks.append(callback)


def _tidegate_error(problem: Exception) -> TidegateError:
    if isinstance(problem, TidegateError):
        return problem
    log.error("change failed with an unexpected error", exc_info=problem)
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
        except RuntimeError:  # the loop is closed: no caller waits for these results any more
            log.warning("writes stored, but the event loop of their callers is closed count=%d", len(settled))


def _settle_on_loop(changes: list[_Change[Any]]) -> None:
    for change in changes:
        change.settle()
