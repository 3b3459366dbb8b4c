"""Reads of maps: takes entries of maps that are read one by one, gives their values, reads small maps whole.

A scan of a small map costs little more than one point read. So the first read of a key's map in a batch is a
point read, and the second one, of another entry, reads the whole map if it is small.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from tidegate.state.layout import after

if TYPE_CHECKING:
    from tidegate.state.stage import Stage

# A map with more entries is read entry by entry.
WHOLE_ENTRIES_MAX = 64
# What is remembered over all keys: entries of maps that were read whole, and first reads. Beyond it, it goes.
REMEMBERED_MAX = 200_000
# Entries that one batch writes while maps are read whole. A batch that writes more reads entry by entry.
WRITTEN_MAX = 500_000

# Stands for a map that is always read through the stage: it is large, or was cleared in this batch.
_NOT_WHOLE: Final = b""


class MapReads:
    """What the backend holds of small maps, under what this batch has written."""

    __slots__ = ("_count", "_is_off", "_known", "_stage", "_written")

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        # Under each map's prefix: its stored entries; the one entry that was read of it; or _NOT_WHOLE.
        self._known: dict[bytes, dict[bytes, bytes] | bytes] = {}
        self._count = 0
        self._is_off = False
        # Entries that this batch wrote or removed: the stage knows them, also when a failed row was undone.
        self._written: set[bytes] = set()

    def get(self, prefix: bytes, entry: bytes) -> bytes | None:
        """Give the value of an entry of the map under a prefix, as the batch sees it."""
        if self._is_off or entry in self._written:
            return self._stage.get(entry)
        known = self._known.get(prefix)
        if type(known) is dict:
            return known.get(entry)
        if known is None:
            self._remember(prefix, entry, 1)
        elif known != entry and known is not _NOT_WHOLE:
            return self._read_whole(prefix, entry)
        return self._stage.get(entry)

    def wrote(self, entry: bytes) -> None:
        """Remember that an entry was written or removed."""
        self._written.add(entry)
        if len(self._written) > WRITTEN_MAX:
            self._is_off = True
            self._known.clear()
            self._written.clear()

    def cleared(self, prefix: bytes) -> None:
        """Remember that a map was cleared."""
        self._known[prefix] = _NOT_WHOLE

    def _read_whole(self, prefix: bytes, entry: bytes) -> bytes | None:
        stored = list(islice(self._stage.backend.scan(prefix, after(prefix)), WHOLE_ENTRIES_MAX + 1))
        if len(stored) > WHOLE_ENTRIES_MAX:
            self._known[prefix] = _NOT_WHOLE
            return self._stage.get(entry)
        whole = dict(stored)
        self._remember(prefix, whole, len(whole))
        return whole.get(entry)

    def _remember(self, prefix: bytes, known: dict[bytes, bytes] | bytes, count: int) -> None:
        self._count += count
        if self._count > REMEMBERED_MAX:
            # What was cleared stays known: the backend still holds it.
            self._known = {one: _NOT_WHOLE for one, told in self._known.items() if told is _NOT_WHOLE}
            self._count = count + len(self._known)
        self._known[prefix] = known
