"""Restarts and expiry: what comes between a kill -9 and the first batch that is done after it.

The query runs in a process of its own, which is killed with its JVM and its Python workers while a batch is
under way. It is started again with the same local copies (warm), with none (cold), and with those of a
standby that followed the checkpoint from elsewhere. The start of Spark's session is taken apart.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from time import perf_counter
from typing import IO, Any

from benchmarks.dedup.copies import Copies, settings
from benchmarks.dedup.rows import NAME, RETENTION, DedupStream, Sizes, ours, totals
from benchmarks.state.stream import ROOT, drop_file_cache
from benchmarks.table import Row, milliseconds, times
from benchmarks.workers import kill_tree, kill_workers

FOLLOW_SECONDS = 0.2
KILL_AFTER_SECONDS = 0.4  # in the middle of a batch
BATCH_SECONDS_MAX = 300.0
KAFKA_COLD = "25.8 s for 4 M"
KAFKA_WARM_SECONDS = 66.0
# Of a stream that goes on for so much longer only one segment is filled.
ONE_SEGMENT_SHARE = 10


def restarts(spark: Any, folder: Path, sizes: Sizes) -> list[Row]:  # noqa: ARG001 - Spark in another process
    """Measure warm, cold and standby starts of one query."""
    stream = DedupStream(None, folder / "restarts", ours(), sizes.restart_keys)
    here, elsewhere, second = (Path(tempfile.mkdtemp(dir=folder)) for _ in range(3))
    with Driver(stream, here) as driver:
        driver.work_until(sizes.restart_keys, min(sizes.batch_rows, sizes.restart_keys))
        stream.add_new(sizes.batch_rows)
        time.sleep(KILL_AFTER_SECONDS)
    with Driver(stream, here) as driver:
        warm = driver.first_batch()
        driver.work_until(stream.given, 0)
    drop_file_cache(stream.checkpoint)
    stream.add_new(sizes.restart_rows)
    with Driver(stream, elsewhere) as driver:
        cold = driver.first_batch()
        with _Following(stream.checkpoint, second) as following:
            following.wait()
            stream.add_new(sizes.batch_rows)
            driver.work_until(stream.given, 0)
            stream.add_new(sizes.batch_rows)
            time.sleep(KILL_AFTER_SECONDS)
            driver.kill()
            following.stop()
            with Driver(stream, second) as other:
                taken_over = other.first_batch()
                other.work_until(stream.given, 0)
    seen = totals(stream.checkpoint)
    assert seen["unique"] == stream.given, f"{seen} instead of {stream.given} unique rows"
    stream.forget()
    return _rows(sizes, warm, cold, taken_over)


def _rows(
    sizes: Sizes, warm: tuple[float, float], cold: tuple[float, float], taken_over: tuple[float, float]
) -> list[Row]:
    keys = f"{sizes.restart_keys:,} keys"
    return [
        Row(
            f"kill -9 to the first batch done, warm, {keys}; peer: Kafka Streams, measured apart",
            _text(warm),
            f"{KAFKA_WARM_SECONDS:.0f} s",
            times(KAFKA_WARM_SECONDS, sum(warm)),
            "≤ 15 s",
        ),
        Row(
            f"the same, cold: no local copy, {keys}; peer: Kafka Streams, measured apart",
            _text(cold),
            KAFKA_COLD,
            "–",
            "≤ 20 s",
        ),
        Row(
            f"the same, a standby takes over, {keys}; peer: cold",
            _text(taken_over),
            _text(cold),
            times(sum(cold), sum(taken_over)),
            "≤ 30 s",
        ),
    ]


def _text(took: tuple[float, float]) -> str:
    session_seconds, rest = took
    return f"{sum(took):.1f} s ({session_seconds:.1f} s of it Spark's session, {rest:.1f} s to the batch)"


def expiry(spark: Any, folder: Path, sizes: Sizes) -> list[Row]:
    """Measure how long the removal of a full segment takes, all partitions one after the other."""
    local = Path(tempfile.mkdtemp(dir=folder))
    keys = sizes.restart_keys
    stream = DedupStream(spark, folder / "expiry", ours(local_dir=str(local)), keys * ONE_SEGMENT_SHARE)
    stream.grow(keys, min(sizes.load_rows, keys))
    kill_workers(spark)
    took = 0.0
    with Copies(stream.checkpoint, local) as copies:
        facts = copies.segments()
        numbers = {one.number for one in facts}
        assert len(numbers) == 1, f"the keys lie in the segments {numbers}"
        assert sum(one.keys for one in facts) == keys, "not every key is there"
        newest_us = max(one.newest_us for one in facts)
        for store in copies.stores:
            began = perf_counter()
            gone = store.expire(newest_us + 3 * store.rule.retention_us)
            took += perf_counter() - began
            assert set(gone) == numbers, f"{gone} went instead of {numbers}"
    left = [path.name for path in local.rglob(f"{NAME}.*") if path.is_dir()]
    assert not left, f"{left} are still there"
    stream.forget()
    name = f"removal of a segment of {keys:,} keys, retention {RETENTION}"
    return [Row(name, milliseconds(took), "–", "–", "≤ 200 ms")]


class Driver:
    """The process of a query; at the end it is killed with all that it started."""

    def __init__(self, stream: DedupStream, local: Path) -> None:
        self._stream = stream
        self._began = perf_counter()
        command = [sys.executable, "-m", "benchmarks.dedup.driver", str(stream.folder), str(local)]
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        self._lines = _Lines(self._child.stdout)
        self._is_alive = True

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill the whole query with -9."""
        if self._is_alive:
            self._is_alive = False
            if self._child.poll() is None:
                kill_tree(self._child.pid)
            self._child.wait()

    def first_batch(self) -> tuple[float, float]:
        """Return the seconds from the start of the process to Spark's session, and on to the first batch."""
        session = self._lines.wait("session")
        batch = self._lines.wait("batch")
        return session - self._began, batch - session

    def work_until(self, keys: int, rows: int) -> None:
        """Add batches of so many rows up to so many keys, and wait until all is done."""
        while self._stream.given < keys:
            self._stream.add_new(min(rows, keys - self._stream.given))
            # The next rows are made while the last ones are worked on, and not far ahead of them.
            self._wait_done(self._stream.given - 2 * rows)
        self._wait_done(keys)

    def _wait_done(self, keys: int) -> None:
        """Wait until the heads say that so many keys are through."""
        deadline = perf_counter() + BATCH_SECONDS_MAX
        while keys > 0 and _done(self._stream.checkpoint) < keys:
            if perf_counter() > deadline or self._child.poll() is not None:
                raise RuntimeError(f"{_done(self._stream.checkpoint)} of {keys} keys came through")
            time.sleep(FOLLOW_SECONDS)


