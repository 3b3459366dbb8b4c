"""The setup of a Python worker of Spark: frozen garbage collection, and local stores closed at its end.

Spark has a worker collect garbage after each task. With numpy, Arrow and RocksDB loaded that takes some
40 ms, to find nothing; frozen, what is loaded is not scanned again.

Spark ends its workers by a signal (SIGHUP). Local stores that are kept open are closed first: the next worker
finds them complete, and need not check or restore anything.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from types import FrameType

from tidegate.checkpoint.local.pool import pool

# A local store flushes its memtables in a second or two; a worker must end all the same.
CLOSING_SECONDS_MAX = 10.0

_PREPARED: set[int] = set()


def prepare_worker() -> None:
    """Freeze what this worker has loaded, at its first task; a forked worker does it again."""
    if os.getpid() in _PREPARED:
        return
    _PREPARED.add(os.getpid())
    gc.collect()
    gc.freeze()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, _close_and_exit)


def _close_and_exit(_number: int, _frame: FrameType | None) -> None:
    """End this worker as the signal would, after closing its local stores."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # In a thread of its own: this one may hold the lock of the pool.
    closing = threading.Thread(target=pool().close, name="state-closing", daemon=True)
    closing.start()
    closing.join(CLOSING_SECONDS_MAX)
    os.kill(os.getpid(), signal.SIGHUP)
