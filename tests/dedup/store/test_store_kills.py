"""A store that is killed in the middle of its work loses no key and makes none up.

`python -m tests.dedup.store.test_store_kills SEEDS` runs longer.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.dedup.store.store_child import (
    FILE_KEYS_MIN,
    make_files_of_few_keys,
    opened,
    remembered,
    stream_us,
    take,
)
from tests.dedup.store.stores import everything
from tests.paths import ROOT
from tidegate.checkpoint.keys.layout import META_GROUP
from tidegate.dedup.store import segment

BATCHES = 24
PAUSE_SECONDS_MAX = 0.01


def run_and_kill(folder: Path, seed: int, drawn: random.Random) -> None:
    """Let a child work on a copy, and kill it while it takes some batch."""
    command = [sys.executable, "-m", "tests.dedup.store.store_child", str(folder), str(seed), str(BATCHES)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        if child.stdout is None:
            raise RuntimeError("the child has no output")
        for _ in range(drawn.randrange(1, 8)):
            child.stdout.readline()
        time.sleep(drawn.random() * PAUSE_SECONDS_MAX)
        child.kill()


def check(folder: Path, seed: int) -> int | None:
    """Open what the kills left, catch it up, and compare all of it; give where it stood."""
    store, first = opened(folder)
    assert store.missing_parts() == []
    for batch in range(first, BATCHES):
        take(store, seed, batch)
    known = remembered(seed, BATCHES)
    store.expire(stream_us(seed, BATCHES - 1))
    assert everything(store, known.times) == known.entries()
    assert len(list(store.scan(b"", META_GROUP))) == len(known.entries())
    store.close()
    return first


def disturb(root: Path, seed: int, kills: int) -> None:
    drawn = random.Random(seed)
    for _ in range(kills):
        run_and_kill(root / "copy", seed, drawn)
    check(root / "copy", seed)


def test_a_store_that_is_killed_again_and_again_loses_no_key_and_makes_none_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "FILE_KEYS_MIN", FILE_KEYS_MIN)
    seed = random.SystemRandom().randrange(1 << 30)
    sys.stdout.write(f"seed {seed}\n")
    disturb(tmp_path, seed, kills=3)


def main(seeds: int) -> None:
    """Disturb a store with so many seeds, each with six kills."""
    make_files_of_few_keys()
    for seed in range(seeds):
        print(f"seed {seed}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            disturb(Path(folder), seed, kills=6)


if __name__ == "__main__":
    main(int(sys.argv[1]))
