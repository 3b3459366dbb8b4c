"""`tidegate worker`: the Spark driver alone, in the foreground."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.cli.invocation import Invocation, command
from tidegate.cli.supervision.child import StopWithParentOption, foreground_run


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(app, "worker")(worker)


def worker(
    call: Invocation,
    master: Annotated[str | None, typer.Option(help="Spark master to run on (worker.spark_master).")] = None,
    with_parent: StopWithParentOption = False,
) -> None:
    """Run the pipelines of the home on Spark until Ctrl-C or SIGTERM; needs a running server."""
    flags = {"worker.spark_master": master}
    with foreground_run(call, "worker", flags, with_parent=with_parent) as run:
        from tidegate.pipeline.worker.worker import run_worker

        settings, home, supervisor = run
        run_worker(settings, home, supervisor=supervisor)
