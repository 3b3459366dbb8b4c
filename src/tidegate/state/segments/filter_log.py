"""The hashes of a filter that is growing: takes them as they are added, gives all of them once more.

A filter that has too many pages is made anew as one, from all hashes that it has. Reading them from RocksDB
costs five times as much as reading them here. The file has no name and is never synced: nothing depends on
it, and it goes with the worker. It is kept while keys are few, for they are what is made anew most often.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tidegate.state.segments.bloom import Hashes

# 64 MB of disk; beyond, a filter grows by millions of keys before it is made anew.
LOG_KEYS_MAX = 8_000_000
CHUNK_BYTES = 1 << 20

log = logging.getLogger(__name__)


class HashLog:
    """All hashes of a filter since it was empty, in their order; useless as soon as it lacks one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - open as long as the filter is
        self._count = 0
        self._is_whole = True

    @property
    def is_whole(self) -> bool:
        """Say whether all hashes that were added can be read."""
        return self._is_whole

    def append(self, hashes: Hashes) -> None:
        """Take hashes; when there is no room for them, or they are too many, nothing is kept any more."""
        if not self._is_whole:
            return
        self._count += len(hashes)
        if self._count > LOG_KEYS_MAX:
            self.close()
            return
        try:
            self._file.write(np.ascontiguousarray(hashes, np.uint64).data)
        except OSError as problem:
            log.info("the hashes in %s will be read from its keys: %s", self._folder, problem)
            self.close()

    def chunks(self) -> Iterator[Hashes]:
        """Give all hashes, some at a time."""
        self._file.seek(0)
        while content := self._file.read(CHUNK_BYTES):
            yield np.frombuffer(content, np.uint64)
        self._file.seek(0, 2)

    def close(self) -> None:
        """Let go of the file."""
        self._is_whole = False
        self._file.close()
