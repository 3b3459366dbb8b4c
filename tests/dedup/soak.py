"""Decisions against the model, and kills: `python -m tests.dedup.soak --minutes 10 [--seed 7]`."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from tests.dedup.streams import draw
from tests.dedup.test_decision import run
from tests.dedup.test_deduplicator_kills import check_forwarded, drive
from tests.dedup.test_replay import run_again

# A loop of kills takes as long as many streams.
KILLS_EVERY = 25


def main() -> None:
    """Draw stream after stream; the seed of the one at work stands in the last line printed."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--minutes", type=float, default=10.0)
    asked.add_argument("--seed", type=int, default=None, help="begin with this seed")
    options = asked.parse_args()
    seed = random.SystemRandom().getrandbits(32) if options.seed is None else options.seed
    end = time.monotonic() + 60 * options.minutes
    count = 0
    while not count or time.monotonic() < end:
        print(f"dedup soak: seed {seed}", flush=True)
        stream = draw(seed, batches=30, rows_max=120)
        run(stream, exact=seed % 4 == 0)
        run(stream, redeliver=random.Random(seed))
        run_again(stream, seed)
        if count % KILLS_EVERY == 0:
            with tempfile.TemporaryDirectory() as folder:
                drive(Path(folder), seed, kills=30)
                check_forwarded(Path(folder), seed)
        seed, count = seed + 1, count + 1
    print(f"dedup soak: {count} streams as the model says")


if __name__ == "__main__":
    main()
