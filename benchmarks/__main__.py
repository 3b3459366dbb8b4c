"""Run every benchmark and print one table: `python -m benchmarks [NAME …]`."""

from __future__ import annotations

import argparse
import importlib

from benchmarks.table import Row, print_rows

MODULES = (
    "engine",
    "group_commit",
    "topics.publish",
    "topics.single_publish",
    "topics.consume",
    "topics.groups",
    "topics.routes",
    "topics.latency",
    "leases",
    "backup",
    "topics.source",
    "lake_read",
    "tables.tables",
    "tables.streams",
    "tables.live",
    "start",
)
# As they are typed: `python -m benchmarks publish tables`.
NAMES = {module.rpartition(".")[2]: module for module in MODULES}


def main() -> None:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(description="Our figures beside a peer's, same data, same run.")
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], default=[])
    chosen = parser.parse_args().names or NAMES
    rows: list[Row] = []
    for name in chosen:
        print(f"… {name}", flush=True)
        rows += importlib.import_module(f"benchmarks.{NAMES[name]}").run()
    print_rows(rows)


if __name__ == "__main__":
    main()
