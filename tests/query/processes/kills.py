"""Statements in DuckDB whose processes are killed at random moments: each has its own answer, or an error.

    python -m tests.query.processes.kills --minutes N [--seed S]

Threads send statements of three tenants over tables of the lake and over constants; some of them hang in one
call or take too much memory. Another thread kills children, and now and then the fork server. An answer that
belongs to another statement, an error that was not provoked, or a child that is left behind is a failure. The
seed of a round is printed; the moments of the kills depend on the machine, too.
"""

from __future__ import annotations

import argparse
import random
import secrets
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow as pa
from deltalake import write_deltalake

from tests.query.processes.test_fork_server import wait_gone
from tidegate.errors import QueryCrashed, QueryMemory, QueryTimeout, TidegateError
from tidegate.model.clock import SystemClock
from tidegate.query.duckdb.engine import LakeQuery
from tidegate.query.duckdb.session import QueryLimits
from tidegate.query.processes.fork_server import ForkServer
from tidegate.query.processes.pool import ChildPool
from tidegate.storage.lake.tables import Lake

TENANTS, THREADS = 3, 5
STATEMENTS = 12  # of one thread in one round
PROVOKED = (QueryCrashed, QueryTimeout, QueryMemory)
READ = "SELECT max(tenant), count(*) FROM lake.t WHERE n >= ?"
HANGS = "SELECT max(levenshtein(repeat('a', 60000), repeat('b', 60000 + x::INT))) FROM range(900) t(x)"
GROWS = "SELECT length(repeat('abcdefgh', 120000000 + x::INT)) FROM range(2) t(x)"


@dataclass
class Outcomes:
    """What became of the statements."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def run_round(seed: int, outcomes: Outcomes) -> None:
    """Run one round on a pool of its own."""
    chance, over = random.Random(seed), threading.Event()
    fork_server = ForkServer("tidegate.query.duckdb.worker")
    pool = ChildPool(fork_server, SystemClock().monotonic_seconds)
    with tempfile.TemporaryDirectory() as folder:
        queries = []
        for number in range(TENANTS):
            root = Path(folder) / f"tenant{number}"
            write_deltalake(root / "t", pa.table({"n": list(range(100)), "tenant": [number] * 100}))
            limits = QueryLimits(timeout_seconds=1.5, memory_mb=64)
            queries.append(LakeQuery(Lake(root), limits, pool))
        workers = [
            threading.Thread(target=_work, args=(queries, seed * 100 + number, outcomes))
            for number in range(THREADS)
        ]
        killer = threading.Thread(target=_kill, args=(pool, fork_server, chance, over))
        for thread in (*workers, killer):
            thread.start()
        for thread in workers:
            thread.join()
        over.set()
        killer.join()
        for number, query in enumerate(queries):
            if query.run("SELECT max(tenant) FROM lake.t").json_rows() != [[number]]:
                outcomes.wrong.append(f"tenant {number} reads another's rows")
        pids = [child.pid for child in pool._idle]
        pool.close()
        wait_gone(*pids)


def _work(queries: list[LakeQuery], seed: int, outcomes: Outcomes) -> None:
    chance = random.Random(seed)
    for _ in range(STATEMENTS):
        tenant, least = chance.randrange(TENANTS), chance.randrange(100)
        kind = chance.choices(("lake", "constant", "hangs", "grows"), (6, 6, 1, 1))[0]
        sql, params, expected = {
            "lake": (
                "SELECT max(tenant), count(*) FROM lake.t WHERE n >= ?",
                [least],
                [[tenant, 100 - least]],
            ),
            "constant": ("SELECT ?, repeat('x', ?)", [least, least], [[least, "x" * least]]),
            "hangs": (HANGS, [], None),
            "grows": (GROWS, [], None),
        }[kind]
        try:
            found = queries[tenant].run(sql, params).json_rows()
        except PROVOKED as problem:
            outcomes.counts[problem.code] += 1
        except TidegateError as problem:
            outcomes.wrong.append(f"{sql}: {problem!r}")
        else:
            outcomes.counts["answered"] += 1
            if found != expected:
                outcomes.wrong.append(f"{sql} {params}: {found}")


def _kill(pool: ChildPool, fork_server: ForkServer, chance: random.Random, over: threading.Event) -> None:
    while not over.is_set():
        for child in [*(session.child for session in list(pool._running)), *list(pool._idle)]:
            if chance.random() < 0.05:
                child.kill()
        if chance.random() < 0.01 and fork_server._process is not None:
            with suppress(psutil.NoSuchProcess):
                psutil.Process(fork_server._process.pid).kill()
        time.sleep(chance.random() * 0.1)


def main() -> int:
    """Run rounds for some minutes; 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    chosen = parser.parse_args()
    outcomes, seed = Outcomes(), chosen.seed
    end = time.monotonic() + chosen.minutes * 60
    while time.monotonic() < end and not outcomes.wrong:
        print(f"seed {seed}", flush=True)
        run_round(seed, outcomes)
        seed += 1
    print(dict(outcomes.counts), *outcomes.wrong, sep="\n")
    return 1 if outcomes.wrong or not outcomes.counts["answered"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
