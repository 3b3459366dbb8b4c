"""Consistent copies of the Spark checkpoints of running pipelines, from which a query resumes exactly once.

Spark writes `offsets/n` before batch n, Delta's sink commits the batch with the transaction (query id, n),
and Spark writes `commits/n` after it. On a start, Spark reads the newest n in `offsets`: if it is committed,
Spark continues with n + 1; else it runs n again, and Delta skips it where the table has it. So a copy needs:

- every batch in `commits` is in the table, or its rows are lost;
- every batch in the table is in `offsets`, or Spark plans another batch under its number, which Delta skips;
- `offsets` is at most one ahead of `commits`, or Spark runs only the newest and the rows between are lost.

So commits are read before the tables are copied, and offsets after. Where at most one batch began in between,
all three hold. Where more did, the copy is cut at the batch that the table's own transaction names.

The state of our operators is in the same folder, under `state/<operator>/e<epoch>/<partition>`, with a commit
record `v<n>.head` for each batch that is done. A copy keeps what belongs to committed batches: a batch that
runs again begins with the state before it. The commit record of a later batch would say that the batch is
done, while its output may be lost.

A query that writes several tables may be further in one than in another. One batch does no harm: it runs
again, and is skipped where it is. For more, no cut is right: the tables are copied again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tidegate.storage.files import link_or_copy

NONE_YET = -1
KEYED_DEPTH = 4  # folders above a file of a keyed operator: state, operator, epoch, partition
_EPOCH_FOLDER = re.compile(r"e\d+")
_KEYED_VERSION = re.compile(r"v?(\d+)\..+")  # of a commit record, of a file that it names, or of a snapshot
_STATE_VERSION = re.compile(r"(\d+)(_[\w-]+)?\.(delta|snapshot|changelog|zip)")


@dataclass(frozen=True, slots=True)
class CheckpointPosition:
    """A checkpoint at one moment: its query, and the newest batch of a log (-1: none yet)."""

    metadata: bytes
    newest: int

    @property
    def query_id(self) -> str:
        """The id under which the query commits to Delta tables; empty where there is none yet."""
        try:
            return str(json.loads(self.metadata)["id"])
        except (ValueError, KeyError, TypeError):
            return ""


def committed_positions(checkpoints: Path) -> dict[str, CheckpointPosition]:
    """Return the newest committed batch of each pipeline; call it before the tables are copied."""
    return _positions(checkpoints, "commits")


def planned_positions(checkpoints: Path) -> dict[str, CheckpointPosition]:
    """Return the newest planned batch of each pipeline; call it after the tables were copied."""
    return _positions(checkpoints, "offsets")


def is_settled(committed: CheckpointPosition | None, begun: CheckpointPosition) -> bool:
    """True if at most one batch began between the two positions, of one and the same query."""
    if committed is None or not committed.metadata:
        return begun.newest <= 0
    return committed.metadata == begun.metadata and begun.newest <= committed.newest + 1


def batch_to_keep(
    committed: CheckpointPosition | None, begun: CheckpointPosition, tables: Iterable[Path]
) -> tuple[int, int] | None:
    """Return the newest batch to keep in `offsets` and in `commits`, None where no cut fits all tables."""
    done = committed.newest if committed and committed.metadata == begun.metadata else NONE_YET
    if is_settled(committed, begun):
        return begun.newest, done
    # A committed batch is in every table of the query; a table without it is no longer written by the query.
    written = [batch for table in tables if (batch := _transaction_of(table, begun.query_id)) >= max(done, 0)]
    if not written:  # it writes to a place that we cannot read: rather again than not at all
        return min(begun.newest, done + 1), done
    if min(written) < max(written) - 1:
        return None
    return max(written), max(done, max(written) - 1)


def copy_checkpoint(source: Path, target: Path, keep: tuple[int, int]) -> None:
    """Copy a checkpoint up to a batch; files that vanish meanwhile are older than a start needs."""
    offsets, commits = keep
    for folder, folders, names in os.walk(source):
        inside = Path(folder).relative_to(source)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        (target / inside).mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in sorted(names):
            # Hidden ones are incomplete, or Hadoop's checksums, which may belong to the file before.
            if not name.startswith(".") and _belongs_to_copy(inside, name, offsets, commits):
                with contextlib.suppress(FileNotFoundError):
                    # Spark renames every file into place: a hard link is as good as a copy.
                    link_or_copy(Path(folder) / name, target / inside / name, sync=False)


def _belongs_to_copy(inside: Path, name: str, offsets: int, commits: int) -> bool:
    top = inside.parts[0] if inside.parts else ""
    if top in ("offsets", "commits") and name.isdecimal():
        return int(name) <= (offsets if top == "offsets" else commits)
    if top == "state" and len(inside.parts) == KEYED_DEPTH and _EPOCH_FOLDER.fullmatch(inside.parts[2]):
        version = _KEYED_VERSION.fullmatch(name)
        return version is None or int(version[1]) <= commits
    if top == "state" and (match := _STATE_VERSION.fullmatch(name)):
        return int(match[1]) <= offsets + 1  # batch n reads version n and leaves n + 1
    return True


def _positions(checkpoints: Path, log: str) -> dict[str, CheckpointPosition]:
    positions = {}
    with contextlib.suppress(FileNotFoundError):
        for folder in sorted(path for path in checkpoints.iterdir() if path.is_dir()):
            positions[folder.name] = CheckpointPosition(_read(folder / "metadata"), _newest(folder / log))
    return positions


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _newest(folder: Path) -> int:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names are all we need
        return max((int(name) for name in names if name.isdecimal()), default=NONE_YET)
    except FileNotFoundError:
        return NONE_YET


def _transaction_of(table: Path, query_id: str) -> int:
    from deltalake import DeltaTable

    if not query_id:
        return NONE_YET
    found = DeltaTable(table.absolute().as_uri()).transaction_version(query_id)
    return NONE_YET if found is None else int(found)
