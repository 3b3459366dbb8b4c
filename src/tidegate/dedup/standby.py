"""Settings with which a standby opens the segmented store of a deduplication."""

from __future__ import annotations

from tidegate.checkpoint.backends.rocksdb_options import RocksSettings
from tidegate.checkpoint.settings import StateSettings
from tidegate.checkpoint.standby import MEMORY_BYTES_MAX
from tidegate.checkpoint.store import CheckpointStore
from tidegate.dedup.identity import read_identity
from tidegate.dedup.settings import SegmentSettings
from tidegate.dedup.store.store import SegmentStoreFactory


def standby_settings(checkpoint_store: CheckpointStore, local_root: str | None) -> StateSettings | None:
    """Return settings that open the stores of a deduplication as its tasks do; None for another operator."""
    operator = checkpoint_store.root.name
    known = read_identity(checkpoint_store, operator)
    if known is None:
        return None
    segments = SegmentSettings(
        store=operator,
        retention_us=known.retention_us,
        interval_us=known.interval_us,
        exact_keys=known.exact_keys,
        with_offsets=known.with_offsets,
    )
    options = RocksSettings.deduplication(memory_bytes_max=MEMORY_BYTES_MAX)
    return StateSettings(backend=SegmentStoreFactory(segments, options), local_root=local_root)
