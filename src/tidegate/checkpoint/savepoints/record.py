"""The record of a savepoint: `savepoint.json` in its folder, format 1.

A savepoint's folder has the layout of a checkpoint store (schemas, an epoch, its partitions with a snapshot
and the changelog files after it), so that state is restored from either in the same way.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from tidegate.checkpoint.commit_record import Times
from tidegate.errors import NotFound, StorageCorrupt
from tidegate.storage.sealed_json import seal, unseal

FORMAT = 1
RECORD_NAME = "savepoint.json"


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A named copy of the state of an operator after one batch."""

    name: str
    operator: str
    epoch: int
    batch: int
    parallelism: int
    max_parallelism: int
    schema: int
    order_shift: int
    times: Times
    made_at_ms: int
    size_bytes: int

    def to_bytes(self) -> bytes:
        """Return the bytes of `savepoint.json`."""
        return seal({"format": FORMAT} | asdict(self) | {"times": self.times.record()})

    @classmethod
    def from_bytes(cls, content: bytes, place: str) -> Savepoint:
        """Return the record of a `savepoint.json`; damage and an unknown format are errors."""
        fields = unseal(content, place, FORMAT)
        try:
            del fields["format"]
            return cls(**(fields | {"times": Times(**fields["times"])}))
        except (KeyError, TypeError) as problem:
            raise StorageCorrupt(place=place, reason="fields are missing or unknown") from problem


def read_savepoint(folder: Path) -> Savepoint:
    """Return the record of a savepoint's folder; NotFound when it is no savepoint."""
    path = folder / RECORD_NAME
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as problem:
        hint = "`tidegate state savepoints` lists the existing ones, with their folders."
        raise NotFound(reason=f"There is no savepoint in {folder}.", hint=hint) from problem
    return Savepoint.from_bytes(content, str(path))
