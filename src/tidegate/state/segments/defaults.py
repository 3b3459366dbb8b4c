"""What deduplication takes unless the caller says otherwise: takes a bound of memory, gives settings."""

from __future__ import annotations

from dataclasses import replace

from tidegate.state.rocks_settings import GIB, MIB, RocksSettings

# A snapshot writes out what is in memory, a small file for each segment that was touched, and the files are
# merged again and again: with one after every tenth batch a key was written some fifty times in the life of
# its segment. Batches since the last snapshot are applied again after a kill, a million keys in a second.
SNAPSHOT_EVERY_BATCHES = 100
SNAPSHOT_CHANGES_BYTES_MAX = 128 * MIB

# With four files, universal compaction merges so often that what it writes grows with the number of
# snapshots; with twelve a key is written about five times. The filters make up for the longer search.
COMPACTION_TRIGGER_FILES = 12


def default_rocks(memory_bytes_max: int = GIB) -> RocksSettings:
    """Give how RocksDB keeps segments: the preset, merging less often."""
    preset = RocksSettings.deduplication(memory_bytes_max=memory_bytes_max)
    return replace(preset, level0_compaction_trigger=COMPACTION_TRIGGER_FILES)
