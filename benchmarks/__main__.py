"""Run every benchmark and print one table: `python -m benchmarks [NAME …]`."""

from __future__ import annotations

import argparse
import importlib

from benchmarks.table import Row, print_rows

NAMES = (
    "engine",
    "group_commit",
    "publish",
    "single_publish",
    "consume",
    "groups",
    "routes",
    "latency",
    "leases",
    "backup",
    "source",
    "lake_read",
    "tables",
    "streams",
    "live",
    "start",
)


def main() -> None:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(description="Our figures beside a peer's, same data, same run.")
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], default=[])
    chosen = parser.parse_args().names or NAMES
    rows: list[Row] = []
    for name in chosen:
        print(f"… {name}", flush=True)
        rows += importlib.import_module(f"benchmarks.{name}").run()
    print_rows(rows)


if __name__ == "__main__":
    main()
