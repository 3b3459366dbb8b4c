"""`tidegate job`: list, show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.completion import complete_job_states, complete_jobs
from tidegate.cli.invocation import Invocation, command
from tidegate.cli.output.format import cell_time

if TYPE_CHECKING:
    from rich.console import RenderableType

LIMIT_DEFAULT = 50  # fits a screen or two; --limit gives more

app = typer.Typer(name="job", help="Jobs: what the server does by itself.", no_args_is_help=True)


@command(app, "list", tenant=True)
def list_jobs(
    call: Invocation,
    kind: Annotated[str | None, typer.Option(help="One kind only, such as backup.")] = None,
    state: Annotated[
        str | None,
        typer.Option(help="queued, running, done, failed or cancelled.", autocompletion=complete_job_states),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most jobs.")] = LIMIT_DEFAULT,
) -> None:
    """List the jobs, the newest first."""
    with call.client() as client:
        jobs = client.jobs.list(kind=kind, state=state, limit=limit)
    call.answer({"jobs": jobs}, lambda: jobs_table(jobs))


@command(app, "show", tenant=True)
def show_job(
    call: Invocation,
    job: Annotated[
        str,
        typer.Argument(metavar="JOB", help="As 'job list' lists it.", autocompletion=complete_jobs),
    ],
) -> None:
    """Show one job, what came of it, and its history."""
    with call.client() as client:
        found = client.jobs.show(job)
    call.answer(found, lambda: job_page(found))


def jobs_table(jobs: Sequence[Mapping[str, Any]], *, full: bool = False) -> RenderableType:
    """Return a table of jobs; with `full` it has every column."""
    from tidegate.cli.output.tables import Listing

    if not jobs:
        return "No jobs."
    rows = [
        (
            str(entry["id"]),
            entry["kind"],
            entry["subject"],
            entry["state"],
            f"{round(entry['progress'] * 100)} %",
            entry["createdBy"],
            cell_time(entry["createdAt"]),
            cell_time(entry["finishedAt"]),
        )
        for entry in jobs
    ]
    headings = ("job", "kind", "of", "state", "done", "by", "asked for (UTC)", "finished (UTC)")
    return Listing(headings, rows, right=(4,), whole=(0, 2, 4, 5), spare=() if full else (5, 4, 7))


def job_page(job: Mapping[str, Any]) -> RenderableType:
    """Return one job for people: its line, its outcome and its history."""
    from rich.console import Group
    from rich.text import Text

    from tidegate.cli.output.tables import Listing

    parts: list[RenderableType] = [jobs_table([job], full=True)]
    if job["attempts"] > 1:
        parts.append(Text(f"Tried {job['attempts']} times."))
    if job["error"]:
        message = job["error"].get("message") or json.dumps(job["error"], ensure_ascii=False)
        parts.append(Text(f"Error: {message}", style="red"))
    if job["result"]:
        parts.append(Text(f"Result: {json.dumps(job['result'], ensure_ascii=False)}"))
    moments = [(cell_time(entry["at"]), entry["state"], entry["note"]) for entry in job.get("history", ())]
    return Group(*parts, Text(""), Listing(("at (UTC)", "state", "note"), moments))
