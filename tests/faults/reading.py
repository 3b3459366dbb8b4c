"""What came out, and the state, read from the checkpoint alone; and how two of them differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.faults.driver import Case
from tests.faults.standin import read_standin

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Found:
    """What a folder holds in the end."""

    rows: list[tuple[Any, ...]]
    seen: dict[int, list[list[tuple[Any, ...]]]]  # every evaluation of a batch
    state: dict[Any, Any]


def found_in(folder: Path, case: Case) -> Found:
    """Read a folder."""
    rows = [row for path in sorted((folder / "out").glob("*.parquet")) for row in _rows(path)]
    seen: dict[int, list[list[tuple[Any, ...]]]] = {}
    for path in sorted((folder / "seen").glob("*.parquet")):
        seen.setdefault(int(path.name.split("-")[0]), []).append(sorted(_rows(path), key=repr))
    if case.keeper in ("careful", "careless"):
        return Found(rows, seen, read_standin(case.checkpoint(folder)))
    if case.is_dedup:
        from tests.faults.dedup_entries import read_times

        return Found(rows, seen, read_times(case.checkpoint(folder), folder / "read"))
    from tests.faults.entries import read_entries

    return Found(rows, seen, read_entries(case.checkpoint(folder), folder / "read", _kind(case)))


def _kind(case: Case) -> str:
    return "heap" if case.keeper == "heap" else "rocksdb"


def differences(expected: Found, disturbed: Found) -> list[str]:
    """Compare row by row and entry by entry; say what differs."""
    faults = _unequal("output", Counter(expected.rows), Counter(disturbed.rows))
    faults += _unequal("state", Counter(_pairs(expected.state)), Counter(_pairs(disturbed.state)))
    for batch, evaluations in disturbed.seen.items():
        for other in evaluations[1:]:
            if other != evaluations[0]:
                faults += [f"batch {batch} gave other rows when it was evaluated again"]
                faults += _unequal(f"batch {batch}", Counter(evaluations[0]), Counter(other))
    if not expected.rows or not expected.state:
        faults.append("there was nothing to compare")
    return faults


def _unequal(what: str, expected: Counter[Any], actual: Counter[Any]) -> list[str]:
    lost, extra = list((expected - actual).elements()), list((actual - expected).elements())
    faults = [f"{what}: lost {one}" for one in lost[:SHOWN]] + [
        f"{what}: not owed {one}" for one in extra[:SHOWN]
    ]
    more = len(lost) + len(extra) - len(faults)
    return [*faults, f"{what}: and {more} more"] if more > 0 else faults


def _pairs(state: dict[Any, Any]) -> Iterable[tuple[str, str]]:
    return ((repr(key), repr(value)) for key, value in state.items())


def _rows(path: Path) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in pq.read_table(path).to_pylist()]
