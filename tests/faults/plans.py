"""From a seed, which strikes a run suffers: those that a driver survives, and those that end it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from tests.faults.run import BATCHES, Between
from tests.faults.strikes import ANY_PARTITION, LOOSE_POINTS, Kind, Strike
from tidegate.checkpoint.crash_points import POINTS

PARTITIONS = 2
# The first batch arms the points of the second; the last one is left for what comes late.
FIRST_BATCH = 1
BATCHES_HIT = range(FIRST_BATCH, BATCHES - 1)
# The first one has rows in every partition.
OPERATORS = ("ledger", "totals")
WORKER_POINTS = tuple(point for point in POINTS if point != "epoch-written")


def shaken(
    seed: int, points: Sequence[str] = WORKER_POINTS, operators: Sequence[str] = OPERATORS
) -> list[Strike]:
    """Return strikes that the driver survives, one a batch: failed rows, dead workers, slow work, repeats."""
    draw = random.Random(seed)
    kinds: list[tuple[Kind, str]] = [("raise", ""), ("die", ""), ("slow", ""), ("twice", "")]
    kinds += [("point", point) for point in points]
    return _spread(draw, kinds, operators)


def killed(seed: int, points: Sequence[str], sinks: Sequence[Kind]) -> list[Strike]:
    """Return strikes of which each ends the driver, in whichever partition gets there first."""
    draw = random.Random(seed)
    kinds: list[tuple[Kind, str]] = [(kind, "") for kind in sinks]
    kinds += [("driver", point) for point in points]
    return [replace(strike, partition=ANY_PARTITION) for strike in _spread(draw, kinds, OPERATORS)]


def between(seed: int, kills: int, choices: Sequence[Between]) -> list[Between]:
    """Draw what is done to the files after each kill."""
    draw = random.Random(seed)
    return [draw.choice(choices) for _ in range(kills)]


def _spread(draw: random.Random, kinds: list[tuple[Kind, str]], operators: Sequence[str]) -> list[Strike]:
    """Return each strike a batch of its own; those that need not come in their batch come first."""
    draw.shuffle(kinds)
    kinds.sort(key=lambda one: one[1] not in LOOSE_POINTS)
    chosen = sorted(draw.sample(list(BATCHES_HIT), min(len(kinds), len(BATCHES_HIT))))
    strikes = []
    for (kind, point), batch in zip(kinds, chosen, strict=False):
        operator = draw.choice(operators) if kind in ("raise", "die", "slow") else operators[0]
        # Few keys come to the second operator: a partition of it may have none.
        partition = draw.randrange(PARTITIONS) if operator == operators[0] else ANY_PARTITION
        strikes.append(Strike(kind, batch, partition, operator, point))
    return strikes
