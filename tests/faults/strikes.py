"""What goes wrong, where and when; and the part of it that happens inside a Python worker.

A strike happens once: the first one to get there makes a file with its name. That file also tells the run
that it did happen; a plan whose strikes never came is a run that proves nothing.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import psutil

from tidegate.checkpoint.crash_points import ONCE_VARIABLE, POINT_VARIABLE

Kind = Literal[
    "raise",  # an exception in the middle of a batch
    "die",  # the Python worker is killed in the middle of a batch
    "slow",  # a partition takes long: a second attempt begins where speculation is on
    "full",  # the disk is full in the middle of a batch
    "point",  # the Python worker is killed at a named point of the commit
    "driver",  # the driver is killed when a Python worker gets to a named point
    "executor",  # the executor is killed in the middle of a batch
    "before-sink",  # the driver is killed: Spark has noted the offsets, nothing ran
    "in-sink",  # the driver is killed: everything ran, the sink did not finish
    "after-sink",  # the driver is killed: the sink is done, Spark has not committed
    "twice",  # the batch is evaluated twice
]
SLOW_SECONDS = 4.0
# Workers that outlive their driver close their copies first; on a loaded machine that takes a while.
ALONE_SECONDS_MAX = 120.0
# Not every batch gets to these: they count from their batch on.
LOOSE_POINTS = frozenset(
    {"snapshot-linked", "snapshot-copied", "snapshot-written", "pruned", "epoch-written"}
)
BALLAST = "ballast"
# Below a folder: by it the processes of its drivers are known.
HOME = "home"
# The first partition that gets there: not every partition has rows.
ANY_PARTITION = -1


@dataclass(frozen=True, slots=True)
class Strike:
    """One disturbance: what, in which batch, in which partition of which operator, at which point."""

    kind: Kind
    batch: int
    partition: int = 0
    operator: str = "ledger"
    point: str = ""

    @property
    def name(self) -> str:
        """Return a name for the file that says that it happened."""
        parts = (self.kind, self.point, self.operator, f"p{self.partition}", f"b{self.batch}")
        return "-".join(filter(None, parts))

    @property
    def place(self) -> str:
        """Return what the environment says of the point: name, partition and batch."""
        if self.point == "epoch-written":
            return self.point
        batch = "" if self.point in LOOSE_POINTS else f":{self.batch}"
        partition = "" if self.partition == ANY_PARTITION else self.partition
        return f"{self.point}:{partition}{batch}"

    def is_near(self, batch: int) -> bool:
        """Return whether to set the point in a worker that does this batch."""
        return self.batch in (batch, batch + 1) or (self.point in LOOSE_POINTS and self.batch <= batch)


class Strikes:
    """The strikes of a plan; picklable, it goes to the Python workers with the operator."""

    def __init__(self, folder: Path, strikes: Iterable[Strike] = (), volume: str = "") -> None:
        self.folder = folder
        self.planned = tuple(strikes)
        self.volume = volume

    def save(self) -> None:
        """Write the plan where a driver finds it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        plan = {"volume": self.volume, "strikes": [asdict(strike) for strike in self.planned]}
        (self.folder / "plan.json").write_text(json.dumps(plan))

    @classmethod
    def load(cls, folder: Path) -> Strikes:
        """Read the plan."""
        plan = json.loads((folder / "plan.json").read_text())
        return cls(folder, [Strike(**strike) for strike in plan["strikes"]], plan["volume"])

    def happened(self, strike: Strike) -> bool:
        """Return whether a strike came."""
        return (self.folder / strike.name).exists()

    def missed(self) -> list[Strike]:
        """Return the strikes that did not come."""
        return [strike for strike in self.planned if not self.happened(strike)]

    def stand_still(self, waiting: Iterable[Strike]) -> None:
        """Go no further once one of these came that end the driver: whoever kills it may be slow."""
        while any(self.happened(strike) for strike in waiting):
            time.sleep(0.02)

    def take(self, strike: Strike) -> bool:
        """Return whether this one is the first to get there."""
        try:
            os.close(os.open(self.folder / strike.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        return True

    def in_sink(self, kind: Kind, batch: int) -> bool:
        """Return whether to strike in the sink now."""
        wanted = [strike for strike in self.planned if strike.kind == kind and strike.batch == batch]
        return any(self.take(strike) for strike in wanted)

    def arm(self, batch: int) -> None:
        """Set the named point for this batch, or for the next: a batch passes the first ones before this."""
        os.environ.pop(POINT_VARIABLE, None)
        os.environ.pop(ONCE_VARIABLE, None)
        # One that has to come in its batch goes before one that may come later.
        for strike in sorted(self.planned, key=lambda one: (one.point in LOOSE_POINTS, one.batch)):
            # An epoch begins before this is called: only a start sets its point.
            is_due = strike.point not in ("", "epoch-written") and strike.is_near(batch)
            if is_due and not self.happened(strike):
                self._set(strike)
                return

    def arm_start(self) -> None:
        """Set the point for workers that did nothing yet: that of an epoch first, as it comes before all."""
        waiting = [strike for strike in self.planned if strike.point and not self.happened(strike)]
        waiting.sort(key=lambda strike: (strike.point != "epoch-written", strike.batch))
        for strike in waiting[:1]:
            self._set(strike)

    def _set(self, strike: Strike) -> None:
        os.environ[POINT_VARIABLE] = strike.place
        os.environ[ONCE_VARIABLE] = str(self.folder / strike.name)

    def at_row(self, operator: str, partition: int, batch: int) -> None:
        """Do what is planned for the middle of this batch."""
        for strike in self.planned:
            here = (strike.operator, strike.batch) == (operator, batch)
            here = here and strike.partition in (ANY_PARTITION, partition)
            if here and strike.kind in ("raise", "die", "slow", "full", "executor") and self.take(strike):
                _strike(strike, self.volume)


def _strike(strike: Strike, volume: str) -> None:
    match strike.kind:
        case "raise":
            raise RuntimeError(f"planned: {strike.name}")
        case "full":
            fill(Path(volume))
        case "slow":
            time.sleep(SLOW_SECONDS)
        case "executor":
            os.kill(_executor_pid(), signal.SIGKILL)
            time.sleep(SLOW_SECONDS)
        case _:
            os.kill(os.getpid(), signal.SIGKILL)


def fill(volume: Path) -> None:
    """Leave no byte free; whoever writes next finds out."""
    with (volume / BALLAST).open("wb", buffering=0) as ballast:
        for size_bytes in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    ballast.write(bytes(size_bytes))
            except OSError as problem:
                if problem.errno != errno.ENOSPC:
                    raise


def _executor_pid() -> int:
    """Return the JVM above this Python worker; never the driver's."""
    for parent in psutil.Process().parents():
        if "CoarseGrainedExecutorBackend" in " ".join(parent.cmdline()):
            return int(parent.pid)
    raise RuntimeError("this Python worker belongs to no executor of its own")


def kill_tree(pid: int, *, spare_workers: bool) -> None:
    """Kill a driver and its JVM, and the Python workers too unless they are to find out by themselves."""
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        below = root.children(recursive=True)
        if pid != os.getpid():
            # It must not see its JVM die and say so.
            root.suspend()
        for one in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                if not (spare_workers and "pyspark.daemon" in " ".join(one.cmdline())):
                    one.kill()
        root.kill()


def wait_until_alone(folder: Path) -> None:
    """Wait until nothing is left of the drivers of a folder: their workers may write for a moment longer."""
    deadline = time.monotonic() + ALONE_SECONDS_MAX
    while any(_has_home(one, str(folder / HOME)) for one in psutil.process_iter()):
        if time.monotonic() > deadline:
            raise AssertionError(f"workers of {folder} are there after {ALONE_SECONDS_MAX} s")
        time.sleep(0.05)


def _has_home(process: psutil.Process, home: str) -> bool:
    try:
        return bool(process.pid != os.getpid() and process.environ().get("TIDEGATE_HOME") == home)
    except psutil.Error:  # it ended, or is another user's
        return False
