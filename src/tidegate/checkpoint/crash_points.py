"""Named crash points: steps of a batch at which a test or drill kills the Python worker.

Tests and drills set TIDEGATE_CRASH_POINT=<name>[:<partition>[:<batch>]] in the environment; the worker that
reaches that step is killed as by the kernel (signal 9): nothing is flushed, closed or reported. With
TIDEGATE_CRASH_ONCE=<file> only the first one that reaches it is killed: it creates that file.

The points, in the order in which a batch reaches them:

    opened             the epoch is known and there is no commit record of this batch yet
    restored           the local store is at the batch before
    worked             the operator has run; nothing of it is on the disk, unless it spilled
    changes-written    the changelog file is on the disk
    out-written        the output files are on the disk too; the commit record is not
    head-linked        the batch is committed; the local store does not have it yet
    applied            the local store is at this batch
    snapshot-linked    a snapshot's files are linked beside the local store
    snapshot-copied    they are in the checkpoint, and no manifest names them
    snapshot-written   the manifest is there
    pruned             what no retained snapshot needs is removed
    epoch-written      the record of a new epoch is there
"""

from __future__ import annotations

import os
import signal

POINT_VARIABLE = "TIDEGATE_CRASH_POINT"
ONCE_VARIABLE = "TIDEGATE_CRASH_ONCE"

POINTS = (
    "opened",
    "restored",
    "worked",
    "changes-written",
    "out-written",
    "head-linked",
    "applied",
    "snapshot-linked",
    "snapshot-copied",
    "snapshot-written",
    "pruned",
    "epoch-written",
)


def crash_point(name: str, partition: int | None = None, batch: int | None = None) -> None:
    """Kill this worker when the environment names this point; else do nothing."""
    spec = os.environ.get(POINT_VARIABLE)
    if not spec:
        return
    point, _, place = spec.partition(":")
    spec_partition, _, spec_batch = place.partition(":")
    if point != name or not _fits(spec_partition, partition) or not _fits(spec_batch, batch):
        return
    once = os.environ.get(ONCE_VARIABLE)
    if once:
        try:
            os.close(os.open(once, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return
    os.kill(os.getpid(), signal.SIGKILL)


def _fits(spec: str, actual: int | None) -> bool:
    return not spec or (actual is not None and spec == str(actual))
