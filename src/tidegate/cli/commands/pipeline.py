"""`tidegate pipeline`: run, list, show, stop, start, remove."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.completion import complete_pipelines
from tidegate.cli.hints import running_holder
from tidegate.cli.installed_pipelines import (
    WAITING,
    WORKER_SECONDS_MAX,
    current_status,
    install_pipeline,
    installed_names,
    waiting_pipeline,
    with_waiting,
)
from tidegate.cli.invocation import Invocation, YesOption, command, confirm
from tidegate.cli.output.format import count_text, first_line, plural, rate_text, seconds_text
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tidegate.storage.home.home import Home
    from tidegate.storage.home.pipeline_files import Replaced

app = typer.Typer(
    name="pipeline", help="Pipelines: Spark queries that the worker runs.", no_args_is_help=True
)

# Of the list: names are whole; where there is no room the spare ones are left out, in this order.
WHOLE_COLUMNS = (0, 2, 3)
SPARE_COLUMNS = (8, 4, 6, 3, 2)

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the pipeline.", autocompletion=complete_pipelines)
]


@command(app, "run")
def run_pipeline(
    call: Invocation,
    file: Annotated[
        Path, typer.Argument(metavar="FILE.py", exists=True, dir_okay=False, help="The pipeline's file.")
    ],
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it has taken what its topic holds now.")
    ] = False,
) -> None:
    """Check a pipeline file and give it to the worker; a pipeline of the same name is replaced."""
    home = call.existing_home()
    name, replaced = install_pipeline(home, file)
    if wait:
        with call.client() as client:
            found = wait_for_pipeline(name, client.status, time.sleep)
        rows = plural(found["rows"] or 0, "row")
        call.answer(
            found,
            lambda: (
                f"{_replacing(name, replaced)}"
                f"Pipeline {name} runs and has taken what its topic held: {rows} since the worker started."
            ),
        )
        return
    answer = {
        "name": name,
        "file": str(call.home_path / "pipelines" / f"{name}.py"),
        "replaces": replaced,
    }
    when = _when(home)
    if replaced:
        call.answer(answer, lambda: f"{_replacing(name, replaced)}{when[:1].upper()}{when[1:]}.")
    else:
        call.answer(answer, lambda: f"Pipeline {name} is installed; {when}.")


@command(app, "list")
def list_pipelines(call: Invocation) -> None:
    """List the pipelines and how they do, also the stopped ones; one that no worker has yet is waiting."""
    with call.client() as client:
        pipelines = with_waiting(client.pipelines.list(), _installed(call))
    call.answer({"pipelines": pipelines}, lambda: pipelines_table(pipelines))


@command(app, "show")
def show_pipeline(call: Invocation, name: NameArgument) -> None:
    """Show one pipeline, with its last error."""
    from tidegate.errors import PipelineNotFound

    found: Mapping[str, Any]
    with call.client() as client:
        try:
            found = current_status(client.pipelines.show(name), _installed(call))
        except PipelineNotFound:
            if name not in _installed(call):
                raise
            found = waiting_pipeline(name)
    call.answer(found, lambda: pipeline_table(found))


@command(app, "stop")
def stop_pipeline(call: Invocation, name: NameArgument) -> None:
    """Stop a pipeline; its file and its checkpoint stay, so that 'start' continues where it was."""
    from tidegate.storage.home.pipeline_files import stop_pipeline_file, stopped_path

    home = call.existing_home()
    ran = stop_pipeline_file(home.pipelines_path, name)
    word = "is stopped already"
    if ran:
        word = "is stopped" if running_holder(home, "worker") is None else "stops"
    call.answer(
        {"stopped": name, "file": str(stopped_path(home.pipelines_path, name))},
        lambda: f"Pipeline {name} {word}; 'tidegate pipeline start {name}' continues where it was.",
    )


@command(app, "start")
def start_pipeline(call: Invocation, name: NameArgument) -> None:
    """Start a stopped pipeline; it continues from its checkpoint."""
    from tidegate.storage.home.pipeline_files import installed_path, start_pipeline_file

    home = call.existing_home()
    began = start_pipeline_file(home.pipelines_path, name)
    word = "starts and continues from its checkpoint" if began else "is not stopped"
    call.answer(
        {"started": name, "file": str(installed_path(home.pipelines_path, name))},
        lambda: f"Pipeline {name} {word}; {_when(home)}.",
    )


@command(app, "remove")
def remove_pipeline(
    call: Invocation,
    name: NameArgument,
    yes: YesOption = False,
) -> None:
    """Remove a stopped pipeline's file for good; asks first, and without a terminal needs --yes."""
    from tidegate.storage.home.pipeline_files import check_removable, remove_pipeline_file

    home = call.existing_home()
    check_removable(home.pipelines_path, name)
    if not yes:
        call.require_terminal(f"whether the file of pipeline {name} may go: add --yes to remove it.")
        confirm(f"Remove the home's copy of the file of pipeline {name}?", "Nothing was removed.")
    remove_pipeline_file(home.pipelines_path, name)
    checkpoint, lake = home.checkpoints_path / name, home.lake_path
    call.answer(
        {"removed": name, "checkpoint": str(checkpoint) if checkpoint.exists() else None, "lake": str(lake)},
        lambda: f"Pipeline {name} is removed. {_left_by(checkpoint)} Its tables stay in {lake}.",
    )


