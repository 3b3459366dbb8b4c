"""The process that is killed: a Spark driver that runs one query for each folder, until all rows are through.

    python -m tests.faults.driver FOLDER [FOLDER …]

A folder holds what `run.prepare` wrote. What a batch gives goes to `out/<batch>.parquet`, a sink that may be
asked twice for the same batch; each evaluation also leaves its rows in `seen/`, so that two of one batch can
be compared. It ends with 0 when all is through. When a query fails, it leaves the reason in `failed.txt`, and
starts the query again when that file is gone; with 3 it ends when nobody took it away.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.faults import dedup_rows, rows
from tests.faults.standin import standin
from tests.faults.strikes import Strike, Strikes, kill_tree
from tests.paths import ROOT

FAILED = 3
MEND_SECONDS_MAX = 120.0
DEATH_SECONDS_MAX = 120.0

# Set when this process kills itself: whoever sees its JVM die before must not say so.
_dying = threading.Event()


@dataclass(frozen=True, slots=True)
class Case:
    """One query: who keeps the state, over how many partitions, on which Spark."""

    keeper: str = "tide"  # or "heap", "careful", "careless", "dedup", "dedup-exact"
    partitions: int = 2
    master: str = "local[2,4]"
    snapshot_every: int = 2
    volume: str = ""  # where checkpoint and local copies lie; empty: in the folder itself
    conf: dict[str, str] = field(default_factory=dict)

    @property
    def is_dedup(self) -> bool:
        """Return whether rows are deduplicated, and not counted."""
        return self.keeper.startswith("dedup")

    def checkpoint(self, folder: Path) -> Path:
        """Return where the checkpoint lies."""
        return Path(self.volume or folder) / "checkpoint"

    def local(self, folder: Path) -> Path:
        """Return where local copies lie."""
        return Path(self.volume or folder) / "local"


def load_case(folder: Path) -> Case:
    """Read what a folder is about."""
    return Case(**json.loads((folder / "case.json").read_text()))


def main() -> int:
    """Run the queries of all folders."""
    try:
        return _all_run()
    except BaseException:
        _wait_for_death()
        raise


def _wait_for_death() -> None:
    if _dying.is_set():
        time.sleep(DEATH_SECONDS_MAX)


def _all_run() -> int:
    from pyspark.errors import PySparkException

    from tidegate.pipeline.worker.spark_session import SessionSettings, build_session

    folders = [Path(name) for name in sys.argv[1:]]
    case = load_case(folders[0])
    # Workers import this package; the executors of a cluster do not stand in this folder.
    environ = {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    # The first points come before an operator could set them.
    Strikes.load(folders[-1] / "strikes").arm_start()
    conf = {"spark.executorEnv.PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]), **case.conf}
    spark = build_session(SessionSettings(master=case.master, environ=environ, extra=conf))
    spark.sparkContext.setLogLevel("ERROR")
    for folder in folders:
        if (folder / "done").exists():
            continue
        while not (folder / "done").exists():
            try:
                _run(spark, folder)
                (folder / "done").touch()
            except PySparkException as problem:
                _wait_for_death()
                if not _mended(folder, str(problem)):
                    return FAILED
    return 0


def _mended(folder: Path, reason: str) -> bool:
    """Leave the reason, and wait until somebody has mended what it names."""
    said, hidden = folder / "failed.txt", folder / ".failed.txt"
    hidden.write_text(reason)
    hidden.replace(said)
    deadline = time.monotonic() + MEND_SECONDS_MAX
    while said.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not said.exists()


def _run(spark: Any, folder: Path) -> None:
    case, strikes = load_case(folder), Strikes.load(folder / "strikes")
    checkpoint = str(case.checkpoint(folder))
    columns = dedup_rows.COLUMNS if case.is_dedup else rows.COLUMNS
    raw = spark.readStream.schema(columns).option("maxFilesPerTrigger", rows.FILES_PER_BATCH)
    given = raw.parquet(str(folder / "rows"))
    query = _query(case, given, checkpoint, folder, strikes).writeStream
    waiting = [one for one in strikes.planned if one.kind == "driver" and not strikes.happened(one)]
    query = query.option("checkpointLocation", checkpoint).foreachBatch(_sink(folder, strikes, waiting))
    query.trigger(availableNow=True).start().awaitTermination()
    strikes.stand_still(waiting)


def _query(case: Case, given: Any, checkpoint: str, folder: Path, strikes: Strikes) -> Any:
    if case.keeper in ("careful", "careless"):
        return standin(given, checkpoint, strikes, careful=case.keeper == "careful")
    if case.is_dedup:
        from tests.faults.dedup_query import deduplicated

        return deduplicated(case, given, checkpoint, case.local(folder), strikes)
    from tests.faults.operators import kept

    return kept(case, given, checkpoint, case.local(folder), strikes)


def _sink(folder: Path, strikes: Strikes, waiting: list[Strike]) -> Callable[[Any, int], None]:
    def write(frame: Any, batch: int) -> None:
        strikes.stand_still(waiting)
        if strikes.in_sink("before-sink", batch):
            _die(batch)
        if strikes.in_sink("twice", batch):
            _leave(folder / "seen", f"{batch:06d}-{uuid.uuid4()}", frame.toArrow())
        given = frame.toArrow()
        strikes.stand_still(waiting)
        _leave(folder / "seen", f"{batch:06d}-{uuid.uuid4()}", given)
        if strikes.in_sink("in-sink", batch):
            _die(batch)
        _leave(folder / "out", f"{batch:06d}", given)
        if strikes.in_sink("after-sink", batch):
            _die(batch)

    return write


def _leave(folder: Path, name: str, table: pa.Table) -> None:
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{name}"
    pq.write_table(table, hidden)
    hidden.replace(folder / f"{name}.parquet")


def _die(batch: int) -> None:
    """Kill this driver and its JVM; every other time the Python workers have to find out by themselves."""
    _dying.set()
    kill_tree(os.getpid(), spare_workers=batch % 2 == 0)


if __name__ == "__main__":
    sys.exit(main())
