"""One run of the crash loop: start, load, kill, drain, verify."""

from __future__ import annotations

import argparse
import itertools
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.crash.cluster import START_SECONDS, Cluster
from tests.crash.groups import GroupWork
from tests.crash.history import Fault, report
from tests.crash.journal import Journal
from tests.crash.nemesis import Nemesis
from tests.crash.routes import FollowedRows
from tests.crash.sink import TopicToTopic
from tests.crash.streams import StreamRows
from tests.crash.tables import TableRows
from tests.crash.workload import TopicToLake, Workload

WORKLOADS: Mapping[str, Callable[[Journal, int], Workload]] = {
    "topic": TopicToLake,
    "tables": TableRows,
    "streams": StreamRows,
    "routes": FollowedRows,
    "groups": GroupWork,
    "sink": TopicToTopic,
}
# Those of one run share it: the server is killed once for all. More at a time would starve each other.
TOGETHER: tuple[tuple[str, ...], ...] = (
    ("topic", "tables", "streams"),
    ("routes", "groups"),
    ("sink", "groups"),
)
# These run in the worker; without one of them only the server is killed.
IN_SPARK = frozenset({"topic", "sink"})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run did and found."""

    kills: int
    acknowledged: dict[str, int]  # by workload
    faults: list[Fault]
    report: str


def run_loop(
    folder: Path, seed: int, kills: int, chosen: Sequence[str] = TOGETHER[0], load: int = 0
) -> Outcome:
    """Kill that many processes under load, then compare; the folder keeps the journal and the logs.

    The last kill comes when more than `load` was acknowledged in every workload, however slow the machine is.
    """
    journal = Journal(folder / "journal.jsonl")
    cluster = Cluster(folder / "home", journal)
    workloads = {name: WORKLOADS[name](journal, seed) for name in chosen}
    try:
        # 1. a whole cluster, under load
        cluster.start()
        cluster.wait_for("the server", lambda client: bool(client.status()))
        for workload in workloads.values():
            workload.prepare(cluster)
        if not IN_SPARK.isdisjoint(workloads):
            cluster.wait_for("the pipeline", lambda client: _runs(client.status()))
        for workload in workloads.values():
            workload.start(cluster)
        # 2. kills
        nemesis = Nemesis(seed, server_only=IN_SPARK.isdisjoint(workloads))
        done = _strike(cluster, nemesis, kills - 1)
        _wait_for_load(workloads.values(), load)
        done += _strike(cluster, nemesis, kills - done)
        # 3. everything that was begun ends, and arrives
        for workload in workloads.values():
            workload.finish()
            cluster.wait_for("everything to arrive", workload.drained)
        # 4. compare, once before and once after a clean restart
        faults = _verify(cluster, workloads.values())
        cluster.stop()
        cluster.start()
        cluster.wait_for("the server after a clean stop", lambda client: bool(client.status()))
        faults += _verify(cluster, workloads.values())
        cluster.stop()
    finally:
        cluster.destroy()
        journal.close()
    counts = {name: workload.acknowledged_count for name, workload in workloads.items()}
    return Outcome(done, counts, faults, report(journal, faults, seed, chosen))


def _verify(cluster: Cluster, workloads: Iterable[Workload]) -> list[Fault]:
    return [fault for workload in workloads for fault in workload.verify(cluster)]


def _strike(cluster: Cluster, nemesis: Nemesis, kills: int) -> int:
    done = 0
    while done < kills:
        strike = nemesis.next()
        if strike.at_work:
            cluster.wait_for("the server", lambda client: bool(client.status()))
        time.sleep(strike.after_seconds)
        done += cluster.kill(strike.target)
    return done


def _wait_for_load(workloads: Iterable[Workload], load: int) -> None:
    """Wait until each has its load, or for so long that one of them must have ended by an error."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if all(workload.acknowledged_count > load for workload in workloads):
            return
        time.sleep(0.1)


def _runs(status: dict[str, object]) -> bool:
    pipelines = status.get("pipelines")
    return isinstance(pipelines, list) and any(pipeline["state"] == "running" for pipeline in pipelines)


def main() -> int:
    """Run the loop from the command line; keep the folder of a failed run."""
    parser = argparse.ArgumentParser(
        description="Kill server and worker under load; compare with what was acknowledged."
    )
    parser.add_argument("--seed", type=int, default=None, help="repeat a run (default: a new one, printed)")
    parser.add_argument("--kills", type=int, default=20, help="kills in a run")
    parser.add_argument("--minutes", type=float, default=0, help="go on with new seeds for this long")
    parser.add_argument(
        "--workload",
        action="append",
        choices=list(WORKLOADS),
        help="run this one (more than one: together; default: all in turn)",
    )
    options = parser.parse_args()
    deadline = time.monotonic() + options.minutes * 60
    turns = itertools.cycle(TOGETHER)
    while True:
        chosen = options.workload or next(turns)
        seed = secrets.randbelow(10**6) if options.seed is None else options.seed
        folder = Path(tempfile.mkdtemp(prefix=f"tidegate-crash-{seed}-"))
        print(f"seed {seed}, {options.kills} kills of {' + '.join(chosen)}, in {folder}", flush=True)
        begun = time.monotonic()
        outcome = run_loop(folder, seed, options.kills, chosen)
        if outcome.faults:
            print(outcome.report)
            return 1
        took = time.monotonic() - begun
        counts = ", ".join(f"{name} {count}" for name, count in outcome.acknowledged.items())
        print(f"  {outcome.kills} kills; acknowledged: {counts}; all there once ({took:.0f} s)", flush=True)
        shutil.rmtree(folder)
        if time.monotonic() >= deadline and (options.workload or chosen == TOGETHER[-1]):
            return 0


if __name__ == "__main__":
    sys.exit(main())
