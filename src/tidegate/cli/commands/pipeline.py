"""`tidegate pipeline`: run, list, show, stop."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.advice import running_holder
from tidegate.cli.completion import complete_pipelines
from tidegate.cli.installed import WAITING, installed_names, waiting_pipeline, with_waiting
from tidegate.cli.invocation import Invocation, command
from tidegate.cli.show import count_text, plural, rate_text, seconds_text
from tidegate.cli.waiting import brief_error

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tidegate.storage.home import Home

app = typer.Typer(
    name="pipeline", help="Pipelines: Spark queries that the worker runs.", no_args_is_help=True
)

# Of the list: names are whole, and where there is no room these go, the first one first.
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
    name = install_pipeline(home, file)
    if wait:
        from tidegate.cli.waiting import wait_for_pipeline

        with call.client() as client:
            found = wait_for_pipeline(name, client.status, time.sleep)
        rows = plural(found["rows"] or 0, "row")
        call.answer(
            found,
            lambda: (
                f"Pipeline {name} runs and has taken what its topic held: {rows} since the worker started."
            ),
        )
        return
    answer = {"name": name, "file": str(call.home_path / "pipelines" / f"{name}.py")}
    when = f"the worker of {home.path} runs it"
    if running_holder(home, "worker") is None:
        when = f"it will run when a worker starts in {home.path} ('tidegate up')"
    call.answer(answer, lambda: f"Pipeline {name} is installed; {when}.")


@command(app, "list")
def list_pipelines(call: Invocation) -> None:
    """List the pipelines and how they do; one that no worker has taken up yet is waiting."""
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
            found = client.pipelines.show(name)
        except PipelineNotFound:
            if name not in _installed(call):
                raise
            found = waiting_pipeline(name)
    call.answer(found, lambda: pipeline_table(found))


@command(app, "stop")
def stop_pipeline(call: Invocation, name: NameArgument) -> None:
    """Stop a pipeline; its checkpoint stays, so that a later run goes on where it was."""
    remove_pipeline(call.existing_home(), name)
    call.answer({"stopped": name}, lambda: f"Pipeline {name} stops; 'pipeline run' goes on where it was.")


def install_pipeline(home: Home, file: Path) -> str:
    """Check a file and put it where the worker looks, anew even if it is the same; give its name."""
    from tidegate.pipeline.definitions import load_pipeline
    from tidegate.storage.home import write_file_atomically

    with redirect_stdout(sys.stderr):  # what the file prints is no part of our answer
        name = load_pipeline(file.absolute()).name
    # Written also where nothing changed: the worker then forgets an old failure and tries at once.
    write_file_atomically(home.pipelines_path / f"{name}.py", file.read_bytes())
    return name


def remove_pipeline(home: Home, name: str) -> None:
    """Take a pipeline out of the home; the worker stops it when it sees that."""
    from tidegate.errors import PipelineNotFound
    from tidegate.model.names import check_pipeline_name

    try:
        (home.pipelines_path / f"{check_pipeline_name(name)}.py").unlink()
    except FileNotFoundError as problem:
        raise PipelineNotFound(pipeline=name) from problem


def pipelines_table(pipelines: Sequence[Mapping[str, Any]], *, full: bool = False) -> RenderableType:
    """Draw pipelines for people; `full` leaves out no figure, and errors are told elsewhere."""
    from rich.console import Group
    from rich.text import Text

    from tidegate.cli.listing import Listing

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
    """Draw one pipeline for people, with its last error in full."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [pipelines_table([line], full=True)]
    if line.get("operators"):
        from tidegate.cli.state import operators_table

        parts.append(operators_table([{"pipeline": line["name"], **one} for one in line["operators"]]))
        if caught := [one for one in line["operators"] if one.get("dedup")]:
            from tidegate.cli.dedup_tables import caught_table

            parts.append(caught_table(caught))
    if line["error"]:
        parts.append(Text(f"Started again {plural(line['restarts'], 'time')}. Last error:"))
        parts.append(Text(line["error"], style="red"))
    return Group(*parts)


def _installed(call: Invocation) -> list[str]:
    return [] if call.elsewhere else installed_names(call.home_path)
