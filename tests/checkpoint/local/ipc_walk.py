"""Batches on workers that serve each other and are killed: what comes out equals an undisturbed run.

`python -m tests.checkpoint.local.ipc_walk --seeds N` is the long form. Each batch's partitions go to workers
by chance, at once; now and then one is killed, idle or in the middle of its task, which another one repeats.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.checkpoint.batches import PARALLELISM, Job, Rows, expected, settings
from tidegate.checkpoint.local.pool import pool
from tidegate.errors import BatchTaken, TidegateError

WORKERS = 3
BATCHES = 40
KILL_CHANCE = 0.25
PAUSE_SECONDS_MAX = 0.004


class Worker:
    """Another worker of this machine, which does batches when told and keeps its copies open."""

    def __init__(self, root: Path, changed: dict[str, object], *, spills: bool = False) -> None:
        forks = multiprocessing.get_context("forkserver")
        forks.set_forkserver_preload(["tests.checkpoint.batches"])
        self.line, theirs = forks.Pipe()
        arguments = (str(root), changed, spills, theirs)
        self.child = forks.Process(target=_work, args=arguments, daemon=True)
        self.child.start()
        theirs.close()

    def do(self, batch: int, partition: int = 0) -> Any:
        """Do one task and give what it gave out."""
        self.line.send((batch, partition))
        return self.line.recv()

    def end(self) -> None:
        """Let it end by itself."""
        self.line.close()
        self.child.join()

    def kill(self) -> None:
        """End it in the middle of whatever it does."""
        if self.child.pid is not None and self.child.is_alive():
            os.kill(self.child.pid, signal.SIGKILL)
        self.child.join()


def _work(root: str, changed: dict[str, object], spills: bool, line: Connection[Any, Any]) -> None:
    job = Job(Path(root), settings(Path(root), **changed), spills=spills)
    while True:
        try:
            asked = line.recv()
        except EOFError:
            return
        try:
            line.send(job.do(*asked))
        except TidegateError as problem:  # Spark would give the task to another worker
            line.send(f"{type(problem).__name__}: {problem}")


@dataclass
class Walk:
    """One seed's walk: the workers, and what was done to them."""

    root: Path
    seed: int
    kind: str
    kills: int = 0
    failed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.spills = self.draw.random() < 0.3
        self.changed: dict[str, object] = {
            "backend": self.kind,
            "snapshot_every_batches": self.draw.choice([3, 100]),
            "lock_wait_ms_max": 5_000,
        }
        self.workers = [self._started() for _ in range(WORKERS)]

    def run(self, batches: int) -> list[str]:
        """Do the batches; give what differs from an undisturbed run."""
        given = [self._batch(number) for number in range(batches)]
        for worker in self.workers:
            worker.kill()
        rows, counts = expected(batches)
        faults = [
            f"batch {number} gave {given[number]}, not {rows[number]}"
            for number in range(batches)
            if given[number] != rows[number]
        ]
        found = Job(self.root, settings(self.root, **self.changed)).counts(batches)
        pool().close()
        return faults + ([f"counts are {found}, not {counts}"] if found != counts else [])

    def _started(self) -> Worker:
        return Worker(self.root, self.changed, spills=self.spills)

    def _batch(self, number: int) -> Rows:
        given: dict[int, Rows] = {}
        while len(given) < PARALLELISM:
            left = [partition for partition in range(PARALLELISM) if partition not in given]
            chosen = dict(zip(left, self.draw.sample(range(WORKERS), len(left)), strict=True))
            for partition, place in chosen.items():
                if not self.workers[place].child.is_alive():
                    self.workers[place] = self._started()
                self.workers[place].line.send((number, partition))
            if self.draw.random() < KILL_CHANCE:
                time.sleep(self.draw.random() * PAUSE_SECONDS_MAX)
                self._kill(self.draw.randrange(WORKERS))
            for partition, place in chosen.items():
                told = self._told(place)
                if isinstance(told, list):
                    given[partition] = told
        return [row for partition in range(PARALLELISM) for row in given[partition]]

    def _told(self, place: int) -> Any:
        try:
            told = self.workers[place].line.recv()
        except (EOFError, OSError):
            return None
        if isinstance(told, str):
            self.failed.append(told)
            if not told.startswith((BatchTaken.__name__, "StorageFailed")):
                raise AssertionError(f"seed {self.seed}: {told}")
        return told

    def _kill(self, place: int) -> None:
        self.kills += 1
        self.workers[place].kill()


def main() -> None:
    """Walk many seeds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=random.SystemRandom().randrange(10**6))
    asked = parser.parse_args()
    for seed in range(asked.first, asked.first + asked.seeds):
        for kind in ("rocksdb", "heap"):
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                walk = Walk(Path(folder), seed, kind)
                faults = walk.run(BATCHES)
                print(f"seed {seed}, {kind}: {walk.kills} kills, {len(walk.failed)} tasks failed", flush=True)
                if faults:
                    raise SystemExit("\n".join(faults))


if __name__ == "__main__":
    main()
