"""`tidegate serve`: the server alone, in the foreground."""

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
from tidegate.errors import CatalogUnavailable, SettingInvalid, StartRefused


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(app, "serve")(serve)


def serve(
    call: Invocation,
    host: Annotated[str | None, typer.Option(help="Address to listen on (server.host).")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on; 0 takes a free one (server.port).")
    ] = None,
    with_parent: StopWithParentOption = False,
) -> None:
    """Run the server alone until Ctrl-C or SIGTERM."""
    start_log()
    try:
        settings = call.settings({"server.host": host, "server.port": port})
        start_log(settings.log, "server")
        supervisor = stop_with_parent(settings.supervisor.grace_seconds) if with_parent else None
        home = call.open_home()
        from tidegate.server.serve import run_server

        run_server(settings, home, supervisor=supervisor)
    except (StartRefused, SettingInvalid) as error:
        report_error(call.advise(error).to_wire()["error"], as_json=call.as_json)
        raise typer.Exit(EXIT_START_REFUSED) from error
    except CatalogUnavailable as error:
        hint = "The server needs its catalog to start: start the database, or correct catalog.url."
        raise CatalogUnavailable(hint=hint, **error.values) from error
