"""Lending a copy: takes a copy that is open here and a line, does what the borrower asks of it.

Spark gives a partition's next task to whichever Python worker is free, mostly to another one than before. To
close the copy here and open it there would write its memory out and begin with empty caches, batch after
batch. So the worker that has it open lends it: the borrower asks over a line, and everything else about the
batch happens at the borrower's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from tidegate.checkpoint.backend import Backend, Changes, Version
from tidegate.checkpoint.local.ipc import Line, LineLost
from tidegate.errors import TidegateError

log = logging.getLogger(__name__)

# In the first message; workers that speak otherwise do not lend to each other.
LANGUAGE = 2
# What a borrower says at the end: the copy stays open here, or is closed for the next one who claims it.
KEEP = "keep"
GIVE_UP = "give_up"


def _page(backend: Backend, start: bytes, stop: bytes, count_max: int) -> Sequence[Sequence[bytes]]:
    return list(islice(backend.scan(start, stop), count_max))


def _pages(backend: Backend, ranges: Any, count_max: int) -> Sequence[Sequence[Sequence[bytes]]]:
    return backend.pages([(start, stop) for start, stop in ranges], count_max)


def _version(backend: Backend) -> tuple[int, int, str] | None:
    found = backend.version()
    return None if found is None else (found.epoch, found.batch, found.head_id)


def _apply(backend: Backend, ranges: Any, keys: Any, values: Any, version: tuple[int, int, str]) -> None:
    entries = dict(zip(keys, values, strict=True))
    backend.apply(Changes([(start, stop) for start, stop in ranges], entries), Version(*version))


def _snapshot(backend: Backend, folder: str) -> list[str]:
    return [str(path) for path in backend.snapshot(Path(folder))]


def _sizes(backend: Backend) -> tuple[int, int]:
    sizes = backend.sizes()
    return sizes.size_bytes, sizes.entry_count


# All arguments and results are plain values: they go over a line.
CALLS: dict[str, Callable[..., Any]] = {
    "get": lambda backend, key: backend.get(key),
    "get_many": lambda backend, keys: backend.get_many(keys),
    "page": _page,
    "pages": _pages,
    "version": _version,
    "apply": _apply,
    "snapshot": _snapshot,
    "sizes": _sizes,
}


def lend(backend: Backend, line: Line) -> bool:
    """Do what a borrower asks until it says that it is done; say whether the copy may stay open.

    LineLost when the borrower is gone; what it wrote stands with its version, or has none.
    """
    while True:
        name, *arguments = line.receive()
        if name in (KEEP, GIVE_UP):
            return bool(name == KEEP)
        try:
            answer = (True, CALLS[name](backend, *arguments))
        except TidegateError as problem:
            answer = (False, problem.to_wire())
        line.send(answer)


def end_loan(line: Line, *, is_asked: bool) -> None:
    """Tell the borrower that the copy is back in its place, if it waits for that, and hang up."""
    try:
        if is_asked:
            line.send((True, None))
    except LineLost as lost:
        log.info("a borrower left before its loan was ended: %s", lost)
    line.close()
