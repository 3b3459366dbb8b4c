"""What a savepoint says of itself: `savepoint.json` in its folder, format 1.

A savepoint's folder is laid out as an operator's folder in a checkpoint is (schemas, an epoch, its partitions
with a snapshot and the change files after it), so that state is restored from either in one way.
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
    """A named state of an operator: everything it remembered after one batch."""

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
        """Read `savepoint.json`; damage and an unknown format are errors."""
        fields = unseal(content, place, FORMAT)
        try:
            del fields["format"]
            return cls(**(fields | {"times": Times(**fields["times"])}))
        except (KeyError, TypeError) as problem:
            raise StorageCorrupt(place=place, reason="fields are missing or unknown") from problem


def read_savepoint(folder: Path) -> Savepoint:
    """Read what a savepoint's folder says of itself; NotFound when it is no savepoint."""
    path = folder / RECORD_NAME
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as problem:
        hint = "`tidegate state savepoints` names those that are there, and where they lie."
        raise NotFound(reason=f"There is no savepoint in {folder}.", hint=hint) from problem
    return Savepoint.from_bytes(content, str(path))
