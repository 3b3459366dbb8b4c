"""Deduplication beside its peers: rates, sizes, expiry, restarts.

Run it with `python -m benchmarks.dedup`, in parts with `--only rate --only size`, in a minute or two with
`--quick` (small sizes: to see that everything runs, not to compare). Each size has a flag of its own.
Everything runs one after the other, on two cores, in one Spark session; `restarts` has processes of its own,
and `micro` has no Spark.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.dedup import kafka, micro, rates, restarts
from benchmarks.dedup.rows import QUICK, Sizes
from benchmarks.state.stream import session
from benchmarks.table import Row, print_rows

Part = Callable[[Any, Path, Sizes], list[Row]]
WITHOUT_SPARK: dict[str, Part] = {
    "micro": micro.micro,
    "restarts": restarts.restarts,
    "kafka-streams": kafka.kafka_streams,
}
WITH_SPARK: dict[str, Part] = {
    "rate": rates.rate,
    "mixed": rates.mixed,
    "size": rates.size,
    "expiry": restarts.expiry,
    "flat": rates.flat,
}
PARTS = WITHOUT_SPARK | WITH_SPARK
# A watermark that moves makes Spark run one more batch without rows, which would be in the peer's CPU.
SPARK_CONF = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}


def run(sizes: Sizes | None = None, parts: Sequence[str] = tuple(PARTS)) -> list[Row]:
    """Measure the parts and give the rows."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        spark = None
        # Those without Spark come first: a session that waits has memory, and threads.
        for part in sorted(parts, key=list(PARTS).index):
            print(f" … {part}", flush=True)
            if part in WITH_SPARK and spark is None:
                spark = stack.enter_context(session(Path(folder) / "spark", **SPARK_CONF))
            rows += PARTS[part](spark, Path(folder), sizes or Sizes())
    return rows


def main() -> None:
    """Measure from the command line."""
    parser = argparse.ArgumentParser(description="Deduplication beside its peers, same rows, same run.")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--only", action="append", choices=list(PARTS), help="this part (may be repeated)")
    for field in dataclasses.fields(Sizes):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, default=None)
    options = vars(parser.parse_args())
    given = {name: value for name, value in options.items() if value is not None}
    quick, parts = given.pop("quick"), given.pop("only", list(PARTS))
    print_rows(run(dataclasses.replace(QUICK if quick else Sizes(), **given), parts))


if __name__ == "__main__":
    main()
