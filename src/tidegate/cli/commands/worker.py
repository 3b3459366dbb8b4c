"""`tidegate worker`: the Spark driver alone, in the foreground."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.cli.invocation import Invocation, command
from tidegate.cli.output.errors import report_error
from tidegate.cli.supervision.child import (
    EXIT_START_REFUSED,
    StopWithParentOption,
    start_log,
    stop_with_parent,
)
from tidegate.errors import SettingInvalid, StartRefused


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(app, "worker")(worker)


def worker(
    call: Invocation,
    master: Annotated[str | None, typer.Option(help="Spark master to run on (worker.spark_master).")] = None,
    with_parent: StopWithParentOption = False,
) -> None:
    """Run the pipelines of the home on Spark until Ctrl-C or SIGTERM; needs a running server."""
    start_log()
    try:
        settings = call.settings({"worker.spark_master": master})
        start_log(settings.log, "worker")
        supervisor = stop_with_parent(settings.supervisor.grace_seconds) if with_parent else None
        home = call.open_home()
        from tidegate.pipeline.worker.worker import run_worker

        run_worker(settings, home, supervisor=supervisor)
    except (StartRefused, SettingInvalid) as error:
        report_error(call.advise(error).to_wire()["error"], as_json=call.as_json)
        raise typer.Exit(EXIT_START_REFUSED) from error
