"""Files and compaction of a segment, by simulation: `python -m benchmarks.dedup.compaction [--check]`.

A segment is filled by runs: a flush of what is in memory, or a batch that comes as a file of its own. RocksDB
merges runs by the rules of universal compaction, which need nothing but their sizes. So 50 days of them are a
few thousand sums, and the outcome is the same for a segment of any size with as many runs. `--check` fills a
real segment with the same settings and compares run by run: how many files there are, how many bytes were
written.

What is told for a segment of one partition: how often an entry is written (the flush and every merge), runs
and files at the worst moment, the largest merge, which is the room it takes while it runs, and how much of
the time it writes at 100 MB/s.
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.table import Row, print_rows
from tidegate.checkpoint.backends.rocksdb_options import RocksSettings
from tidegate.dedup.sizing import GIB, MIB, STORE_BYTES_A_KEY
from tidegate.model.epoch import DAY_US, SECOND_US

# RocksDB's defaults for universal compaction; ours does not change them.
SIZE_RATIO_PERCENT = 1
SIZE_AMPLIFICATION_PERCENT_MAX = 200
MERGED_RUNS_MIN = 2
LAST_LEVEL = 6
DISK_BYTES_A_SECOND = 100_000_000  # what a modest disk writes while it is read

TRIGGERS = (4, 6, 8, 12, 16)

CHECK_RUNS = 150
CHECK_RUN_KEYS = 20_000
# Files of a merge are cut at this size in the check, so that a small segment has many of them, too.
CHECK_FILE_BYTES = 8 * MIB
SETTLE_SECONDS_MAX = 60.0
SETTLE_LOOK_SECONDS = 0.005
SETTLED_LOOKS = 6


@dataclass(slots=True)
class Run:
    """A sorted run: the level it lies in and its bytes."""

    level: int
    size_bytes: float

    def files(self, file_bytes: int) -> int:
        """Return how many files it is made of: one in level 0, else of the target size."""
        return 1 if self.level == 0 else max(1, int(-(-self.size_bytes // file_bytes)))


@dataclass(slots=True)
class Segment:
    """The runs of a segment, the newest first, and what merging them cost so far."""

    trigger: int
    file_bytes: int
    runs: list[Run] = field(default_factory=list)
    taken_bytes: float = 0.0
    merged_bytes: float = 0.0
    merges: int = 0
    runs_max: int = 0
    files_max: int = 0
    largest_bytes: float = 0.0

    @property
    def files(self) -> int:
        """Return the number of files."""
        return sum(run.files(self.file_bytes) for run in self.runs)

    @property
    def size_bytes(self) -> float:
        """Return the bytes of all runs."""
        return sum(run.size_bytes for run in self.runs)

    @property
    def writes(self) -> float:
        """Return how often an entry was written to a file."""
        return 1 + self.merged_bytes / self.taken_bytes

    def take(self, size_bytes: float) -> None:
        """Take a new run and merge until nothing is due; one at a time, as a segment's runs allow."""
        # A file that overlaps nothing goes to the last level at once; all others share the segment's record.
        self.runs.insert(0, Run(0 if self.runs else LAST_LEVEL, size_bytes))
        self.taken_bytes += size_bytes
        self.runs_max = max(self.runs_max, len(self.runs))
        self.files_max = max(self.files_max, self.files)
        while (due := self._due()) is not None:
            self._merge(*due)

    def _due(self) -> tuple[int, int] | None:
        """Return the half-open range of runs that RocksDB merges next."""
        count = len(self.runs)
        if count < self.trigger:
            return None
        newer_bytes = sum(run.size_bytes for run in self.runs[:-1])
        if newer_bytes * 100 >= SIZE_AMPLIFICATION_PERCENT_MAX * self.runs[-1].size_bytes:
            return 0, count
        for start in range(count):
            stop, size_bytes = start + 1, self.runs[start].size_bytes
            while (
                stop < count and size_bytes * (100 + SIZE_RATIO_PERCENT) / 100 >= self.runs[stop].size_bytes
            ):
                size_bytes += self.runs[stop].size_bytes
                stop += 1
            if stop - start >= MERGED_RUNS_MIN:
                return start, stop
        if count > self.trigger:
            return 0, count - self.trigger + 1
        return None

    def _merge(self, start: int, stop: int) -> None:
        size_bytes = sum(run.size_bytes for run in self.runs[start:stop])
        level = LAST_LEVEL if stop == len(self.runs) else max(0, self.runs[stop].level - 1)
        self.runs[start:stop] = [Run(level, size_bytes)]
        self.merges += 1
        self.merged_bytes += size_bytes
        self.largest_bytes = max(self.largest_bytes, size_bytes)


