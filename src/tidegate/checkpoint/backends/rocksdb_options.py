"""The options of RocksDB for state, and the one block cache of a process.

All state databases that a process has open share one block cache. Index and filter blocks are in it, and
memtables are charged to it, so its capacity bounds the memory of RocksDB, however many databases are open.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, fields
from typing import Any, Literal

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DataBlockIndexType,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    WriteBufferManager,
)

from tidegate.errors import StateInvalid
from tidegate.storage.allocator import configure_allocator

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

CompactionStyle = Literal["level", "universal"]
CompressionType = Literal["none", "snappy", "lz4", "zstd"]

# Below this the top level of the indexes alone does not fit, and every read goes to the disk twice.
SHARE_BYTES_MIN = 4 * MIB

# Larger blocks are read whole for one key; with smaller ones the index is larger than the data.
BLOCK_BYTES_MIN = KIB
BLOCK_BYTES_MAX = MIB

# RocksDB's own info log (LOG) in the folder: enough to see the last opens.
INFO_LOG_FILES_MAX = 2
INFO_LOG_BYTES_MAX = MIB

# Beyond this RocksDB begins a new one: every snapshot has the whole of it.
MANIFEST_BYTES_MAX = MIB

# RocksDB's newest table format that the pinned rocksdict writes and reads.
TABLE_FORMAT = 6
META_BLOCK_BYTES = 4 * KIB

# The cache then estimates the average size of its blocks by itself.
CACHE_CHARGE_BYTES = 0

# A small filter before each memtable: most keys of a batch are not in it, and a lookup costs a search.
MEMTABLE_BLOOM_RATIO = 0.02

# Databases up to so many times the block cache have unpartitioned indexes and filters, which is a quarter
# faster. In larger ones they would evict each other from the cache, and one is read whole for a few keys; so
# they are partitioned there, and each partition is read by itself.
WHOLE_FILTER_CACHES_MAX = 2

# A file with deletions as dense as this is compacted soon: timers and expired entries are deleted from one
# end of their range, and each scan would read through what is left of them.
DELETIONS_WINDOW = 1024
DELETIONS_MAX = 512
DELETIONS_RATIO = 0.5

# More would only compete with other tasks for cores.
BACKGROUND_JOBS_MAX = 64

_COMPRESSIONS: dict[str, Any] = {
    "none": DBCompressionType.none,
    "snappy": DBCompressionType.snappy,
    "lz4": DBCompressionType.lz4,
    "zstd": DBCompressionType.zstd,
}
_STYLES: dict[str, Any] = {"level": DBCompactionStyle.level, "universal": DBCompactionStyle.universal}


@dataclass(frozen=True, slots=True, kw_only=True)
class RocksSettings:
    """How the RocksDB databases of one operator use memory and disk; sizes are bytes.

    `block_cache_size` and the write buffers are per slot, that is per Python worker, however many partitions
    it has open. `memory_bytes_max` bounds all slots of an executor together: each has an equal part of it.
    The `level0` triggers are the numbers of files not compacted yet at which RocksDB begins to compact, slows
    writes down and stops them. `max_background_jobs` are flushes and compactions at once, beside the working
    thread. `optimize_filters_for_hits` omits the filter where nearly all entries are, in the last level.
    """

    block_cache_size: int = 8 * MIB
    write_buffer_size: int = 64 * MIB
    write_buffer_count: int = 2
    max_open_files: int = -1
    compaction_style: CompactionStyle = "level"
    target_file_size_base: int = 64 * MIB
    max_bytes_for_level_base: int = 256 * MIB
    level_compaction_dynamic_level_bytes: bool = True
    bloom_filter_bits_per_key: int = 10
    block_size: int = 4 * KIB
    compression_type: CompressionType = "lz4"
    level0_compaction_trigger: int = 4
    level0_slowdown_trigger: int = 20
    level0_stop_trigger: int = 36
    max_background_jobs: int = 2
    optimize_filters_for_hits: bool = False
    memory_bytes_max: int = GIB
    slots: int = 1

    def __post_init__(self) -> None:
        for reason in _faults(self):
            raise StateInvalid(operator="with these RocksSettings", reason=reason)

    @classmethod
    def production(
        cls,
        *,
        memory_bytes_max: int = 2 * GIB,
        compaction_style: CompactionStyle = "level",
        slots: int = 1,
    ) -> RocksSettings:
        """Return the settings for large state: more memory, fewer and larger files."""
        return cls(
            compaction_style=compaction_style,
            block_cache_size=256 * MIB,
            write_buffer_size=128 * MIB,
            write_buffer_count=3,
            max_open_files=5000,
            target_file_size_base=128 * MIB,
            max_bytes_for_level_base=512 * MIB,
            block_size=16 * KIB,
            memory_bytes_max=memory_bytes_max,
            slots=slots,
        )

    @classmethod
    def deduplication(cls, *, memory_bytes_max: int = GIB, slots: int = 1) -> RocksSettings:
        """Return the settings for segments of keys: many new keys, few reads, seldom compacted files.

        Each segment has a Bloom filter of its own before RocksDB, which has none in the last level.
        """
        return cls(
            block_cache_size=64 * MIB,
            write_buffer_size=128 * MIB,
            write_buffer_count=4,
            max_open_files=512,
            compaction_style="universal",
            target_file_size_base=128 * MIB,
            block_size=16 * KIB,
            level0_stop_trigger=40,
            max_background_jobs=4,
            optimize_filters_for_hits=True,
            memory_bytes_max=memory_bytes_max,
            slots=slots,
        )

    @property
    def share_bytes(self) -> int:
        """Return the bytes of the executor's memory that one slot may use."""
        return self.memory_bytes_max // self.slots

    @property
    def buffers_bytes(self) -> int:
        """Return the bytes that the memtables of one slot may use: at most half of its share."""
        return min(self.write_buffer_size * self.write_buffer_count, self.share_bytes // 2)

    @property
    def whole_filter_bytes_max(self) -> int:
        """Return the size up to which a database has unpartitioned filters."""
        return WHOLE_FILTER_CACHES_MAX * min(self.block_cache_size, self.cache_bytes)

    @property
    def cache_bytes(self) -> int:
        """Return the capacity of one slot's cache, memtables included."""
        return min(self.block_cache_size + self.buffers_bytes, self.share_bytes)


def _faults(settings: RocksSettings) -> list[str]:
    """Return what is wrong with settings, each with a remedy."""
    found = [
        f"{field.name} is {getattr(settings, field.name)!r}, a whole number was expected"
        for field in fields(settings)
        if field.type in ("int", int) and type(getattr(settings, field.name)) is not int
    ]
    if found:
        return found
    for name in (
        "block_cache_size",
        "write_buffer_size",
        "target_file_size_base",
        "max_bytes_for_level_base",
    ):
        if getattr(settings, name) < MIB:
            found.append(f"{name} is {getattr(settings, name)} bytes, at least {MIB} are needed")
    if settings.write_buffer_count < 2:
        found.append("write_buffer_count must be 2 or more: one is written while another one is flushed")
    if settings.max_open_files != -1 and settings.max_open_files < 16:
        found.append("max_open_files must be 16 or more, or -1 for no limit")
    if not BLOCK_BYTES_MIN <= settings.block_size <= BLOCK_BYTES_MAX:
        found.append(f"block_size must lie between {BLOCK_BYTES_MIN} and {BLOCK_BYTES_MAX} bytes")
    if not 0 <= settings.bloom_filter_bits_per_key <= 64:
        found.append("bloom_filter_bits_per_key must lie between 0 (no filter) and 64")
    if settings.compaction_style not in _STYLES:
        found.append("compaction_style must be level or universal (fifo throws the oldest entries away)")
    if settings.compression_type not in _COMPRESSIONS:
        found.append(f"compression_type must be one of {', '.join(_COMPRESSIONS)}")
    triggers = (settings.level0_compaction_trigger, settings.level0_slowdown_trigger)
    if not 1 <= triggers[0] <= triggers[1] <= settings.level0_stop_trigger:
        found.append("level0_compaction_trigger, _slowdown_trigger and _stop_trigger must rise, from 1 on")
    if not 1 <= settings.max_background_jobs <= BACKGROUND_JOBS_MAX:
        found.append(f"max_background_jobs must lie between 1 and {BACKGROUND_JOBS_MAX}")
    if settings.slots < 1:
        found.append("slots must be 1 or more")
    elif settings.share_bytes < SHARE_BYTES_MIN:
        found.append(
            f"memory_bytes_max leaves {settings.share_bytes} bytes for each of {settings.slots} slots, "
            f"at least {SHARE_BYTES_MIN} are needed"
        )
    return found


class _SharedMemory:
    """The one cache of a process and the budget of its memtables, which are charged to the cache."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process_id = 0
        self._cache: Any = None
        self._buffers: Any = None
        self._cache_bytes = 0
        self._buffers_bytes = 0

    def of(self, settings: RocksSettings) -> tuple[Any, Any]:
        """Return cache and budget; both grow to the largest that any database of this process is set to."""
        with self._lock:
            if self._process_id != os.getpid():  # never one that was made before a fork
                self._process_id = os.getpid()
                configure_allocator()  # before RocksDB's threads begin
                self._cache_bytes, self._buffers_bytes = settings.cache_bytes, settings.buffers_bytes
                # Of this kind since its shards are large: the filter of a file has to fit into one of them.
                self._cache = Cache.new_hyper_clock_cache(self._cache_bytes, CACHE_CHARGE_BYTES)
                self._buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
                    self._buffers_bytes, False, self._cache
                )
            if settings.cache_bytes > self._cache_bytes:
                self._cache_bytes = settings.cache_bytes
                self._cache.set_capacity(self._cache_bytes)
            if settings.buffers_bytes > self._buffers_bytes:
                self._buffers_bytes = settings.buffers_bytes
                self._buffers.set_buffer_size(self._buffers_bytes)
            return self._cache, self._buffers


_shared_memory = _SharedMemory()


def options_of(settings: RocksSettings, *, filters_whole: bool) -> Options:
    """Return RocksDB's options for a database.

    An existing one uses them too, for the files it writes.
    """
    cache, buffers = _shared_memory.of(settings)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(_table_of(settings, cache, filters_whole))
    options.set_write_buffer_manager(buffers)
    options.set_memtable_prefix_bloom_ratio(MEMTABLE_BLOOM_RATIO)
    options.set_memtable_whole_key_filtering(True)
    options.set_compression_type(_COMPRESSIONS[settings.compression_type]())
    options.set_write_buffer_size(settings.write_buffer_size)
    options.set_max_write_buffer_number(settings.write_buffer_count)
    options.set_compaction_style(_STYLES[settings.compaction_style]())
    options.set_target_file_size_base(settings.target_file_size_base)
    options.set_max_bytes_for_level_base(settings.max_bytes_for_level_base)
    options.set_level_compaction_dynamic_level_bytes(settings.level_compaction_dynamic_level_bytes)
    options.set_max_open_files(settings.max_open_files)
    options.set_level_zero_file_num_compaction_trigger(settings.level0_compaction_trigger)
    options.set_level_zero_slowdown_writes_trigger(settings.level0_slowdown_trigger)
    options.set_level_zero_stop_writes_trigger(settings.level0_stop_trigger)
    options.set_max_background_jobs(settings.max_background_jobs)
    options.set_optimize_filters_for_hits(settings.optimize_filters_for_hits)
    options.set_paranoid_checks(True)
    options.add_compact_on_deletion_collector_factory(DELETIONS_WINDOW, DELETIONS_MAX, DELETIONS_RATIO)
    options.set_max_manifest_file_size(MANIFEST_BYTES_MAX)
    options.set_keep_log_file_num(INFO_LOG_FILES_MAX)
    options.set_max_log_file_size(INFO_LOG_BYTES_MAX)
    options.set_stats_dump_period_sec(0)
    return options


def _table_of(settings: RocksSettings, cache: Any, filters_whole: bool) -> BlockBasedOptions:
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_block_size(settings.block_size)
    table.set_format_version(TABLE_FORMAT)
    table.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
    if settings.bloom_filter_bits_per_key:
        table.set_bloom_filter(settings.bloom_filter_bits_per_key, False)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    if not filters_whole:
        table.set_index_type(BlockBasedIndexType.two_level_index_search())
        table.set_partition_filters(settings.bloom_filter_bits_per_key > 0)
        table.set_metadata_block_size(META_BLOCK_BYTES)
        table.set_pin_top_level_index_and_filter(True)
    return table
