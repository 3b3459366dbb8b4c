"""The processes behind a Spark session: what they cost, and how they die.

Spark keeps its Python workers from one query to the next, and ours keep copies of state open in them. A query
that is started again in the same session therefore finds what no restart would leave it; to measure a restart
the workers have to be killed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import psutil

from tidegate.pipeline.worker.spark_session import jvm_of

GONE_SECONDS_MAX = 20.0


def kill_workers(spark: Any) -> int:
    """Kill the Python workers of a session's JVM with -9; say how many.

    No query may run meanwhile. The daemon that forks them stays: it holds nothing, and without it Spark's
    next task would fail once.
    """
    found = psutil.Process(jvm_of(spark).pid).children(recursive=True)
    parents = {child.ppid() for child in found}
    workers = [child for child in found if child.pid not in parents]
    _killed(workers)
    return len(workers)


def kill_tree(pid: int) -> int:
    """Kill a process and all that it started, with -9, at once; say how many."""
    root = psutil.Process(pid)
    found = [root, *root.children(recursive=True)]
    _killed(found)
    return len(found)


def _killed(found: Iterable[psutil.Process]) -> None:
    chosen = list(found)
    for child in chosen:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(chosen, GONE_SECONDS_MAX)


class CpuMeter:
    """Adds up the CPU seconds of this process, a session's JVM and its Python workers, ended ones too."""

    def __init__(self, spark: Any) -> None:
        self._jvm_pid = jvm_of(spark).pid
        self._before = self._seconds()

    def seconds(self) -> float:
        """Return the CPU seconds since the meter was made."""
        return self._seconds() - self._before

    def _seconds(self) -> float:
        jvm = psutil.Process(self._jvm_pid)
        own = psutil.Process(os.getpid()).cpu_times()
        total = float(own.user + own.system)
        for one in (jvm, *jvm.children(recursive=True)):
            try:
                used = one.cpu_times()
            except psutil.NoSuchProcess:
                continue
            # What a child took that has ended and was waited for stands with its parent.
            total += used.user + used.system + used.children_user + used.children_system
        return total


def workers_uss_mb(spark: Any) -> float:
    """Return what the Python workers of a session hold together, in MB; shared memory is left out."""
    held = 0
    for child in psutil.Process(jvm_of(spark).pid).children(recursive=True):
        try:
            held += child.memory_full_info().uss
        except psutil.NoSuchProcess:
            continue
    return held / 1e6
