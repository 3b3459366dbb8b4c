"""Log files of the children: takes a path, gives a file open for append, keeps the last few."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

LOG_BYTES_MAX = 10_000_000  # a log that is longer at a start is put aside
LOG_FILES_KEPT = (
    5  # the one that is written and four older ones: 50 MB for each child at most, and one run more
)
ERROR_TAIL_BYTES_MAX = 64_000  # an error is looked for in this much of the end of a log


def open_log(path: Path) -> BinaryIO:
    """Open a log for append; one that is full becomes `<name>.1`, and the oldest is dropped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
        rotate(path)
    return path.open("ab", buffering=0)


def rotate(path: Path) -> None:
    """Move `<name>` to `<name>.1`, `.1` to `.2` and so on; the last one is overwritten."""
    for number in range(LOG_FILES_KEPT - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        newer = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
        if newer.exists():
            newer.replace(older)


def read_since(path: Path, start: int) -> str:
    """Give what was written after byte `start`, the last part of it when it is long."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(start, size - ERROR_TAIL_BYTES_MAX))
        return file.read().decode("utf-8", errors="replace")
