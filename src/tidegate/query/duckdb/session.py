"""The DuckDB of one child process: in memory, locked down, for one lake at a time.

It opens files under the lake's folder and no others; its configuration cannot be changed once it is confined,
it loads no extension and sees no variable of this program. A statement gets a session of its own: a cursor
and a schema `lake` that no other session sees. Opening a session costs about 1 ms; a database for each
statement would cost 18 ms.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.query.quoting import escape_glob, quote_name, quote_text


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """Limits of one statement."""

    timeout_seconds: float = 60.0
    rows_max: int = 100_000
    memory_mb: int = 1024
    threads: int = 2
    spill_path: Path | None = None  # None: a statement that needs more memory fails


class LakeDatabase:
    """A DuckDB over one folder of tables, once it is confined to it."""

    def __init__(self) -> None:
        import duckdb

        config = {
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "allow_persistent_secrets": False,
            "python_enable_replacements": False,
        }
        self._root = duckdb.connect(":memory:", config=config)
        self._root.execute("SET GLOBAL TimeZone = 'UTC'")
        # JSON has the exact position of an error: the drawn line is cut, and counts columns.
        self._root.execute("SET GLOBAL errors_as_json = true")
        self._numbers = itertools.count(1)
        self._attached: str | None = None
        # Set by whoever creates a view in a session: it is not used for another.
        self.has_views = False

    def confine(self, root: Path, limits: QueryLimits) -> None:
        """Leave it nothing but one folder and its limits, for good."""
        folder = str(root.absolute())
        # DuckDB gets paths with their glob characters escaped, and opens them without.
        allowed = sorted({folder + "/", escape_glob(folder) + "/"})
        for setting in (
            f"threads = {limits.threads}",
            f"memory_limit = '{limits.memory_mb}MiB'",
            f"temp_directory = {quote_text(str(limits.spill_path or ''))}",
            f"allowed_directories = [{', '.join(map(quote_text, allowed))}]",
            "enable_external_access = false",
            "lock_configuration = true",
        ):
            self._root.execute(f"SET GLOBAL {setting}")

    @contextmanager
    def session(self) -> Iterator[Any]:
        """Yield a cursor whose schema `lake` is empty; views in it are gone afterwards."""
        # A schema of the session may have any name of a namespace, and no namespace has this name.
        cursor = self._root.cursor()
        try:
            if self._attached is None:
                self._attached = quote_name(f"query {next(self._numbers)}")
                cursor.execute(f"ATTACH ':memory:' AS {self._attached}")
                cursor.execute(f"CREATE SCHEMA {self._attached}.lake")
            cursor.execute(f"USE {self._attached}")
            yield cursor
        finally:
            if self.has_views:
                cursor.execute("USE memory")
                cursor.execute(f"DETACH DATABASE IF EXISTS {self._attached}")
                self._attached, self.has_views = None, False
            cursor.close()

    def close(self) -> None:
        """Release the memory; a second call does nothing."""
        self._root.close()
