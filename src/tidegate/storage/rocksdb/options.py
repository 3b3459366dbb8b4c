"""The options of RocksDB, and the block cache that all engines of the process share."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, Options

from tidegate.storage.allocator import configure_allocator

MIB = 1024 * 1024

# RocksDB's info log (LOG) in the folder: enough for the last starts, and small.
INFO_LOG_FILES_MAX = 4
INFO_LOG_BYTES_MAX = MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The memory and disk limits of one engine."""

    block_cache_bytes: int = 64 * MIB  # of the one cache that all engines of the process share
    write_buffer_bytes: int = 32 * MIB
    write_buffers_max: int = 3
    wal_bytes_max: int = 128 * MIB  # bounds the replay after a crash
    block_bytes: int = 16 * 1024
    bloom_bits_per_key: int = 10  # one false positive in a hundred
    background_jobs_max: int = 2
    open_files_max: int = 512
    free_bytes_min: int = 64 * MIB  # the reserve that lets RocksDB finish flushes and compactions


class _SharedCache:
    """The one block cache of the process; it grows to the largest size in the options of an engine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cache: Any = None
        self._capacity_bytes = 0

    def of_at_least(self, capacity_bytes: int) -> Any:
        with self._lock:
            if self._cache is None:
                configure_allocator()  # before RocksDB's threads begin
                self._cache = Cache(capacity_bytes)
                self._capacity_bytes = capacity_bytes
            elif capacity_bytes > self._capacity_bytes:
                self._cache.set_capacity(capacity_bytes)
                self._capacity_bytes = capacity_bytes
            return self._cache


_shared_cache = _SharedCache()


def options_of(settings: EngineOptions) -> Options:
    """Return the options for a store; they also apply to existing stores."""
    table = BlockBasedOptions()
    table.set_block_cache(_shared_cache.of_at_least(settings.block_cache_bytes))
    table.set_block_size(settings.block_bytes)
    table.set_bloom_filter(settings.bloom_bits_per_key, False)
    # Filters and indexes stay outside the cache, as long as their file is open: the filter of a large file is
    # too big for a shard of the cache, and reading it again cost a lookup of 1,000 keys 12 ms instead of 0.3.
    table.set_cache_index_and_filter_blocks(False)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(settings.write_buffer_bytes)
    options.set_max_write_buffer_number(settings.write_buffers_max)
    options.set_max_total_wal_size(settings.wal_bytes_max)
    # An incomplete last write of a killed process is dropped; a wrong checksum anywhere else fails the open.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_paranoid_checks(True)
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_max_background_jobs(settings.background_jobs_max)
    options.set_max_open_files(settings.open_files_max)
    options.set_bytes_per_sync(MIB)
    options.set_keep_log_file_num(INFO_LOG_FILES_MAX)
    options.set_max_log_file_size(INFO_LOG_BYTES_MAX)
    options.set_stats_dump_period_sec(0)
    return options
