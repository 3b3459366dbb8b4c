"""The upgrade of a home to the layout of this version, after a complete copy of it.

    1. both locks: no other process, of whatever version, works in the home
    2. kept/layout-1-<time>/: a home that the old version opens, copied under another name and renamed
    3. what the new layout adds
    4. layout.json, last

A kill at any step leaves a home of the old layout; the next start begins again at step 1. Files that are
never changed in place (RocksDB's tables, Parquet, Delta's log) are shared with the copy by hard links, so
the copy takes little room; everything else is copied.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from tidegate.model.clock import Clock
from tidegate.storage.files import copy_file, link_or_copy, sync_tree
from tidegate.storage.home.locks import LEAVING_HOLDER_WAIT_SECONDS, take_lock

COPIES_FOLDER = "kept"
PARTIAL = ".partial"
# What belongs to running processes, and the copies themselves.
_NOT_COPIED = frozenset({COPIES_FOLDER, "run", "locks"})
_IMMUTABLE = re.compile(r"\.sst$|\.parquet$|^\d{20}\.json$|^\d{20}\.checkpoint\.")

log = logging.getLogger(__name__)


def upgrade_home(
    path: Path, target_layout: int, clock: Clock, layout_of: Callable[[], int], finish: Callable[[], None]
) -> None:
    """Copy a home, then let `finish` convert it to the target layout.

    HomeLocked while a server or a worker runs there. `layout_of` is called again under the locks: another
    start may have done the upgrade.
    """
    server = take_lock(path, "server", LEAVING_HOLDER_WAIT_SECONDS)
    try:
        worker = take_lock(path, "worker", LEAVING_HOLDER_WAIT_SECONDS)
        try:
            before = layout_of()
            if before >= target_layout:
                return
            copy = copy_home(path, f"layout-{before}", clock)
            log.info("home copied before its upgrade layout=%d copy=%s", before, copy)
            finish()
        finally:
            worker.release()
    finally:
        server.release()


def copy_home(home: Path, name: str, clock: Clock) -> Path:
    """Copy a home into its folder `kept`; return the path of the copy."""
    copies = home / COPIES_FOLDER
    copies.mkdir(exist_ok=True, mode=0o700)
    for left in copies.glob(f"*{PARTIAL}"):
        shutil.rmtree(left)
    stamp = datetime.fromtimestamp(clock.now_us() / 1_000_000, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    target = copies / f"{name}-{stamp}"
    partial = target.with_name(target.name + PARTIAL)
    try:
        _copy_tree(home, partial)
        sync_tree(partial)
        partial.rename(target)
        sync_tree(copies)
    except OSError:
        with contextlib.suppress(OSError):  # the next start removes what is left
            shutil.rmtree(partial)
        raise
    return target


def _copy_tree(home: Path, target: Path) -> None:
    target.mkdir(mode=0o700)
    for name in sorted(_NOT_COPIED - {COPIES_FOLDER}):
        (target / name).mkdir(mode=0o700)
    for folder, folders, names in os.walk(home, followlinks=True):
        inside = Path(folder).relative_to(home)
        if inside == Path():
            folders[:] = [entry for entry in folders if entry not in _NOT_COPIED]
        for entry in folders:
            (target / inside / entry).mkdir(mode=0o700)
        for entry in names:
            copy = link_or_copy if _IMMUTABLE.search(entry) else copy_file
            copy(Path(folder) / entry, target / inside / entry)
