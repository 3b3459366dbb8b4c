"""`tidegate state standby`: local stores that follow a checkpoint, for tasks of this machine."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.commands.checkpoints import PipelineArgument
from tidegate.cli.invocation import Invocation, command, console
from tidegate.cli.output.format import count_text
from tidegate.cli.supervision.child import DeferredInterrupt
from tidegate.errors import StateNotFound, TidegateError

if TYPE_CHECKING:
    from tidegate.checkpoint.settings import StateSettings
    from tidegate.checkpoint.standby import CheckpointStandby, FollowResult
    from tidegate.checkpoint.store import CheckpointStore

EVERY_DEFAULT = "1 s"
# How soon Ctrl-C is noticed during a pause.
POLL_SECONDS = 0.1


def register(app: typer.Typer) -> None:
    """Add the command to `tidegate state`."""
    command(app, "standby")(standby)


def standby(
    call: Invocation,
    pipeline: PipelineArgument,
    operator: Annotated[
        str | None, typer.Option("--operator", help="Follow this operator alone; else all of them.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Follow once, and end.")] = False,
    every: Annotated[
        str, typer.Option("--every", metavar="DURATION", help="How often to look for new batches.")
    ] = EVERY_DEFAULT,
    local_dir: Annotated[
        Path | None,
        typer.Option(
            "--local-dir", metavar="DIR", help="Where tasks of this machine keep their local stores."
        ),
    ] = None,
) -> None:
    """Keep local stores on this machine current, so that its tasks begin warm; until Ctrl-C."""
    follow(call, pipeline, operator, every=None if once else every, local_dir=local_dir)


def follow(
    call: Invocation, pipeline: str, operator: str | None, *, every: str | None, local_dir: Path | None
) -> None:
    """Follow once, or until Ctrl-C; a local store that a task of this machine needs is released at once."""
    from tidegate.checkpoint.local.pool import pool
    from tidegate.checkpoint.standby import CheckpointStandby
    from tidegate.model.clock import SystemClock
    from tidegate.model.durations import parse_duration

    checkpoint, local_root = _paths(call, pipeline, local_dir)
    standby = CheckpointStandby(checkpoint, operator, partial(_settings, local_root), SystemClock())
    rounds = FollowRounds(call, standby)
    try:
        with DeferredInterrupt() as stop:
            if every is None:
                rounds.run()
                return
            pause_seconds = parse_duration(every).seconds
            while not stop.is_set:
                rounds.run_or_report()
                _pause(pause_seconds, stop)
    except KeyboardInterrupt:
        return  # the usual end
    finally:
        pool().close()


def _settings(local_root: str | None, store: CheckpointStore) -> StateSettings:
    """Return the settings of an operator's local stores: of a deduplication, or of keyed state."""
    from tidegate.checkpoint.standby import keyed_settings
    from tidegate.dedup.standby import standby_settings
    from tidegate.state.schema.schema import redistribution_of

    return standby_settings(store, local_root) or keyed_settings(store, local_root, redistribution_of)


class FollowRounds:
    """Rounds over all partitions; each result is printed when it is new."""

    def __init__(self, call: Invocation, standby: CheckpointStandby) -> None:
        self._call = call
        self._standby = standby
        self._results: dict[tuple[str, int], FollowResult] = {}
        self._problems: set[str] = set()

    def run(self) -> None:
        """Follow every partition and print those that moved or came into use; at the end raise a problem."""
        problem: TidegateError | None = None
        for result in self._standby.follow():
            key = (result.operator, result.partition)
            before = self._results.get(key)
            self._results[key] = result
            is_new = before is None or before.is_in_use != result.is_in_use
            if result.problem is not None:
                problem = problem or result.problem
            elif is_new or result.moved or result.damaged:
                self._print(result)
        if problem is not None:
            raise problem

    def run_or_report(self) -> None:
        """Do the same; a problem, such as a full disk or a lost network, is printed once and tried again."""
        try:
            self.run()
            self._problems.clear()
        except TidegateError as problem:
            if str(problem) not in self._problems:
                self._problems.add(str(problem))
                waits = "Waiting." if isinstance(problem, StateNotFound) else "Trying again."
                console(stderr=True).print(f"{problem} {waits}")

    def _print(self, result: FollowResult) -> None:
        if self._call.as_json:
            self._call.line(_line(result))
            return
        console().print(f"{result.operator}/{result.partition}: {_text(result)}")


def _line(result: FollowResult) -> dict[str, Any]:
    return {
        "operator": result.operator,
        "partition": result.partition,
        "batch": None if result.is_in_use else result.batch,
        "batches": result.moved,
        "inUse": result.is_in_use,
        "madeAnew": result.is_rebuilt,
        "damaged": list(result.damaged),
    }


def _text(result: FollowResult) -> str:
    if result.is_in_use:
        return "a task of this machine has the local store open"
    noun = "batch" if result.moved == 1 else "batches"
    text = f"moved on by {count_text(result.moved)} {noun}, at batch {result.batch}"
    if result.is_rebuilt:
        text = f"made from the checkpoint, at batch {result.batch}"
    return ". ".join([text, *result.damaged])


def _paths(call: Invocation, pipeline: str, local_dir: Path | None) -> tuple[Path, str | None]:
    """Return the checkpoint, and the folder of the local stores of this machine's tasks."""
    from tidegate.checkpoint.local.store import ROOT_VARIABLE
    from tidegate.model.names import check_pipeline_name

    named = str(local_dir.absolute()) if local_dir is not None else os.environ.get(ROOT_VARIABLE)
    if os.sep in pipeline:
        return Path(pipeline).absolute(), named
    home = call.existing_home()
    return home.checkpoints_path / check_pipeline_name(pipeline), named or str(home.run_path / "state")


def _pause(seconds: float, stop: DeferredInterrupt) -> None:
    deadline = time.monotonic() + seconds
    while not stop.is_set and time.monotonic() < deadline:
        time.sleep(min(POLL_SECONDS, seconds))
