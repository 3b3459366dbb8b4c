"""Where the sources stood: takes Spark's offset log, gives what it has of one batch, for a savepoint to keep.

Spark writes `<checkpoint>/offsets/N` before batch N runs: it says where that batch ends, so a query that
begins there goes on with the first row after it. Spark removes old ones, so the savepoint of batch N has the
text in a file of its own, `offsets.json`, sealed as a record is. Savepoints made before there was such a
file, and those of batch jobs, have none.

The heads of a batch have the digest of that text as their plan id: a text that does not fit is of another
plan of the batch, which somebody made by removing files of `offsets`, and is left out.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tidegate.checkpoint.commit_record import read_head
from tidegate.checkpoint.epochs import Epoch
from tidegate.checkpoint.store import Depot, checkpoint_error, checkpoint_path
from tidegate.errors import NotFound, StorageCorrupt
from tidegate.storage.sealed_json import seal, unseal

log = logging.getLogger(__name__)

FORMAT = 1
OFFSETS_NAME = "offsets.json"

# As the plan id of a streaming query is made (pipeline/stateful/spark_log.py).
PLAN_ID_BYTES = 16
# The offset of a source that gives no rows, and with them no place to begin: the ticks of an operator.
TICKS_MARK = "ticksOf"
# In an offset of a topic: which life of the topic the others belong to.
TOPIC_MARK = "topic"

# Spark's file: a version, a line of facts about the batch, then a line for each source.
_LINES_BEFORE = 2
# What Spark writes for a source of which nothing was read yet.
_NOTHING_READ = "-"

_HINT = "`tidegate state savepoints` shows where the sources of each savepoint stood."


@dataclass(frozen=True, slots=True)
class SourceOffsets:
    """Where the sources of a query stood after a batch: the text of Spark's file, whole."""

    batch: int
    text: str

    @property
    def sources(self) -> list[Any]:
        """Return the offset of each source as it stands in the text; None where nothing was read.

        A source that gives no rows is left out. An offset that is no JSON is given as text.
        """
        found = [_parsed(line) for line in self.text.splitlines()[_LINES_BEFORE:]]
        return [offset for offset in found if not (isinstance(offset, dict) and TICKS_MARK in offset)]

    def to_bytes(self) -> bytes:
        """Return the bytes of `offsets.json`."""
        return seal({"format": FORMAT} | asdict(self))

    @classmethod
    def from_bytes(cls, content: bytes, place: str) -> SourceOffsets:
        """Read `offsets.json`; damage and an unknown format are errors."""
        fields = unseal(content, place, FORMAT)
        try:
            return cls(int(fields["batch"]), str(fields["text"]))
        except (KeyError, ValueError, TypeError) as problem:
            raise StorageCorrupt(place=place, reason="fields are missing or unknown") from problem


def offsets_path(depot: Depot, batch: int) -> Path:
    """Return where Spark has the offsets of a batch of an operator's query."""
    return depot.root.parent.parent / "offsets" / str(batch)


def offsets_after(depot: Depot, epoch: Epoch, batch: int) -> SourceOffsets | None:
    """Return where the sources stood after a batch that is complete; None when Spark does not say so."""
    path = offsets_path(depot, batch)
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as problem:
        raise checkpoint_error(path, problem) from problem
    heads = [read_head(depot, epoch.number, partition, batch) for partition in range(epoch.parallelism)]
    plan_id = hashlib.blake2b(content, digest_size=PLAN_ID_BYTES).hexdigest()
    if any(head is None or head.plan_id != plan_id for head in heads):
        log.warning("%s is not how batch %d was planned when it was done; it is left out", path, batch)
        return None
    return SourceOffsets(batch, content.decode())


def read_offsets(folder: str | Path) -> SourceOffsets | None:
    """Return where the sources stood when a savepoint was made; None when it does not say."""
    depot = Depot(checkpoint_path(str(folder)))
    content = depot.read(OFFSETS_NAME)
    return None if content is None else SourceOffsets.from_bytes(content, str(depot.path(OFFSETS_NAME)))


def starting_offsets(folder: str | Path, source: int = 0) -> str:
    """Return what a source's option `startingOffsets` takes to go on where a savepoint was made.

    Sources are counted from 0 in the order of the query. NotFound when the savepoint does not say where it
    stood, or it is of a kind that has no such option.
    """
    found = read_offsets(folder)
    sources = [] if found is None else found.sources
    starting = starting_option(sources[source]) if 0 <= source < len(sources) else None
    if starting is None:
        raise NotFound(
            reason=f"The savepoint {folder} has no startingOffsets of source {source}.", hint=_HINT
        )
    return starting


def starting_option(offset: Any) -> str | None:
    """Return an offset as `startingOffsets` takes it, of a topic or of Kafka; None for any other source."""
    if not isinstance(offset, dict):
        return None
    if isinstance(offset.get(TOPIC_MARK), int):
        positions = {name: at for name, at in offset.items() if name != TOPIC_MARK}
        return json.dumps(positions) if positions and _are_positions(positions) else None
    if offset and all(isinstance(one, dict) and _are_positions(one) for one in offset.values()):
        return json.dumps(offset)
    return None


def _are_positions(found: dict[str, Any]) -> bool:
    return all(partition.isdecimal() and isinstance(at, int) for partition, at in found.items())


def _parsed(line: str) -> Any:
    if line == _NOTHING_READ:
        return None
    try:
        return json.loads(line)
    except ValueError:
        return line
