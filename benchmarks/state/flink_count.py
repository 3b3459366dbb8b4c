"""PyFlink counts per key: `python flink_count.py FILE FOLDER`, run by a Python that has apache-flink.

It reads a CSV file of keys (Flink's own reader in Java), keeps a ValueState in RocksDB with a checkpoint
every two seconds, parallelism 2, throws the counts away, and prints the seconds of the whole job as JSON. It
takes no part of this package: its Python need not have it.
"""

# The signatures are the peer's.
# ruff: noqa: ARG002

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyflink.common import Configuration, Types  # type: ignore[import-not-found]
from pyflink.datastream import (  # type: ignore[import-not-found]
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from pyflink.datastream.state import ValueStateDescriptor  # type: ignore[import-not-found]
from pyflink.table import StreamTableEnvironment  # type: ignore[import-not-found]

PARALLELISM = 2


class _Count(KeyedProcessFunction):  # type: ignore[misc] # untyped here
    def open(self, runtime_context: RuntimeContext) -> None:
        self._n = runtime_context.get_state(ValueStateDescriptor("n", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        """Count one row."""
        n = (self._n.value() or 0) + 1
        self._n.update(n)
        yield value[0], n


def main() -> None:
    """Run the job, and print what it took."""
    rows, folder = Path(sys.argv[1]), Path(sys.argv[2])
    settings = Configuration()
    settings.set_string("state.backend.type", "rocksdb")
    settings.set_string("execution.checkpointing.incremental", "true")
    settings.set_string("execution.checkpointing.interval", "2 s")
    settings.set_string("execution.checkpointing.dir", f"file://{folder}/checkpoints")
    settings.set_string("python.executable", sys.executable)
    settings.set_string("python.client.executable", sys.executable)
    env = StreamExecutionEnvironment.get_execution_environment(settings)
    env.set_parallelism(PARALLELISM)
    tables = StreamTableEnvironment.create(env)
    tables.execute_sql(
        f"CREATE TABLE seen (k BIGINT) WITH ('connector' = 'filesystem', 'path' = 'file://{rows}',"
        " 'format' = 'csv')"
    )
    stream = tables.to_data_stream(tables.from_path("seen"))
    counts = stream.key_by(lambda row: row[0], key_type=Types.LONG()).process(
        _Count(), output_type=Types.TUPLE([Types.LONG(), Types.LONG()])
    )
    tables.execute_sql("CREATE TABLE nothing (k BIGINT, n BIGINT) WITH ('connector' = 'blackhole')")
    began = time.perf_counter()
    tables.from_data_stream(counts).execute_insert("nothing").wait()
    json.dump(time.perf_counter() - began, sys.stdout)


if __name__ == "__main__":
    main()
