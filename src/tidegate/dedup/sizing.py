"""The disk and memory that deduplication needs, estimated for two layouts.

One is the window store of Kafka Streams, by its planning formulas, rounded as they round. The other is the
segmented store, from measured figures. All sums are exact fractions; only the results are rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from tidegate.checkpoint.keys.layout import PARALLELISM_MAX
from tidegate.dedup.columns import DIGEST_BYTES, GROUP_BYTES
from tidegate.dedup.settings import (
    OFFSET_BYTES,
    SEGMENTS_MAX,
    SNAPSHOT_CHANGES_BYTES_MAX,
    TIME_BYTES,
    default_interval_us,
)
from tidegate.errors import RequestInvalid
from tidegate.model.durations import Duration, format_duration
from tidegate.model.epoch import DAY_US, SECOND_US

GIB = 1 << 30
MIB = 1 << 20
GB = 10**9

# Bytes of one digest with its time in a segment's RocksDB: 26 of key group, digest and time, and the overhead
# of blocks and index. Measured: 28.5 in a flushed file, 27.1 after compaction into the last level.
# `python -m benchmarks.dedup --only size` measures it.
STORE_BYTES_A_KEY = Fraction(57, 2)
# 12 bits: a full filter then has at most 1.5 % false positives.
FILTER_BYTES_A_KEY = Fraction(3, 2)
# Key group, digest and time without the overhead of RocksDB: the size of an entry in a changelog file.
ENTRY_BYTES = GROUP_BYTES + DIGEST_BYTES + TIME_BYTES
# How often an entry is written to a new file of the store, and so uploaded by a snapshot: once by the flush,
# then by compactions. It rises with the number of flushes, and a snapshot flushes: this is for 4,320 of them
# in a segment, one every 1,000 s of 50 days. `python -m benchmarks.dedup_compaction` counts.
FILE_WRITES_A_KEY = Fraction(5)
SNAPSHOTS_RETAINED = 3
# The rate at which one partition is restored from the checkpoint on one core, checksums and the last
# changelog files included, where the checkpoint's storage reads 60 MB/s. Measured: 2.5 M at 5 M keys, in the
# file cache; `python -m benchmarks.dedup --only restarts` measures it with the start of a query around it.
RESTORE_KEYS_A_SECOND = 2_000_000
# The alert on the disk fires at this share of its size, so the disk is sized for it.
FILL_MAX = Fraction(7, 10)
# A partition's local store stays below this, so that compaction and restore stay short; each additional
# partition costs a task in every batch.
PARTITION_BYTES_MAX = 64 * GIB
# The filter of one key is one block of 64 bytes: a page of this size is read if it is not in memory.
PAGE_BYTES = 4096

# Beyond these limits a typing error is likelier than a real workload.
RATE_MAX = 1_000_000_000
RETENTION_US_MIN = 1_000  # segments begin at whole milliseconds
RETENTION_US_MAX = 36_525 * DAY_US
KEY_BYTES_MAX = MIB
OVERHEAD_MAX = 100
STANDBYS_MAX = 10

# The workload for which plans of the window store name a changelog size that their own formula does not give.
PLANNED = (Fraction(1_000), 100 * DAY_US, 64, 8, 12, Fraction(13, 10), Fraction(13, 10), 50 * DAY_US)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The stream to be deduplicated and its settings; `interval_us` None is half the retention."""

    rate: Fraction = Fraction(1_000)
    retention_us: int = 100 * DAY_US
    interval_us: int | None = None
    key_bytes: int = 64
    duplicate_share: Fraction = Fraction(1, 100_000)
    exact_keys: bool = False
    with_offsets: bool = False
    partitions: int | None = None
    standbys: int = 0
    # Used for the window store only.
    value_bytes: int = 8
    metadata_bytes: int = 12
    overhead: Fraction = Fraction(13, 10)
    changelog_overhead: Fraction = Fraction(13, 10)

    def __post_init__(self) -> None:
        """Raise RequestInvalid for values that are out of range."""
        _check("rate", self.rate, 0, RATE_MAX, "messages a second", open_below=True)
        _check_time("retention", self.retention_us, RETENTION_US_MIN)
        _check("key size", self.key_bytes, 1, KEY_BYTES_MAX, "bytes")
        _check("value size", self.value_bytes, 0, KEY_BYTES_MAX, "bytes")
        _check("metadata size", self.metadata_bytes, 0, KEY_BYTES_MAX, "bytes")
        _check("overhead", self.overhead, 0, OVERHEAD_MAX, "", open_below=True)
        _check("changelog overhead", self.changelog_overhead, 0, OVERHEAD_MAX, "", open_below=True)
        _check("share of duplicates", self.duplicate_share, 0, 1, "", open_above=True)
        _check("number of standbys", self.standbys, 0, STANDBYS_MAX, "")
        if self.partitions is not None:
            _check("number of partitions", self.partitions, 1, PARALLELISM_MAX, "")
        if self.interval_us is not None:
            _check_time("interval", self.interval_us, RETENTION_US_MIN)
        if self.segments_live > SEGMENTS_MAX:
            reason = (
                f"An interval of {format_duration(Duration(self.segment_us))} makes {self.segments_live:,} "
                f"live segments, and {SEGMENTS_MAX} is the most: each is a store that is open."
            )
            raise RequestInvalid(reason=reason, hint="Choose a longer interval, or none: half the retention.")

    @property
    def segment_us(self) -> int:
        """Return the length of a segment: the interval, else half the retention, a minute at least."""
        return default_interval_us(self.retention_us) if self.interval_us is None else self.interval_us

    @property
    def segments_in_retention(self) -> int:
        """Return the number of segments that one retention fills."""
        return -(-self.retention_us // self.segment_us)

    @property
    def segments_live(self) -> int:
        """Return the most segments that are live: one more, while the oldest is still needed in part."""
        return self.segments_in_retention + 1

    def messages(self, us: int) -> Fraction:
        """Return the number of messages in a period."""
        return self.rate * us / SECOND_US

    def keys(self, us: int) -> Fraction:
        """Return the number of new keys in a period."""
        return self.messages(us) * (1 - self.duplicate_share)


@dataclass(frozen=True, slots=True)
class WindowStore:
    """The size of a window store of Kafka Streams; GiB are truncated, not rounded, as in its formulas."""

    raw_entry_bytes: int
    entry_bytes: Fraction
    segment_bytes: int
    changelog_bytes: int
    segments: int
    segments_live: int

    @property
    def segment_gib(self) -> int:
        """Return the size of a segment."""
        return self.segment_bytes // GIB

    @property
    def store_gib(self) -> int:
        """Return the size of the segments that one retention fills."""
        return self.segment_gib * self.segments

    @property
    def live_gib(self) -> int:
        """Return the size of the most segments that are live."""
        return self.segment_gib * self.segments_live

    @property
    def changelog_gib(self) -> int:
        """Return the size of the changelog."""
        return self.changelog_bytes // GIB


@dataclass(frozen=True, slots=True)
class Segments:
    """The segmented store at its largest: just before the oldest segment is removed."""

    segment_keys: int
    live_keys: int
    store_bytes_a_key: Fraction
    change_bytes_a_key: int
    partitions: int
    standbys: int
    segment_bytes: int
    store_bytes: int
    filter_bytes: int
    changelog_files_bytes: int
    change_bytes_a_second: int
    snapshot_bytes_a_second: int
    filter_reads_a_second: int

    @property
    def local_bytes(self) -> int:
        """Return the bytes on local disks of one copy of all partitions."""
        return self.store_bytes + self.filter_bytes

    @property
    def compaction_bytes(self) -> int:
        """Return the temporary bytes of a compaction: the active segment is rewritten whole."""
        return self.segment_bytes

    @property
    def checkpoint_bytes(self) -> int:
        """Return the bytes of the checkpoint: the newest snapshot, files of older ones, changelog files."""
        return self.local_bytes + self.segment_bytes + self.changelog_files_bytes

    @property
    def disk_bytes(self) -> int:
        """Return the local disk that all hosts together need so that it is never fuller than `FILL_MAX`."""
        copies = 1 + self.standbys
        return int((self.local_bytes + self.compaction_bytes) * copies / FILL_MAX)

    @property
    def checkpoint_disk_bytes(self) -> int:
        """Return the disk that the checkpoint needs."""
        return int(self.checkpoint_bytes / FILL_MAX)

    @property
    def partition_bytes(self) -> int:
        """Return the bytes of one partition's local store."""
        return -(-self.local_bytes // self.partitions)

    @property
    def partition_restore_seconds(self) -> int:
        """Return how long the restore of one partition from the checkpoint takes."""
        return -(-self.live_keys // (self.partitions * RESTORE_KEYS_A_SECOND))


@dataclass(frozen=True, slots=True)
class Estimate:
    """The sizes of one workload in both layouts, and notes about them."""

    load: Workload
    window_store: WindowStore
    segments: Segments
    notes: tuple[str, ...]


def estimate(load: Workload) -> Estimate:
    """Return the sizes of a workload in both layouts; a pure function."""
    window_store = _window_store(load)
    return Estimate(load, window_store, _segments(load), _notes(load, window_store))


def _window_store(load: Workload) -> WindowStore:
    raw = load.key_bytes + load.value_bytes + load.metadata_bytes
    entry = raw * load.overhead
    return WindowStore(
        raw_entry_bytes=raw,
        entry_bytes=entry,
        segment_bytes=int(load.messages(load.segment_us) * entry),
        changelog_bytes=int(load.messages(load.retention_us) * raw * load.changelog_overhead),
        segments=load.segments_in_retention,
        segments_live=load.segments_live,
    )


def _segments(load: Workload) -> Segments:
    entry_bytes = GROUP_BYTES + (load.key_bytes if load.exact_keys else DIGEST_BYTES) + TIME_BYTES
    entry_bytes += OFFSET_BYTES if load.with_offsets else 0
    # The overhead of RocksDB is proportional; a text that compresses well may take less.
    a_key = STORE_BYTES_A_KEY * entry_bytes / ENTRY_BYTES
    segment_keys, live_keys = load.keys(load.segment_us), load.keys(load.retention_us + load.segment_us)
    store_bytes, filter_bytes = int(live_keys * a_key), int(live_keys * FILTER_BYTES_A_KEY)
    partitions = load.partitions or _partitions(store_bytes + filter_bytes)
    keys_a_second = load.keys(SECOND_US)
    return Segments(
        segment_keys=int(segment_keys),
        live_keys=int(live_keys),
        store_bytes_a_key=a_key,
        change_bytes_a_key=entry_bytes,
        partitions=partitions,
        standbys=load.standbys,
        segment_bytes=int(segment_keys * (a_key + FILTER_BYTES_A_KEY)),
        store_bytes=store_bytes,
        filter_bytes=filter_bytes,
        changelog_files_bytes=min(
            (SNAPSHOTS_RETAINED + 1) * SNAPSHOT_CHANGES_BYTES_MAX * partitions, store_bytes
        ),
        change_bytes_a_second=int(keys_a_second * entry_bytes),
        snapshot_bytes_a_second=int(keys_a_second * (a_key * FILE_WRITES_A_KEY + FILTER_BYTES_A_KEY)),
        filter_reads_a_second=int(load.rate * load.segments_live),
    )


def _partitions(local_bytes: int) -> int:
    """Return the least power of two of partitions with which no local store is too large."""
    needed = max(1, -(-local_bytes // PARTITION_BYTES_MAX))
    return min(1 << (needed - 1).bit_length(), PARALLELISM_MAX)


def _notes(load: Workload, window_store: WindowStore) -> tuple[str, ...]:
    length = format_duration(Duration(load.segment_us))
    begin = format_duration(Duration(load.retention_us))
    notes = [
        f"{load.segments_live} segments of {length} are live at once, not {load.segments_in_retention}: a "
        f"segment goes when the stream is a whole retention past its end. The first time from {begin} on.",
    ]
    if window_store.segment_bytes >= GB:
        notes.append(
            f"{_gb(window_store.segment_bytes)} GB and {window_store.segment_gib:,} GiB are the same "
            "segment: 10⁹ bytes against 2³⁰."
        )
    if _as_planned(load):
        notes.append(
            f"Plans for this load name a changelog of 316 GB. By their own formula it has "
            f"{_gb(window_store.changelog_bytes)} GB ({window_store.changelog_gib:,} GiB)."
        )
    if load.partitions is not None and (_segments(load).partition_bytes > PARTITION_BYTES_MAX):
        better = _partitions(_segments(load).local_bytes)
        notes.append(f"A partition's local store would be above 64 GiB: {better} partitions are better.")
    return tuple(notes)


def _as_planned(load: Workload) -> bool:
    mine = (load.rate, load.retention_us, load.key_bytes, load.value_bytes, load.metadata_bytes)
    return (*mine, load.overhead, load.changelog_overhead, load.segment_us) == PLANNED


def _gb(size_bytes: int) -> str:
    return f"{size_bytes // GB:,}"


def _check(
    what: str,
    value: Fraction | int,
    least: int,
    most: int,
    unit: str,
    *,
    open_below: bool = False,
    open_above: bool = False,
) -> None:
    too_small = value <= least if open_below else value < least
    if not too_small and not (value >= most if open_above else value > most):
        return
    shown = f"{float(value):,.15g}"
    below = f"more than {least:,}" if open_below else f"at least {least:,}"
    above = f"less than {most:,}" if open_above else f"at most {most:,}"
    raise RequestInvalid(reason=f"The {what} is {shown}{unit and ' '}{unit}. It must be {below} and {above}.")


def _check_time(what: str, us: int, least_us: int) -> None:
    if least_us <= us <= RETENTION_US_MAX:
        return
    found = format_duration(Duration(us)) if us >= 0 else f"{us} µs"
    least, most = (format_duration(Duration(one)) for one in (least_us, RETENTION_US_MAX))
    raise RequestInvalid(reason=f"The {what} is {found}. It must be from {least} to {most}.")
