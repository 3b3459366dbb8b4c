"""Kafka Streams beside ours: the same topology, where a jar with it is at hand.

Set TIDEGATE_BENCH_KAFKA_STREAMS to a runnable jar: `java -jar JAR ROWS DUPLICATE_PERCENT` starts its own
broker, puts the rows through a window store of 100 days with `exactly_once_v2`, and prints JSON with
`rows_a_second` and `cpu_seconds` (of a million rows, the broker counted). Without one the row is left out;
the figures of Kafka Streams in the other rows were measured apart: version 4.1.1, 5.0 M rows of 36-byte ids,
20 % duplicates, two threads, two shared cores, its record cache off, which is its best exactly-once run.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.dedup.rows import Sizes
from benchmarks.table import Row, per_second

VARIABLE = "TIDEGATE_BENCH_KAFKA_STREAMS"
SECONDS_MAX = 1800


def kafka_streams(spark: Any, folder: Path, sizes: Sizes) -> list[Row]:  # noqa: ARG001 - as all the others
    """Run the jar that is named, or say that there is none."""
    jar = os.environ.get(VARIABLE)
    if not jar:
        print(f"  {VARIABLE} names no jar: figures of Kafka Streams are those that were measured apart")
        return []
    from tidegate.pipeline.java import find_java

    java = find_java().path / "bin" / "java"
    rows = sizes.batch_rows * sizes.mixed_batches
    command = [str(java), "-jar", jar, str(rows), str(sizes.duplicate_percent)]
    ended = subprocess.run(command, cwd=folder, capture_output=True, timeout=SECONDS_MAX, check=True)
    found = json.loads(ended.stdout.splitlines()[-1])
    shown = f"{per_second(found['rows_a_second'], 1)}, {found['cpu_seconds']:.0f} CPU s for a million rows"
    return [Row(f"Kafka Streams, exactly once, {sizes.duplicate_percent} % duplicates", "–", shown, "–", "–")]
