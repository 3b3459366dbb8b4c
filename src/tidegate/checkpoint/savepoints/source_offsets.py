"""The offsets of a query's sources after one batch, from Spark's offset log, stored in a savepoint.

Spark writes `<checkpoint>/offsets/N` before batch N runs: it has the end of that batch, so a query that
begins there continues with the first row after it. Spark removes old ones, so the savepoint of batch N has
the text in a file of its own, `offsets.json`, sealed as a record is. Savepoints made before there was such a
file, and those of batch jobs, have none.

The commit records of a batch have the digest of that text as their plan id: a text with another digest is of
another plan of the batch, which somebody made by removing files of `offsets`, and is left out.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tidegate.checkpoint.commit_record import read_commit_record
from tidegate.checkpoint.epochs import Epoch
from tidegate.checkpoint.store import CheckpointStore, checkpoint_error, checkpoint_path
from tidegate.errors import NotFound, StorageCorrupt
from tidegate.storage.sealed_json import seal, unseal

log = logging.getLogger(__name__)

FORMAT = 1
OFFSETS_NAME = "offsets.json"

# The plan id of a streaming query has the same length (pipeline/stateful/spark_log.py).
PLAN_ID_BYTES = 16
# In the offset of a source without rows, from which no query begins: the ticks of an operator.
TICKS_MARK = "ticksOf"
# In an offset of a topic: the incarnation of the topic that the other members belong to.
TOPIC_MARK = "topic"

# Spark's file: a version, a line of metadata of the batch, then a line for each source.
_LINES_BEFORE = 2
# Spark's line for a source of which nothing was read yet.
_NOTHING_READ = "-"

_HINT = "`tidegate state savepoints` shows the offsets of the sources of each savepoint."


@dataclass(frozen=True, slots=True)
class SourceOffsets:
    """The offsets of the sources of a query after a batch: the whole text of Spark's file."""

    batch: int
    text: str

    @property
    def sources(self) -> list[Any]:
        """Return the offset of each source from the text; None where nothing was read.

        A source without rows is left out. An offset that is no JSON is returned as text.
        """
        found = [_parsed(line) for line in self.text.splitlines()[_LINES_BEFORE:]]
        return [offset for offset in found if not (isinstance(offset, dict) and TICKS_MARK in offset)]

    def to_bytes(self) -> bytes:
        """Return the bytes of `offsets.json`."""
        return seal({"format": FORMAT} | asdict(self))

    @classmethod
    def from_bytes(cls, content: bytes, place: str) -> SourceOffsets:
        """Return the offsets of an `offsets.json`; damage and an unknown format are errors."""
        fields = unseal(content, place, FORMAT)
        try:
            return cls(int(fields["batch"]), str(fields["text"]))
        except (KeyError, ValueError, TypeError) as problem:
            raise StorageCorrupt(place=place, reason="fields are missing or unknown") from problem


def offsets_path(store: CheckpointStore, batch: int) -> Path:
    """Return the path of Spark's offsets of a batch of an operator's query."""
    return store.root.parent.parent / "offsets" / str(batch)


def offsets_after(store: CheckpointStore, epoch: Epoch, batch: int) -> SourceOffsets | None:
    """Return the offsets of the sources after a batch that is complete; None when Spark has none."""
    path = offsets_path(store, batch)
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as problem:
        raise checkpoint_error(path, problem) from problem
    commits = [
        read_commit_record(store, epoch.number, partition, batch) for partition in range(epoch.parallelism)
    ]
    plan_id = hashlib.blake2b(content, digest_size=PLAN_ID_BYTES).hexdigest()
    if any(commit is None or commit.plan_id != plan_id for commit in commits):
        log.warning("offsets belong to another plan, not stored batch=%d file=%s", batch, path)
        return None
    return SourceOffsets(batch, content.decode())


def read_offsets(folder: str | Path) -> SourceOffsets | None:
    """Return the offsets of the sources when a savepoint was made; None when it has none."""
    store = CheckpointStore(checkpoint_path(str(folder)))
    content = store.read(OFFSETS_NAME)
    return None if content is None else SourceOffsets.from_bytes(content, str(store.path(OFFSETS_NAME)))


def starting_offsets(folder: str | Path, source: int = 0) -> str:
    """Return the option `startingOffsets` with which a source continues where a savepoint was made.

    Sources are counted from 0 in the order of the query. NotFound when the savepoint has no offset of it, or
    it is of a kind that has no such option.
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
    """Return an offset of a topic or of Kafka in the form of `startingOffsets`; None for any other source."""
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