def pipelines_table(pipelines: Sequence[Mapping[str, Any]], *, full: bool = False) -> RenderableType:
    """Return a table of pipelines; with `full` it has every column, and no errors below."""
    from rich.console import Group
    from rich.text import Text

    from tidegate.cli.output.tables import Listing

    if not pipelines:
        return "No pipelines yet. Run one: tidegate pipeline run FILE.py"
    headings = ("pipeline", "state", "topic", "table", "batches", "rows out", "rows/s", "lag", "last batch")
    # A failure has a line of its own: its sentence is longer than a column.
    failed = [line for line in pipelines if line["state"] == "failed" and line["error"]]
    rows = [
        (
            line["name"],
            "waiting for the worker" if line["state"] == WAITING else line["state"],
            line["topic"] or "",
            line["table"] or "",
            count_text(line["batches"]),
            count_text(line["rows"]),
            rate_text(line["rowsPerSecond"]),
            count_text(line["lag"]),
            seconds_text(line["lastBatchSeconds"]),
        )
        for line in pipelines
    ]
    listing = Listing(
        headings,
        rows,
        right=range(4, len(headings)),
        whole=WHOLE_COLUMNS,
        spare=() if full else SPARE_COLUMNS,
    )
    errors = [Text(f"{line['name']}: {brief_error(line)}", style="red") for line in failed]
    return listing if full else Group(listing, *errors)


