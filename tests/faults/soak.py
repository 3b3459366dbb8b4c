"""Hundreds of disturbances: `python -m tests.faults.soak --minutes 10`, with `--operator dedup` or without.

Each round has new rows and a new plan from its seed, which is printed: one driver for an undisturbed run and
a shaken one, then drivers that are killed at points and in the sink, with files lost and damaged between them
and sometimes another number of partitions, and in turn a cluster that loses executors.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from tests.faults import damage
from tests.faults.dedup_check import against_model
from tests.faults.dedup_query import NAME
from tests.faults.driver import Case, load_case
from tests.faults.plans import OPERATORS, WORKER_POINTS, between, killed, shaken
from tests.faults.run import BATCHES, Between, check, missed, prepare, run
from tests.faults.strikes import ANY_PARTITION, Kind, Strike
from tests.faults.volume import make_room, small_volume
from tests.pipeline.standalone import Cluster
from tidegate.checkpoint.crash_points import POINTS

SINKS: tuple[Kind, ...] = ("before-sink", "in-sink", "after-sink")
SPREAD: tuple[Kind, ...] = ("slow", "executor", "executor", "raise", "point")
# Who keeps the state in a round, and which operators are struck.
KEEPERS = {"process": ("tide", "tide", "heap"), "dedup": ("dedup", "dedup", "dedup-exact")}
STRUCK = {"process": OPERATORS, "dedup": (NAME,)}
KILLS_A_ROUND = 6
CLUSTER_EVERY = 3
REFUSALS: dict[str, Between] = {
    "StorageCorrupt": damage.mend_changes,
    "StorageFull": make_room,
    "No space left": make_room,
}
CLUSTER_CONF = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.speculation.quantile": "0.5",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    # Every executor that dies counts against a limit, by default two for each worker.
    "spark.deploy.maxExecutorRetries": "-1",
}


def main() -> int:
    """Go on with new seeds for so many minutes; keep the folder of a failed round."""
    parser = argparse.ArgumentParser(description="Disturb keyed state; compare with an undisturbed run.")
    parser.add_argument("--seed", type=int, default=None, help="repeat one round")
    parser.add_argument("--minutes", type=float, default=0, help="go on with new seeds for this long")
    parser.add_argument("--operator", choices=sorted(KEEPERS), default="process", help="what is disturbed")
    options = parser.parse_args()
    deadline = time.monotonic() + options.minutes * 60
    for number in itertools.count():
        seed = secrets.randbelow(10**6) if options.seed is None else options.seed
        folder = Path(tempfile.mkdtemp(prefix=f"tidegate-faults-{seed}-"))
        print(f"seed {seed}, in {folder}", flush=True)
        begun, struck, faults = time.monotonic(), 0, list[str]()
        with_cluster = number % CLUSTER_EVERY == 0
        for name, count in _round(folder, seed, options.operator, with_cluster=with_cluster):
            found = check(folder / "plain", folder / name)
            struck += count - len(missed(folder / name))
            faults += [f"{name}: {fault}" for fault in found]
        if options.operator == "dedup":
            faults += [f"plain: {fault}" for fault in against_model(folder / "plain")]
        if faults:
            print("\n".join(faults))
            return 1
        print(f"  {struck} disturbances, all equal ({time.monotonic() - begun:.0f} s)", flush=True)
        shutil.rmtree(folder)
        if time.monotonic() >= deadline:
            return 0
    return 0


def _round(folder: Path, seed: int, operator: str, *, with_cluster: bool) -> Iterator[tuple[str, int]]:
    """Run one round; give the name of each disturbed folder, while it can be read, and its strikes."""
    draw = random.Random(seed)
    case = Case(keeper=draw.choice(KEEPERS[operator]), snapshot_every=draw.choice((1, 2, 4)))
    strikes = shaken(seed, WORKER_POINTS, STRUCK[operator])
    run([prepare(folder / "plain", seed, case), prepare(folder / "shaken", seed, case, strikes)])
    yield "shaken", len(strikes)
    with small_volume(folder / "volume") as volume:
        yield "killed", _killed(folder, seed, replace(case, volume=volume), draw)
    if with_cluster:
        yield "spread", _spread(folder, seed, case, draw)


def _killed(folder: Path, seed: int, case: Case, draw: random.Random) -> int:
    points = draw.sample(POINTS, KILLS_A_ROUND - 2)
    strikes = killed(seed, points, draw.sample(SINKS, 2))
    kills = len(strikes)
    if case.volume:
        strikes += [Strike("full", BATCHES - 1, ANY_PARTITION, _first_operator(case))]
    prepare(folder / "killed", seed, case, strikes)
    done = between(
        seed,
        kills,
        (
            _nothing,
            damage.lose_local,
            damage.damage_local,
            damage.damage_snapshot,
            damage.damage_changes,
            damage.lose_segment if case.is_dedup else damage.lose_local,
            _rescale,
        ),
    )
    run([folder / "killed"], done, REFUSALS)
    return len(strikes) + sum(action is not _nothing for action in done)


def _spread(folder: Path, seed: int, case: Case, draw: random.Random) -> int:
    hit = sorted(draw.sample(range(1, BATCHES - 1), 4))
    kinds = draw.sample(SPREAD, 4)
    operator = _first_operator(case)
    strikes = [
        Strike(kind, batch, draw.randrange(2), operator, "head-linked" if kind == "point" else "")
        for kind, batch in zip(kinds, hit, strict=True)
    ]
    with Cluster(folder / "cluster") as cluster:
        run([prepare(folder / "spread", seed, replace(case, master=cluster.url, conf=CLUSTER_CONF), strikes)])
    return len(strikes)


def _first_operator(case: Case) -> str:
    return NAME if case.is_dedup else OPERATORS[0]


def _nothing(folder: Path) -> None:
    """Leave the files as they are."""


def _rescale(folder: Path) -> None:
    """Start again with another number of partitions: 1 becomes 3, 3 becomes 2, 2 becomes 1."""
    case = load_case(folder)
    changed = replace(case, partitions={1: 3, 3: 2, 2: 1}[case.partitions])
    (folder / "case.json").write_text(json.dumps(asdict(changed)))


if __name__ == "__main__":
    sys.exit(main())
