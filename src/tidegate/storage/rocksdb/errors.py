"""The errors of RocksDB as errors of Tidegate.

rocksdict raises plain Exception with RocksDB's text ("IO error: …", "Corruption: …"), so that failures can
only be distinguished by their texts.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from rocksdict import DbClosedError

from tidegate.errors import InvariantBroken, StorageCorrupt, StorageFailed, StorageFull, TidegateError
from tidegate.storage.rocksdb.wal import locate_damage

READ_HINT = "Try again; if it persists, look at the disk and at the LOG file in that folder."
OPEN_HINT = "Look at the disk and at the LOG file in that folder, then start again."
LOCK_HINT = "One process holds a store at a time. Stop the other one first."

_FILE = re.compile(r"\S*?(\d+\.(?:sst|log|blob)|MANIFEST-\d+|CURRENT)\b")
_NO_SPACE = ("No space left on device", os.strerror(errno.EDQUOT))
_LOCKED = re.compile(r"/LOCK: (No locks available|Resource temporarily unavailable)")


def read_fault(fault: Exception, path: Path) -> TidegateError:
    """Return the error for a read that failed."""
    return _closed(fault) or _corrupt(fault, path) or _failed(fault, path, READ_HINT)


def write_fault(fault: Exception, path: Path, free_bytes: int) -> TidegateError:
    """Return the error for a batch that was not applied."""
    text = str(fault)
    if _is_full(text):
        return StorageFull(path=str(path), free_bytes=free_bytes)
    if "already consumed" in text or text.startswith("Invalid argument"):
        return InvariantBroken(reason=f"RocksDB refused a batch: {text}")
    return _closed(fault) or _corrupt(fault, path) or _failed(fault, path, None)


def sync_fault(fault: Exception, path: Path) -> TidegateError:
    """Return the error for a sync that failed: never StorageFull, since what it was to sync is visible."""
    return _closed(fault) or _corrupt(fault, path) or _failed(fault, path, None)


def open_fault(fault: Exception, path: Path, free_bytes: int) -> TidegateError:
    """Return the error for a store that does not open."""
    text = str(fault)
    if _is_full(text):
        return StorageFull(path=str(path), free_bytes=free_bytes)
    locked = _LOCKED.search(text)
    if locked:
        holder = "this process" if locked[1].startswith("No locks") else "another process"
        return StorageFailed(path=str(path), reason=f"{holder} has it open", hint=LOCK_HINT)
    return _corrupt(fault, path) or _failed(fault, path, OPEN_HINT)


def _is_full(text: str) -> bool:
    return any(sign in text for sign in _NO_SPACE)


def _closed(fault: Exception) -> TidegateError | None:
    if isinstance(fault, DbClosedError):
        return InvariantBroken(reason="the engine is closed")
    if isinstance(fault, KeyError):
        return InvariantBroken(reason=f"keys and values of the engine are bytes: {fault}")
    return None


def _corrupt(fault: Exception, path: Path) -> TidegateError | None:
    text = str(fault)
    if not text.startswith("Corruption"):
        return None
    named = _FILE.search(text)
    if named:
        return StorageCorrupt(place=str(path / named[1]), reason=text)
    # A damaged log is reported without its name: find it, so that the error names the file to restore.
    found = locate_damage(path)
    if found is None:
        return StorageCorrupt(place=str(path), reason=text)
    return StorageCorrupt(place=str(found[0]), reason=f"{text} (record at byte {found[1]})")


def _failed(fault: Exception, path: Path, hint: str | None) -> TidegateError:
    return StorageFailed(path=str(path), reason=str(fault), hint=hint)
