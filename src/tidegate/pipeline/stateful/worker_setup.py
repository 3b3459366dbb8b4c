"""A Python worker that settles in: what it has loaded is kept out of collections, and its copies are closed.

Spark has a worker collect garbage after each task. With numpy, Arrow and RocksDB loaded that takes some
40 ms, to find nothing; frozen, what is loaded is not looked at again.

Spark ends its workers by a signal (SIGHUP). Copies of state that are kept open are closed first: the next
worker finds them whole, and need not check or build anything anew.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from types import FrameType

from tidegate.checkpoint.local.pool import pool

# A copy writes its memtables out in a second or two; a worker must end all the same.
CLOSING_SECONDS_MAX = 10.0

_PREPARED: set[int] = set()


def prepare_worker() -> None:
    """Freeze what this worker has loaded, at its first task; a fork of it does so anew."""
    if os.getpid() in _PREPARED:
        return
    _PREPARED.add(os.getpid())
    gc.collect()
    gc.freeze()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, _close_and_exit)


def _close_and_exit(_number: int, _frame: FrameType | None) -> None:
    """End this worker as the signal would, once its copies are closed."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # In a thread of its own: this one may hold the pool's lock just now.
    closing = threading.Thread(target=pool().close, name="state-closing", daemon=True)
    closing.start()
    closing.join(CLOSING_SECONDS_MAX)
    os.kill(os.getpid(), signal.SIGHUP)
