"""The server end of a remote store: calls of another worker on a store that is open here.

Spark gives a partition's next task to whichever Python worker is free, mostly to another one than before.
Closing the store here and opening it there would write its memory out and begin with empty caches, batch
after batch. So the worker that has it open serves it: the client calls it over a connection, and everything
else about the batch happens at the client.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from tidegate.checkpoint.backend import Backend, StateChanges, Version
from tidegate.checkpoint.local.ipc import Connection, ConnectionLost
from tidegate.errors import TidegateError

log = logging.getLogger(__name__)

# In the first message; workers of another version of the protocol serve each other nothing.
PROTOCOL = 2
# The last message of a client: the store stays open at the server, or is closed for whoever locks it next.
KEEP_OPEN = "keep"
RELEASE = "give_up"


def _page(backend: Backend, start: bytes, stop: bytes, count_max: int) -> Sequence[Sequence[bytes]]:
    return list(islice(backend.scan(start, stop), count_max))


def _pages(backend: Backend, ranges: Any, count_max: int) -> Sequence[Sequence[Sequence[bytes]]]:
    return backend.pages([(start, stop) for start, stop in ranges], count_max)


def _version(backend: Backend) -> tuple[int, int, str] | None:
    found = backend.version()
    return None if found is None else (found.epoch, found.batch, found.commit_id)


def _apply(backend: Backend, ranges: Any, keys: Any, values: Any, version: tuple[int, int, str]) -> None:
    entries = dict(zip(keys, values, strict=True))
    backend.apply(StateChanges([(start, stop) for start, stop in ranges], entries), Version(*version))


def _snapshot(backend: Backend, folder: str) -> list[str]:
    return [str(path) for path in backend.snapshot(Path(folder))]


def _sizes(backend: Backend) -> tuple[int, int]:
    sizes = backend.sizes()
    return sizes.size_bytes, sizes.entry_count


# All arguments and results are plain values: they are sent in messages.
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


def serve(backend: Backend, connection: Connection) -> bool:
    """Serve the calls of a client until its last message, and return whether the store may stay open.

    ConnectionLost when the client is gone; what it wrote has its version, or none.
    """
    while True:
        name, *arguments = connection.receive()
        if name in (KEEP_OPEN, RELEASE):
            return bool(name == KEEP_OPEN)
        try:
            answer = (True, CALLS[name](backend, *arguments))
        except TidegateError as problem:
            answer = (False, problem.to_wire())
        connection.send(answer)


def end_session(connection: Connection, *, is_awaited: bool) -> None:
    """Close the connection, after telling a client that waits for it that the store is back in its pool."""
    try:
        if is_awaited:
            connection.send((True, None))
    except ConnectionLost as lost:
        log.info("client left before its session ended error=%s", lost)
    connection.close()
