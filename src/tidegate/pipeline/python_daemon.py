"""Spark's Python daemon, which forks its Python workers; quiet when Spark closes the connection to one.

When Spark ends a worker it closes the worker's socket. On a Unix domain socket the worker's last flush then
fails at once, and Spark's daemon prints a traceback for each worker of every orderly stop. There is nobody to
tell and nothing to do: the worker ends, as it does with Spark's own daemon.

Tasks have this module as their daemon. Spark finds and plans Python data sources in workers of a daemon of
its own: `end_quietly` changes such a worker from inside, for the time after its present task.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

SPARK_DAEMON = "pyspark.daemon"


def end_quietly() -> None:
    """Let this process end without a traceback when Spark goes away, if it is a worker of Spark's daemon."""
    main = sys.modules["__main__"]
    if getattr(getattr(main, "__spec__", None), "name", "") == SPARK_DAEMON:
        _replace_worker(main)


def _replace_worker(module: Any) -> None:
    run: Callable[..., int] = module.worker
    if getattr(run, "ends_quietly", False):
        return

    def worker(*arguments: Any) -> int:
        """Run one task; end the worker where Spark has gone away."""
        try:
            return run(*arguments)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(1)

    worker.ends_quietly = True  # type: ignore[attr-defined]
    module.worker = worker


if __name__ == "__main__":
    from pyspark import daemon

    _replace_worker(daemon)
    daemon.manager()
