"""Random walks over restarts: other parallelisms, batches cut off in the middle, old tasks that run on.

`python -m tests.checkpoint.rescale_walk --seeds 200` takes long; the tests take a few seeds. What Spark would
commit is compared with a run that nobody disturbed, batch by batch, and the state at the end.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from tests.checkpoint.checkpoints import OPERATOR, Job
from tidegate.checkpoint import epochs
from tidegate.checkpoint.batch import open_batch
from tidegate.checkpoint.savepoints import savepoint
from tidegate.checkpoint.settings import BatchRequest
from tidegate.errors import BatchTaken, StateMismatch

WORDS = [f"word-{number}" for number in range(60)]


def words_of(batch: int, count: int = 80) -> list[str]:
    """Return the rows of a batch, which are the same whoever asks."""
    return random.Random(batch).choices(WORDS, k=count)


def model(batches: int) -> Counter[str]:
    """Return the counts after so many batches."""
    return Counter(word for batch in range(batches) for word in words_of(batch))


def expected(batch: int) -> dict[str, int]:
    """Return what a batch gives out: the counts of its words after it."""
    counts = model(batch + 1)
    return {word: counts[word] for word in words_of(batch)}


class Walk:
    """One query with restarts; `turns` are drawn from the seed."""

    def __init__(self, root: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.root = root
        self.job = Job(root)
        self.batch = 0
        self.old_tasks: list[BatchRequest] = []
        self.seen = epochs.NONE_SEEN
        self.parallelism = 1
        self.restarts = 0

    def restart(self) -> None:
        """Start the query again, mostly with another number of instances."""
        known = epochs.list_epochs(self.job.store)
        self.seen = known[-1].number if known else epochs.NONE_SEEN
        self.parallelism = self.rng.randint(1, 5)
        self.restarts += 1
        if self.rng.random() < 0.2:
            shutil.rmtree(self.root / "local", ignore_errors=True)

    def step(self) -> None:
        """Do a batch: to its end, or up to some task; in both cases Spark may be killed before it commits."""
        partitions = self.rng.sample(range(self.parallelism), self.parallelism)
        done = len(partitions) if self.rng.random() < 0.6 else self.rng.randrange(len(partitions))
        found: list[tuple[str, int]] = []
        try:
            for partition in partitions[:done]:
                self._old_task()
                found += self._task(self.job.ask(partition, self.parallelism, self.batch, self.seen))
        except StateMismatch:
            # A task of a run that never came to its first epoch made it now: the newer run must start again.
            self.restart()
            return
        self.old_tasks += [
            self.job.ask(partition, self.parallelism, self.batch + self.rng.randrange(2), self.seen)
            for partition in self.rng.sample(range(self.parallelism), 1)
        ]
        if done < self.parallelism or self.rng.random() < 0.3:
            self.restart()
            return
        assert len(dict(found)) == len(found), "a row was given out twice"
        assert dict(found) == expected(self.batch), f"batch {self.batch}"
        self.batch += 1
        self.job.clock.advance(seconds=1)

    def finish(self) -> None:
        """Compare the state at the end, here and from a savepoint of it."""
        self.restart()
        asked = [self.job.ask(i, self.parallelism, self.batch, self.seen) for i in range(self.parallelism)]
        assert dict(row for one in asked for row in self._task(one)) == expected(self.batch)
        self.batch += 1
        self.restart()
        made = savepoint.make(self.job.checkpoint, OPERATOR, "end", self.job.clock)
        assert made.batch == self.batch - 1
        second = Job(self.root, checkpoint="second")
        second.savepoint = str(savepoint.path_of(self.job.checkpoint, OPERATOR, "end"))
        assert second.counts(self.rng.randint(1, 5), 0) == model(self.batch)
        assert self.job.counts(self.parallelism, self.batch) == model(self.batch)

    def _task(self, asked: BatchRequest) -> list[tuple[str, int]]:
        """Run a task as Spark does: one that lost to another attempt is tried again."""
        try:
            return self.job.task(asked, words_of(asked.number))
        except BatchTaken:
            again = self.job.ask(asked.partition, asked.parallelism, asked.number, asked.seen_epoch)
            return self.job.task(again, words_of(asked.number))

    def _old_task(self) -> None:
        """Let a task of an earlier run go on, which may be refused and must not change anything.

        Spark never runs a batch before it committed the one before, in no run, so none gets ahead.
        """
        if not self.old_tasks or self.rng.random() < 0.5:
            return
        asked = self.old_tasks.pop(self.rng.randrange(len(self.old_tasks)))
        if asked.number > self.batch:
            return
        try:
            with open_batch(asked, self.job.settings, self.job.clock) as opened:
                if not opened.replayed:
                    self.job.count(asked, opened, words_of(asked.number))
        except (StateMismatch, BatchTaken):
            pass


def walk(root: Path, seed: int, steps: int) -> Walk:
    """Take one walk; an assertion names what differs."""
    found = Walk(root, seed)
    for _ in range(steps):
        found.step()
    found.finish()
    return found


def main() -> None:
    """Walk with many seeds, each printed before it is taken."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=40)
    asked = parser.parse_args()
    for seed in range(asked.first, asked.first + asked.seeds):
        print(f"seed {seed}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            found = walk(Path(folder), seed, asked.steps)
            print(f"  {found.batch} batches, {found.restarts} restarts", flush=True)


if __name__ == "__main__":
    main()
