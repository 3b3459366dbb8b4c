"""`tidegate state standby`: keeps copies of a checkpoint's state on this machine, for tasks to begin with."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.completion import complete_pipelines
from tidegate.cli.invocation import Invocation, command, console
from tidegate.cli.output.format import count_text
from tidegate.cli.supervision.child import HeldInterrupts
from tidegate.errors import StateNotFound, TidegateError

if TYPE_CHECKING:
    from tidegate.checkpoint.settings import StateSettings
    from tidegate.checkpoint.standby import CheckpointStandby, Followed
    from tidegate.checkpoint.store import Depot

EVERY_DEFAULT = "1 s"
# How soon Ctrl-C is noticed while nothing is to be done.
LOOK_SECONDS = 0.1


def register(app: typer.Typer) -> None:
    """Add the command to `tidegate state`."""
    command(app, "standby")(standby)


def standby(
    call: Invocation,
    pipeline: Annotated[
        str,
        typer.Argument(
            metavar="PIPELINE",
            help="Name of a pipeline, or the path of a checkpoint folder of any Spark job.",
            autocompletion=complete_pipelines,
        ),
    ],
    operator: Annotated[
        str | None, typer.Option("--operator", help="Follow this operator alone; else all of them.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Follow once, and end.")] = False,
    every: Annotated[
        str, typer.Option("--every", metavar="DURATION", help="How often to look for new batches.")
    ] = EVERY_DEFAULT,
    local_dir: Annotated[
        Path | None,
        typer.Option("--local-dir", metavar="DIR", help="Where tasks of this machine keep their copies."),
    ] = None,
) -> None:
    """Keep copies of the state on this machine current, so that its tasks begin warm; until Ctrl-C."""
    follow(call, pipeline, operator, every=None if once else every, local_dir=local_dir)


def follow(
    call: Invocation, pipeline: str, operator: str | None, *, every: str | None, local_dir: Path | None
) -> None:
    """Follow once, or again and again; a copy that a task of this machine wants is given to it at once."""
    from tidegate.checkpoint.local.pool import pool
    from tidegate.checkpoint.standby import CheckpointStandby
    from tidegate.model.clock import SystemClock
    from tidegate.model.durations import parse_duration

    checkpoint, local_root = _places(call, pipeline, local_dir)
    standby = CheckpointStandby(checkpoint, operator, partial(_settings, local_root), SystemClock())
    told = Told(call)
    try:
        with HeldInterrupts() as held:
            if every is None:
                told.tell_round(standby)
                return
            pause_seconds = parse_duration(every).seconds
            while not held.asked:
                told.try_round(standby)
                _pause(pause_seconds, held)
    except KeyboardInterrupt:
        return  # the usual end
    finally:
        pool().close()


def _settings(local_root: str | None, depot: Depot) -> StateSettings:
    """Return how the copies of an operator are opened: a deduplication, or keyed state."""
    from tidegate.checkpoint.standby import keyed_settings
    from tidegate.dedup.standby import standby_settings
    from tidegate.state.schema.schema import redistribution_of

    return standby_settings(depot, local_root) or keyed_settings(depot, local_root, redistribution_of)


class Told:
    """Prints what became of each copy, when it is something new."""

    def __init__(self, call: Invocation) -> None:
        self._call = call
        self._before: dict[tuple[str, int], Followed] = {}
        self._problems: set[str] = set()

    def tell_round(self, standby: CheckpointStandby) -> None:
        """Follow every partition, tell those that moved or came into use; raise the first problem at last."""
        problem: TidegateError | None = None
        for followed in standby.follow():
            place = (followed.operator, followed.partition)
            before = self._before.get(place)
            self._before[place] = followed
            is_new = before is None or before.is_in_use != followed.is_in_use
            if followed.problem is not None:
                problem = problem or followed.problem
            elif is_new or followed.moved or followed.damaged:
                self._tell(followed)
        if problem is not None:
            raise problem

    def try_round(self, standby: CheckpointStandby) -> None:
        """Do the same; what goes wrong is told once and tried again, as a full disk or a lost network is."""
        try:
            self.tell_round(standby)
            self._problems.clear()
        except TidegateError as problem:
            if str(problem) not in self._problems:
                self._problems.add(str(problem))
                waits = "Waiting." if isinstance(problem, StateNotFound) else "Trying again."
                console(stderr=True).print(f"{problem} {waits}")

    def _tell(self, followed: Followed) -> None:
        if self._call.as_json:
            self._call.line(_line(followed))
            return
        console().print(f"{followed.operator}/{followed.partition}: {_text(followed)}")


def _line(followed: Followed) -> dict[str, Any]:
    return {
        "operator": followed.operator,
        "partition": followed.partition,
        "batch": None if followed.is_in_use else followed.batch,
        "batches": followed.moved,
        "inUse": followed.is_in_use,
        "madeAnew": followed.is_anew,
        "damaged": list(followed.damaged),
    }


def _text(followed: Followed) -> str:
    if followed.is_in_use:
        return "a task of this machine has the copy"
    noun = "batch" if followed.moved == 1 else "batches"
    came = f"moved on by {count_text(followed.moved)} {noun}, at batch {followed.batch}"
    if followed.is_anew:
        came = f"made from the checkpoint, at batch {followed.batch}"
    return ". ".join([came, *followed.damaged])


def _places(call: Invocation, pipeline: str, local_dir: Path | None) -> tuple[Path, str | None]:
    """Return the checkpoint that was meant, and where the tasks of this machine keep their copies."""
    from tidegate.checkpoint.local.store import ROOT_VARIABLE
    from tidegate.model.names import check_pipeline_name

    named = str(local_dir.absolute()) if local_dir is not None else os.environ.get(ROOT_VARIABLE)
    if os.sep in pipeline:
        return Path(pipeline).absolute(), named
    home = call.existing_home()
    return home.checkpoints_path / check_pipeline_name(pipeline), named or str(home.run_path / "state")


def _pause(seconds: float, held: HeldInterrupts) -> None:
    deadline = time.monotonic() + seconds
    while not held.asked and time.monotonic() < deadline:
        time.sleep(min(LOOK_SECONDS, seconds))
