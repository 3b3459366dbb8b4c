"""Hashes and small filters for tests: pages of a few thousand keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tidegate.dedup.bloom.blocked import Hashes
from tidegate.dedup.bloom.filter import BloomFilter
from tidegate.dedup.bloom.memory import FilterBudget, FilterSettings

SMALL = FilterSettings(page_keys_min=1_000, page_keys_max=60_000)
# Every page is large enough for a base and deltas.
INCREMENTAL = FilterSettings(page_keys_min=20_000, page_keys_max=60_000, base_bytes_min=1)


def hashes_of(seed: int, count: int) -> Hashes:
    return np.random.default_rng(seed).integers(0, 1 << 64, count, dtype=np.uint64)


def opened(
    folder: Path, how: FilterSettings = SMALL, count_min: int = 0, held: list[Hashes] | None = None
) -> BloomFilter:
    """Open a filter; `held` are the hashes that a segment would have stored."""
    stored = None if held is None else lambda: iter(held)
    return BloomFilter(folder, how, FilterBudget(), count_min=count_min, stored=stored)
