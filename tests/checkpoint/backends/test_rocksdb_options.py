"""Settings of RocksDB: the named defaults, the preset, each field's effect, the bound on memory."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tidegate.checkpoint.backend import StateChanges, Version
from tidegate.checkpoint.backends.rocksdb import RocksBackend
from tidegate.checkpoint.backends.rocksdb_options import GIB, KIB, MIB, RocksSettings
from tidegate.errors import StateInvalid

# A value other than the default, and the line of RocksDB's own options file that shows it.
SHOWN: dict[str, tuple[Any, str]] = {
    "write_buffer_size": (3 * MIB, f"write_buffer_size={3 * MIB}"),
    "write_buffer_count": (5, "max_write_buffer_number=5"),
    "max_open_files": (77, "max_open_files=77"),
    "compaction_style": ("universal", "compaction_style=kCompactionStyleUniversal"),
    "target_file_size_base": (7 * MIB, f"target_file_size_base={7 * MIB}"),
    "max_bytes_for_level_base": (9 * MIB, f"max_bytes_for_level_base={9 * MIB}"),
    "level_compaction_dynamic_level_bytes": (False, "level_compaction_dynamic_level_bytes=false"),
    "block_size": (32 * KIB, f"block_size={32 * KIB}"),
    "compression_type": ("zstd", "compression=kZSTD"),
    "level0_compaction_trigger": (3, "level0_file_num_compaction_trigger=3"),
    "level0_slowdown_trigger": (21, "level0_slowdown_writes_trigger=21"),
    "level0_stop_trigger": (41, "level0_stop_writes_trigger=41"),
    "max_background_jobs": (3, "max_background_jobs=3"),
    "optimize_filters_for_hits": (True, "optimize_filters_for_hits=true"),
}
# Those of memory, which RocksDB's file does not show: what they change here.
COUNTED: dict[str, tuple[Any, str]] = {
    "block_cache_size": (100 * MIB, "cache_bytes"),
    "memory_bytes_max": (32 * MIB, "cache_bytes"),
    "slots": (16, "buffers_bytes"),
}

# Fills several copies far beyond the bound and says how much memory that took.
CHILD = """
import random, sys, time
from pathlib import Path
import psutil
from tidegate.checkpoint.backend import StateChanges, Version
from tidegate.checkpoint.backends.rocksdb import RocksBackend
from tidegate.checkpoint.backends.rocksdb_options import MIB, RocksSettings, _shared_memory

settings = RocksSettings(memory_bytes_max=64 * MIB, slots=4, write_buffer_size=2 * MIB)
copies = [RocksBackend(Path(sys.argv[1]) / str(number), settings) for number in range(4)]
rng, used = random.Random(7), 0
before = psutil.Process().memory_info().rss
def is_flushing(copy):
    named = ("rocksdb.num-running-flushes", "rocksdb.mem-table-flush-pending")
    return any(copy._db.property_int_value(name) for name in named)
known = [[] for _ in copies]
for batch in range(12):
    for copy, keys in zip(copies, known):
        entries = {b"%d" % rng.randrange(10**9): rng.randbytes(1000) for _ in range(1000)}
        copy.apply(StateChanges(entries=entries), Version(0, batch, "head"))
        keys += entries
        copy.get_many(sorted(keys))
        # What threads that get no core have not written out yet is bounded by the write buffers alone.
        while any(map(is_flushing, copies)):
            time.sleep(0.001)
        used = max(used, _shared_memory.of(settings)[0].get_usage())
