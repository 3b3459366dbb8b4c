"""What the layout of keys implies, calculated the other way round: the instance of a key group."""

from __future__ import annotations

from tidegate.checkpoint.keys.layout import entry_prefix

ENTRY_PREFIX_BYTES = len(entry_prefix(0, 0))


def instance_of(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """Return the instance that owns a key group."""
    return key_group * parallelism // max_parallelism
