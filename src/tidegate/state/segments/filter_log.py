"""The hashes of a filter that is growing: takes them as they are added, gives all of them once more.

A filter that has too many pages is made anew as one, from all hashes that it has. Reading them from RocksDB
costs five times as much as reading them here. The file has no name and is never synced: nothing depends on
it, and it goes with the worker. It is kept while keys are few, for they are what is made anew most often.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tidegate.errors import InvariantBroken
from tidegate.state.segments.bloom import Hashes
from tidegate.state.segments.filter_page import write_all

# 64 MB of disk; beyond, a filter grows by millions of keys before it is made anew.
LOG_KEYS_MAX = 8_000_000
CHUNK_BYTES = 1 << 20
HASH_BYTES = 8

log = logging.getLogger(__name__)


class HashLog:
    """All hashes of a filter since it was empty, in their order; useless as soon as it lacks one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Without a buffer: what the disk refuses is known at once, not when all are wanted.
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - open as long as we are
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
            write_all(self._file.fileno(), np.ascontiguousarray(hashes, np.uint64).tobytes())
        except OSError as problem:
            log.info("the hashes in %s will be read from its keys: %s", self._folder, problem)
            self.close()

    def chunks(self) -> Iterator[Hashes]:
        """Give all hashes, some at a time; left in the middle, it changes nothing."""
        # By place: the file's own position stays at its end, where the next hashes go.
        for start in range(0, self._count * HASH_BYTES, CHUNK_BYTES):
            wanted = min(CHUNK_BYTES, self._count * HASH_BYTES - start)
            content = os.pread(self._file.fileno(), wanted, start)
            if len(content) != wanted:
                raise InvariantBroken(reason=f"the hashes in {self._folder} end at {start + len(content)}")
            yield np.frombuffer(content, np.uint64)

    def close(self) -> None:
        """Let go of the file."""
        self._is_whole = False
        self._file.close()