@dataclass(frozen=True, slots=True)
class Plan:
    """A stream: messages a second, how it is divided, and the seconds between two runs of a segment."""

    name: str
    rate: int
    partitions: int
    run_seconds: int
    interval_us: int = 50 * DAY_US

    @property
    def keys(self) -> int:
        """Return the keys of one segment of one partition."""
        return self.rate * (self.interval_us // SECOND_US) // self.partitions

    @property
    def run_keys(self) -> int:
        """Return the keys of one run."""
        return self.rate * self.run_seconds // self.partitions


PLANS = (
    Plan("1,000/s, 8 partitions, a run every 100 s", 1_000, 8, 100),
    Plan("1,000/s, 8 partitions, a run every 1,000 s", 1_000, 8, 1_000),
    Plan("1,000/s, 8 partitions, a run every 10,000 s", 1_000, 8, 10_000),
    Plan("1,000/s, 64 partitions, a run every 10,000 s", 1_000, 64, 10_000),
    Plan("100,000/s, 1,024 partitions, a run every 10 s", 100_000, 1_024, 10),
    Plan("100,000/s, 1,024 partitions, a run every 1,000 s", 100_000, 1_024, 1_000),
    Plan("100,000/s, 1,024 partitions, a run every 10,000 s", 100_000, 1_024, 10_000),
)


def simulated(plan: Plan, settings: RocksSettings) -> Segment:
    """Fill one segment of one partition."""
    segment = Segment(settings.level0_compaction_trigger, settings.target_file_size_base)
    for _ in range(plan.keys // plan.run_keys):
        segment.take(float(plan.run_keys * STORE_BYTES_A_KEY))
    return segment


def described(plan: Plan, segment: Segment) -> str:
    """Return one line of the table."""
    seconds = plan.interval_us / SECOND_US
    total = segment.taken_bytes + segment.merged_bytes
    cells = (
        plan.name,
        f"{plan.keys / 1e6:,.0f} M",
        f"{plan.run_keys * float(STORE_BYTES_A_KEY) / MIB:.1f} MiB",
        f"{plan.keys // plan.run_keys:,}",
        f"{segment.size_bytes / GIB:.1f} GiB",
        f"{segment.writes:.1f}",
        f"{segment.runs_max}",
        f"{segment.files_max:,}",
        f"{segment.merges:,}",
        f"{segment.largest_bytes / GIB:.1f} GiB",
        f"{segment.largest_bytes / DISK_BYTES_A_SECOND:,.0f} s",
        f"{total / DISK_BYTES_A_SECOND / seconds:.2%}",
        f"{total * plan.partitions / seconds / 1e6:,.1f} MB/s",
    )
    return "| " + " | ".join(cells) + " |"


def by_trigger(runs: int, triggers: Sequence[int]) -> str:
    """Return how often an entry is written where merging begins at so many runs,."""
    cells = [f"{runs:,}"]
    for trigger in triggers:
        segment = Segment(trigger, 128 * MIB)
        for _ in range(runs):
            segment.take(float(MIB))
        cells.append(f"{segment.writes:.1f}")
    return "| " + " | ".join(cells) + " |"


def heading(names: Sequence[str]) -> str:
    """Return the first two lines of a table."""
    return "| " + " | ".join(names) + " |\n|" + " --- |" * len(names)


HEADINGS = (
    "stream",
    "keys",
    "run",
    "runs",
    "at its end",
    "written × times",
    "runs at most",
    "files at most",
    "merges",
    "largest merge",
    "takes",
    "of the time",
    "all partitions",
)


def run(trigger: int | None = None) -> list[Row]:
    """Check the simulation against a real segment: files and bytes written."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-compaction-"))
    settings = RocksSettings.deduplication()
    settings = replace(settings, level0_compaction_trigger=trigger or settings.level0_compaction_trigger)
    try:
        return _checked(folder, settings)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _checked(folder: Path, settings: RocksSettings) -> list[Row]:
    from rocksdict import Rdict, WriteOptions

    from tidegate.checkpoint.backends.rocksdb_options import options_of

    options: Any = options_of(settings, filters_whole=True)
    options.set_target_file_size_base(CHECK_FILE_BYTES)
    options.enable_statistics()
    unlogged: Any = WriteOptions()
    unlogged.disable_wal = True
    db: Any = Rdict(str(folder), options, column_families={"default": options})
    segment = Segment(settings.level0_compaction_trigger, CHECK_FILE_BYTES)
    rng = np.random.default_rng(1)
    real_files, simulated_files, equal_runs = 0, 0, 0
    before_bytes = 0
    for number in range(CHECK_RUNS):
        _write_run(db, unlogged, rng, number)
        flushed_bytes = _ticker(options, "rocksdb.flush.write.bytes")
        segment.take(float(flushed_bytes - before_bytes))
        before_bytes = flushed_bytes
        _settle(db)
        live = db.live_files()
        runs = sum(file["level"] == 0 for file in live) + len({file["level"] for file in live} - {0})
        equal_runs += runs == len(segment.runs)
        real_files, simulated_files = max(real_files, len(live)), max(simulated_files, segment.files)
    merged = _ticker(options, "rocksdb.compact.write.bytes") / before_bytes + 1
    db.close()
    name = f"{CHECK_RUNS} runs of {CHECK_RUN_KEYS:,} keys"
    return [
        Row(f"{name}: times written", f"{segment.writes:.2f}", f"{merged:.2f}", "simulated : RocksDB", "–"),
        Row(f"{name}: files at most", f"{simulated_files}", f"{real_files}", "simulated : RocksDB", "–"),
        Row(f"{name}: equal number of runs after", f"{equal_runs}", f"{CHECK_RUNS}", "–", "–"),
    ]


def _write_run(db: Any, unlogged: Any, rng: np.random.Generator, number: int) -> None:
    from rocksdict import WriteBatch

    keys = rng.integers(0, 256, (CHECK_RUN_KEYS, 18), dtype=np.uint8)
    keys[:, 0] = 0
    keys[:, 1] &= 15  # the key groups of one of eight partitions
    value = (number * 10_000_000 + (1 << 63)).to_bytes(8, "big")
    batch: Any = WriteBatch(raw_mode=True)
    for key in np.sort(np.ascontiguousarray(keys).view("S18").ravel()).tolist():
        batch.put(key, value)
    db.write(batch, unlogged)
    db.flush(True)


def _settle(db: Any) -> None:
    """Wait until RocksDB has merged what it wants to: it says when it merges, not that it has done."""
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    quiet = 0
    while quiet < SETTLED_LOOKS:
        quiet = 0 if db.property_int_value("rocksdb.num-running-compactions") else quiet + 1
        if time.monotonic() > deadline:
            raise TimeoutError("RocksDB is still merging")
        time.sleep(SETTLE_LOOK_SECONDS)


def _ticker(options: Any, name: str) -> int:
    found = re.search(rf"{re.escape(name)} COUNT : (\d+)", options.get_statistics() or "")
    return int(found[1]) if found else 0


def main() -> None:
    """Print the tables, and with `--check` the comparison with RocksDB first."""
    ours = RocksSettings.deduplication()
    parser = argparse.ArgumentParser(description="Files and compaction of a segment, by simulation.")
    parser.add_argument("--check", action="store_true", help="compare with a real segment first")
    parser.add_argument(
        "--trigger", type=int, default=ours.level0_compaction_trigger, help="runs that start a merge"
    )
    chosen = parser.parse_args()
    if chosen.check:
        print_rows(run(chosen.trigger))
    settings = replace(ours, level0_compaction_trigger=chosen.trigger)
    print(f"A segment of one partition; merging begins at {chosen.trigger} runs.")
    print(heading(HEADINGS))
    for plan in PLANS:
        print(described(plan, simulated(plan, settings)), flush=True)
    print("\nTimes that an entry is written, by the runs of the segment and the runs that start a merge.")
    print(heading(["runs", *map(str, TRIGGERS)]))
    for runs in (100, 432, 1_000, 4_320, 43_200):
        print(by_trigger(runs, TRIGGERS), flush=True)


if __name__ == "__main__":
    main()
