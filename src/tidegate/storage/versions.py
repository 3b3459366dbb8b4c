"""Decoding of stored structs with a version number: JSON or MessagePack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec

from tidegate.errors import StorageCorrupt


class Versioned(Protocol):
    """A struct whose `version` says how it was written."""

    @property
    def version(self) -> int: ...


S = TypeVar("S", bound=Versioned)


def decode_versioned(
    stored: bytes,
    kind: type[S],
    version: int,
    place: str,
    decode: Callable[..., Any] = msgspec.json.decode,
    *,
    version_min: int | None = None,
) -> S:
    """Return a stored struct; raise StorageCorrupt, which names `place`, for damage or another version.

    Versions from `version_min` on are read, where the struct has defaults for what they do not have.
    """
    try:
        found: S = decode(stored, type=kind)
    except msgspec.DecodeError as problem:
        raise StorageCorrupt(place=place, reason=str(problem)) from problem
    if not (version if version_min is None else version_min) <= found.version <= version:
        raise StorageCorrupt(place=place, reason=f"version {found.version}, this reads {version}")
    return found