def pipeline_table(line: Mapping[str, Any]) -> RenderableType:
    """Return one pipeline for people, with its last error in full."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [pipelines_table([line], full=True)]
    if line.get("operators"):
        from tidegate.cli.commands.state import operators_table

        parts.append(operators_table([{"pipeline": line["name"], **one} for one in line["operators"]]))
        if dead := sum(one.get("deadRows") or 0 for one in line["operators"]):
            parts.append(Text(f"Rows set aside as dead letters: {count_text(dead)}."))
        if deduplicating := [one for one in line["operators"] if one.get("dedup")]:
            from tidegate.cli.output.dedup_tables import dedup_counts_table

            parts.append(dedup_counts_table(deduplicating))
    if line["error"]:
        parts.append(Text(f"Started again {plural(line['restarts'], 'time')}. Last error:"))
        parts.append(Text(line["error"], style="red"))
    return Group(*parts)


def _replacing(name: str, replaced: Replaced | None) -> str:
    if replaced is None:
        return ""
    which = "the one installed before" if replaced == "installed" else "the one that was stopped"
    return f"Pipeline {name} replaces {which}; it continues from its checkpoint. "


def _when(home: Home) -> str:
    if running_holder(home, "worker") is None:
        return f"it will run when a worker starts in {home.path} ('tidegate up')"
    return f"the worker of {home.path} runs it"


def _left_by(checkpoint: Path) -> str:
    if not checkpoint.exists():
        return "It has no checkpoint."
    return f"Its checkpoint stays in {checkpoint}: a pipeline of that name continues from there."


def _installed(call: Invocation) -> list[str]:
    return [] if call.elsewhere else installed_names(call.home_path)


POLL_SECONDS = 0.5
WAIT_SECONDS_MAX = 300.0
# The worker reads its folder twice a second and reports once a second; before that it reports the old file.
SETTLE_SECONDS = 3.0


def wait_for_pipeline(
    name: str,
    fetch: Callable[[], Mapping[str, Any]],
    sleep: Callable[[float], None],
) -> Mapping[str, Any]:
    """Wait until a pipeline has read all that its topic has now; return its status; raise if it fails."""
    waited_seconds = SETTLE_SECONDS
    sleep(waited_seconds)
    goal: dict[str, int] | None = None
    while waited_seconds < WAIT_SECONDS_MAX:
        status = fetch()
        if status["worker"] is None and waited_seconds >= WORKER_SECONDS_MAX:
            raise TidegateError(
                reason="No worker runs in this home.", hint="Start it: 'tidegate up' or 'tidegate worker'."
            )
        found = (line for line in status["pipelines"] if line["name"] == name)
        line: Mapping[str, Any] | None = next(found, None)
        if line is not None:
            goal = goal or _ends(status, line["topic"])
            if _arrived(line, goal):
                return line
        sleep(POLL_SECONDS)
        waited_seconds += POLL_SECONDS
    raise TidegateError(
        reason=f"Pipeline '{name}' is not there yet after {WAIT_SECONDS_MAX:g} s.",
        hint=f"It continues; 'tidegate pipeline show {name}' shows how far it is.",
    )


def brief_error(line: Mapping[str, Any]) -> str:
    """Return the first line of a pipeline's error, and below it the hint of the error, if any."""
    return "\n  ".join(filter(None, (_reason(line), _hint_of(line))))


def _reason(line: Mapping[str, Any]) -> str:
    return first_line(line["error"] or "it does not say why")


def _hint_of(line: Mapping[str, Any]) -> str:
    """Return the hint in a pipeline's error; "" where it has none."""
    from tidegate.pipeline.worker.failures import HINT, MISMATCH_HINT

    error = line["error"] or ""
    if MISMATCH_HINT in error:
        return MISMATCH_HINT
    second = error.strip().partition("\n")[2].partition("\n")[0]
    return second.removeprefix(HINT) if second.startswith(HINT) else ""


def _arrived(line: Mapping[str, Any], goal: Mapping[str, int] | None) -> bool:
    if line["state"] == "failed":
        rest = (
            f"'tidegate pipeline show {line['name']}' shows all of it. The worker tries again by itself; "
            "'pipeline run' with a better file replaces it."
        )
        raise TidegateError(
            reason=f"Pipeline '{line['name']}' failed: {_reason(line)}",
            hint="\n  ".join(filter(None, (_hint_of(line), rest))),
        )
    if line["state"] != "running":
        return False
    if line["topic"] is None:
        return True
    taken = line["offsets"].get(line["topic"], {})
    return goal is not None and all(taken.get(partition, 0) >= end for partition, end in goal.items())


def _ends(status: Mapping[str, Any], topic: str | None) -> dict[str, int] | None:
    for entry in status["topics"]:
        if entry["name"] == topic:
            return {str(part["partition"]): int(part["end"]) for part in entry["partitions"]}
    return None
