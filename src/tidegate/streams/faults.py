"""Faults: takes what the disk said, gives our error with a hint that fits what was asked of it."""

from __future__ import annotations

from tidegate.errors import StorageFailed, StorageFull
from tidegate.storage.files import is_full

WRITE_HINT = (
    "Nothing of this write was stored. Rows that were acknowledged before are kept in memory and written "
    "again once the disk takes them; reads go on."
)
KEPT_HINT = "Rows that were acknowledged are kept in memory and written again once the disk takes them."
CLOSE_HINT = "Rows that were acknowledged within the last flush interval may not be in their files."
LOOK_HINT = "Nothing was changed. Look at what lies at this place, and at the disk."
EVICT_HINT = "Nothing is lost, and rows that are over are not given. It is tried again in the next round."
DROP_HINT = "The table is gone all the same; what it left is taken away at the next start."


def fault_of(problem: OSError, path: str, free_bytes: int, hint: str) -> StorageFull | StorageFailed:
    """Give our error for what the disk refused."""
    if is_full(problem):
        return StorageFull(path=path, free_bytes=free_bytes)
    return StorageFailed(path=path, reason=problem.strerror or str(problem), hint=hint)
