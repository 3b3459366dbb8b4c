"""A consumer that is killed again and again: never a duplicate through, never a first occurrence lost."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.dedup import consumer
from tests.dedup.consumer import POINTS, consume, source

pytestmark = pytest.mark.crash

# So long a consumer lives at most when it is killed from outside.
LIFE_SECONDS_MAX = 0.3


def forwarded(folder: Path) -> list[int]:
    """Return the offsets that were forwarded; one that was delivered again may be there twice."""
    return sorted({int(line) for line in (folder / "journal").read_text().splitlines()})


def check_forwarded(folder: Path, seed: int) -> None:
    """Compare with the source: of each key one message in each wave, which is shorter than the retention."""
    messages = source(seed)
    given = [(messages[offset].key, messages[offset].wave) for offset in forwarded(folder)]
    assert len(given) == len(set(given)), f"seed {seed}: a duplicate came through"
    assert set(given) == {(message.key, message.wave) for message in messages}, f"seed {seed}: one was lost"


def drive(folder: Path, seed: int, kills: int) -> int:
    """Run consumers that are killed, and then one that is not; give how many were killed."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([consumer.__name__])
    chance = random.Random(seed)
    points = list(POINTS)
    chance.shuffle(points)
    killed = 0
    for turn in range(kills + 1):
        point = points[turn % len(points)] if turn < kills and turn % 3 < 2 else None
        child = forks.Process(target=consume, args=(str(folder), seed, turn, point))
        child.start()
        if turn < kills and point is None:
            time.sleep(chance.uniform(0, LIFE_SECONDS_MAX))
            if child.pid is not None and child.is_alive():
                os.kill(child.pid, signal.SIGKILL)
        child.join()
        assert child.exitcode in (0, -9), f"seed {seed}, turn {turn}, {point}"
        killed += child.exitcode == -9
        if chance.random() < 0.2:
            shutil.rmtree(folder / "local", ignore_errors=True)
    assert child.exitcode == 0
    return killed


def test_killed_consumers_forward_each_first_occurrence_and_no_duplicate(tmp_path: Path) -> None:
    """Case 20, in a loop of kills -9 of real consumers, some of which lose their disk."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    killed = drive(tmp_path, seed, kills=7)
    assert killed
    check_forwarded(tmp_path, seed)
