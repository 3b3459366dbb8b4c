"""A query in a process of its own, so that all of it can be killed:

    python -m benchmarks.dedup.driver FOLDER LOCAL

It runs our operator over the rows of a `DedupStream` in FOLDER, with local copies in LOCAL, and goes on until
its standard input closes. It says `session` when Spark is there, and `batch <rows>` when one is done.
"""

from __future__ import annotations

import argparse
import select
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.dedup.rows import SCHEMA, ours
from benchmarks.state.stream import CORES, session

LOOK_SECONDS = 0.05


def main() -> int:
    """Run the query until nobody wants it."""
    parser = argparse.ArgumentParser(description="One query over files, to be killed.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("local", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, session(Path(scratch) / "spark") as spark:
        _say("session")
        query = _started(spark, options.folder, options.local)
        seen = -1
        while not select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
            if not query.isActive:
                print(query.exception(), file=sys.stderr)
                return 1
            progress = query.lastProgress
            if progress is None or progress["batchId"] <= seen:
                continue
            for done in query.recentProgress:
                if done["batchId"] > seen and done["numInputRows"]:
                    seen = done["batchId"]
                    _say(f"batch {done['numInputRows']}")
        query.stop()
    return 0


def _started(spark: Any, folder: Path, local: Path) -> Any:
    raw = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", CORES)
    checkpoint = str(folder / "checkpoint")
    rows = ours(local_dir=str(local))(raw.parquet(str(folder / "rows")), checkpoint)
    writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
    return writer.outputMode("update").start()


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
