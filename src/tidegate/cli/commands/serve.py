"""`tidegate serve`: the server alone, in the foreground."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.cli.invocation import Invocation, command
from tidegate.cli.supervision.child import StopWithParentOption, foreground_run
from tidegate.errors import CatalogUnavailable


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
    flags = {"server.host": host, "server.port": port}
    try:
        with foreground_run(call, "server", flags, with_parent=with_parent) as run:
            from tidegate.server.serve import run_server

            settings, home, supervisor = run
            run_server(settings, home, supervisor=supervisor)
    except CatalogUnavailable as error:
        hint = "The server needs its catalog to start: start the database, or correct catalog.url."
        raise CatalogUnavailable(hint=hint, **error.values) from error