class _Lines:
    """Reads what a process says, and notes when it said it."""

    def __init__(self, stream: IO[str] | None) -> None:
        assert stream is not None
        self._stream, self._said = stream, list[tuple[str, float]]()
        self._changed = threading.Condition()
        self._is_over = False
        threading.Thread(target=self._read, daemon=True).start()

    def wait(self, word: str) -> float:
        """Return when a line with this word first came."""

        def found() -> list[float]:
            return [at for line, at in self._said if line.startswith(word)]

        with self._changed:
            self._changed.wait_for(lambda: bool(found()) or self._is_over, BATCH_SECONDS_MAX)
            if not found():
                raise RuntimeError(f"the query never said {word}")
            return found()[0]

    def _read(self) -> None:
        for line in self._stream:
            with self._changed:
                self._said.append((line, perf_counter()))
                self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()


def _done(checkpoint: Path) -> int:
    """Return how many unique keys the newest heads have; none before the first batch is done."""
    try:
        return totals(checkpoint).get("unique", 0)
    except (IndexError, ValueError):
        return 0


class _Following:
    """A standby of every partition in this process, which follows until it is left."""

    def __init__(self, checkpoint: Path, local: Path) -> None:
        from tidegate.checkpoint.standby import Standby
        from tidegate.model.clock import SystemClock

        found = settings(checkpoint, local)
        self._standbys = [Standby(checkpoint, NAME, p, found, SystemClock()) for p in range(2)]
        self._over, self._is_current = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Following:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        from tidegate.checkpoint.local.pool import pool

        self.stop()
        pool().close()

    def stop(self) -> None:
        """Follow no more; the copies stay here until somebody asks for them."""
        self._over.set()
        self._thread.join()

    def wait(self) -> None:
        """Wait until the copies are at the newest batch."""
        if not self._is_current.wait(BATCH_SECONDS_MAX):
            raise RuntimeError("the standby never caught up")

    def _run(self) -> None:
        while not self._over.wait(FOLLOW_SECONDS):
            for standby in self._standbys:
                standby.follow()
            self._is_current.set()
