"""The DuckDB that statements run in: in memory, locked down, shared by all threads.

It opens files under the lake's folder and no others; its configuration cannot be changed after the start,
it loads no extension and sees no variable of this program. A statement gets a session of its own: a cursor
and a schema `lake` that no other session sees. Opening a session costs about 1 ms; a database for each
statement would cost 18 ms.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.errors import QueryTimeout, TidegateError
from tidegate.query.quoting import escape_glob, quote_name, quote_text

# An interrupt that comes between two steps of a statement is lost, so the watch repeats it.
INTERRUPT_REPEAT_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """Limits of statements. Memory and threads are shared by all that run at the same time."""

    timeout_seconds: float = 60.0
    rows_max: int = 100_000
    memory_mb: int = 1024
    threads: int = 2
    spill_path: Path | None = None  # None: a statement that needs more memory fails


class LakeDatabase:
    """A locked-down DuckDB over one folder of tables."""

    def __init__(self, root: Path, settings: QueryLimits) -> None:
        import duckdb

        config = {
            "threads": settings.threads,
            "memory_limit": f"{settings.memory_mb}MiB",
            "temp_directory": str(settings.spill_path or ""),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "allow_persistent_secrets": False,
            "python_enable_replacements": False,
        }
        self._root = duckdb.connect(":memory:", config=config)
        folder = str(root.absolute())
        # DuckDB gets paths with their glob characters escaped, and opens them without.
        allowed = sorted({folder + "/", escape_glob(folder) + "/"})
        self._root.execute("SET GLOBAL TimeZone = 'UTC'")
        self._root.execute(f"SET GLOBAL allowed_directories = [{', '.join(map(quote_text, allowed))}]")
        # JSON has the exact position of an error: the drawn line is cut, and counts columns.
        self._root.execute("SET GLOBAL errors_as_json = true")
        self._root.execute("SET GLOBAL enable_external_access = false")
        self._root.execute("SET GLOBAL lock_configuration = true")
        self._numbers = itertools.count(1)

    @contextmanager
    def session(self) -> Iterator[Any]:
        """Yield a cursor whose schema `lake` is empty and is gone afterwards."""
        # A schema of the session may have any name of a namespace, and no namespace has this name.
        name = quote_name(f"query {next(self._numbers)}")
        cursor = self._root.cursor()
        try:
            cursor.execute(f"ATTACH ':memory:' AS {name}")
            cursor.execute(f"CREATE SCHEMA {name}.lake")
            cursor.execute(f"USE {name}")
            yield cursor
        finally:
            cursor.execute("USE memory")
            cursor.execute(f"DETACH DATABASE IF EXISTS {name}")
            cursor.close()

    def close(self) -> None:
        """Release the memory; a second call does nothing."""
        self._root.close()


class Stopper:
    """Stops what one caller runs, now and from now on; any thread may call it.

    It belongs to a context (`contextvars`): all statements that are run in it are stopped, however deep they
    are called.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: set[Watch] = set()
        self._error: TidegateError | None = None

    def enter(self) -> None:
        """Set this as the stopper of the current context."""
        _stopper.set(self)

    def stop(self, error: TidegateError) -> None:
        """Cancel the statements that run; they, and all that begin later, raise this error."""
        with self._lock:
            self._error = self._error or error
            watches = list(self._watches)
        for watch in watches:
            watch.stop(error)

    def add(self, watch: Watch) -> None:
        """Add a statement; it is cancelled at once where the stopper has stopped."""
        with self._lock:
            self._watches.add(watch)
            error = self._error
        if error is not None:
            watch.stop(error)

    def discard(self, watch: Watch) -> None:
        """Remove a statement that ended."""
        with self._lock:
            self._watches.discard(watch)


_stopper: ContextVar[Stopper | None] = ContextVar("stopper", default=None)


class Watch:
    """Cancels a cursor's statement at its time limit, on `stop`, or by the context's stopper."""

    def __init__(self, cursor: Any, limit_seconds: float) -> None:
        self._cursor = cursor
        self._limit_seconds = limit_seconds
        self._over = threading.Event()
        self._done = threading.Event()
        self._error: TidegateError | None = None
        self._stopper = _stopper.get()
        self._thread = threading.Thread(target=self._run, name="query-watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        if self._stopper is not None:
            self._stopper.add(self)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._stopper is not None:
            self._stopper.discard(self)
        self._done.set()
        self._over.set()
        self._thread.join()

    def stop(self, error: TidegateError) -> None:
        """Cancel the statement; `check` raises this error."""
        self._error = self._error or error
        self._over.set()

    def check(self) -> None:
        """Raise the error with which the statement was cancelled, if it was."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        if not self._over.wait(self._limit_seconds):
            self.stop(QueryTimeout(limit_seconds=self._limit_seconds))
        while not self._done.is_set():
            self._cursor.interrupt()
            self._done.wait(INTERRUPT_REPEAT_SECONDS)