print(settings.share_bytes, used, psutil.Process().memory_info().rss - before)
"""


def options_file(settings: RocksSettings, folder: Path) -> str:
    RocksBackend(folder, settings).close()
    return max(folder.glob("OPTIONS-*")).read_text()


def test_every_field_is_covered_here() -> None:
    covered = {"bloom_filter_bits_per_key", *SHOWN, *COUNTED}
    assert {field.name for field in fields(RocksSettings)} == covered


def test_more_bits_make_larger_filters(tmp_path: Path) -> None:
    sizes = []
    for bits in (0, 10, 40):
        backend = RocksBackend(tmp_path / str(bits), RocksSettings(bloom_filter_bits_per_key=bits))
        entries: dict[bytes, bytes | None] = {b"%d" % number: b"v" for number in range(4000)}
        backend.apply(StateChanges(entries=entries), Version(0, 0, "head"))
        backend.close()
        sizes.append(sum(table.stat().st_size for table in (tmp_path / str(bits)).glob("*.sst")))
    assert sizes[1] - sizes[0] > 4000
    assert sizes[2] - sizes[1] > 12_000


def test_every_field_has_its_effect_on_rocksdb(tmp_path: Path) -> None:
    plain = options_file(RocksSettings(), tmp_path / "plain")
    values = {name: value for name, (value, _) in SHOWN.items()}
    changed = options_file(replace(RocksSettings(), **values), tmp_path / "changed")
    for _, shown in SHOWN.values():
        line = re.compile(rf"^\s*{re.escape(shown)}$", re.MULTILINE)
        assert line.search(changed), shown
        assert not line.search(plain), shown


@pytest.mark.parametrize("name", COUNTED)
def test_every_field_of_memory_has_its_effect(name: str) -> None:
    value, result = COUNTED[name]
    assert getattr(replace(RocksSettings(), **{name: value}), result) != getattr(RocksSettings(), result)


def test_settings_of_a_copy_that_exists_are_taken_too(tmp_path: Path) -> None:
    options_file(RocksSettings(), tmp_path)
    assert "max_open_files=77" in options_file(RocksSettings(max_open_files=77), tmp_path)


def test_the_defaults_and_the_preset_are_the_documented_ones() -> None:
    plain, production = RocksSettings(), RocksSettings.production()
    assert (plain.block_cache_size, plain.write_buffer_size, plain.write_buffer_count) == (
        8 * MIB,
        64 * MIB,
        2,
    )
    assert (plain.max_open_files, plain.bloom_filter_bits_per_key, plain.block_size) == (-1, 10, 4 * KIB)
    assert (plain.target_file_size_base, plain.max_bytes_for_level_base) == (64 * MIB, 256 * MIB)
    assert production == RocksSettings(
        block_cache_size=256 * MIB,
        write_buffer_size=128 * MIB,
        write_buffer_count=3,
        max_open_files=5000,
        compaction_style="level",
        target_file_size_base=128 * MIB,
        max_bytes_for_level_base=512 * MIB,
        level_compaction_dynamic_level_bytes=True,
        bloom_filter_bits_per_key=10,
        block_size=16 * KIB,
        compression_type="lz4",
        memory_bytes_max=2 * GIB,
    )
    universal = RocksSettings.production(memory_bytes_max=GIB, compaction_style="universal")
    assert universal == replace(production, memory_bytes_max=GIB, compaction_style="universal")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("block_cache_size", 5, "block_cache_size"),
        ("block_cache_size", 8.5e6, "whole number"),
        ("write_buffer_count", 1, "2 or more"),
        ("write_buffer_count", True, "whole number"),
        ("max_open_files", 0, "-1 for no limit"),
        ("block_size", 100, "block_size"),
        ("bloom_filter_bits_per_key", -1, "no filter"),
        ("compaction_style", "fifo", "throws the oldest entries away"),
        ("compression_type", "rar", "none, snappy, lz4, zstd"),
        ("slots", 0, "slots"),
        ("memory_bytes_max", MIB, "memory_bytes_max leaves"),
    ],
)
def test_settings_that_cannot_work_are_refused(name: str, value: Any, reason: str) -> None:
    with pytest.raises(StateInvalid, match=reason):
        replace(RocksSettings(), **{name: value})


def test_each_slot_has_its_part_of_the_memory() -> None:
    settings = RocksSettings.production(memory_bytes_max=GIB, slots=8)
    assert settings.share_bytes == 128 * MIB
    assert settings.cache_bytes == 128 * MIB
    assert settings.buffers_bytes == 64 * MIB


def test_memory_stays_within_its_share_with_several_copies_open(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True, check=True
    )
    share, used, grown = map(int, done.stdout.split())
    assert share == 16 * MIB
    # Blocks that are being read are held beyond the capacity, a few at a time.
    assert used <= share + 2 * MIB
    # Besides: what Python holds of the batch, and what the allocator keeps of flushes and compactions.
    assert grown <= share + 48 * MIB
