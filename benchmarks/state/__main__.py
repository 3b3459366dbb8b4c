"""Keyed state beside its peers: rates, commits, small batches, restarts, rescaling, serializers, memory.

Run it with `python -m benchmarks.state`, in parts with `--only count --only commit`, in a minute or two with
`--quick` (small sizes: to see that everything runs, not to compare). Each size has a flag of its own. Peers
that are not installed are named and left out; `benchmarks/state/others.py` says how PyFlink and Bytewax are
found. Everything runs one after the other, on two cores, in one Spark session.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.state import count, more, sizes
from benchmarks.state.stream import QUICK, Sizes, session
from benchmarks.table import Row, print_rows

Part = Callable[[Any, Path, Sizes], list[Row]]
PARTS: dict[str, Part] = {
    "count": count.measure,
    "large": count.measure_large,
    "commit": sizes.commits,
    "small": sizes.small,
    "recovery": sizes.recovery,
    "rescale": sizes.rescale,
    "sessions": more.sessions,
    "serializers": more.serializers,
    "memory": more.memory,
}


def run(sizes: Sizes | None = None, parts: Sequence[str] = tuple(PARTS)) -> list[Row]:
    """Measure the parts and give the rows."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, session(Path(folder) / "spark") as spark:
        for part in parts:
            print(f" … {part}", flush=True)
            rows += PARTS[part](spark, Path(folder), sizes or Sizes())
    return rows


def main() -> None:
    """Measure from the command line."""
    parser = argparse.ArgumentParser(description="Keyed state beside its peers, same rows, same run.")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--only", action="append", choices=list(PARTS), help="this part (may be repeated)")
    for field in dataclasses.fields(Sizes):
        kind = type(field.default)
        if kind in (int, float):
            parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=None)
    options = vars(parser.parse_args())
    given = {name: value for name, value in options.items() if value is not None}
    quick, parts = given.pop("quick"), given.pop("only", list(PARTS))
    print_rows(run(dataclasses.replace(QUICK if quick else Sizes(), **given), parts))


if __name__ == "__main__":
    main()
