"""The entry point of `tidegate`, and its exit codes.

    0    done; also when `up` or `subscribe` stops on Ctrl-C, and when a reader closes the pipe (`| head -1`)
    1    refused or failed: the message and what to do next are on stderr
    2    wrong usage
    3    `serve` and `worker` only: cannot start here, and trying again does not help
    130  Ctrl-C; for `up` a second one, which kills

With --json an error is one line of JSON on stderr, `{"error": {"code", "message", "hint", "details"}}`, so
that stdout holds answers and nothing else.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from tidegate.cli.commands import (
    audit,
    backup,
    dedup,
    doctor,
    job,
    pipeline,
    serve,
    state,
    status,
    subscribe,
    tenant,
    up,
    user,
    worker,
)
from tidegate.cli.commands import open as opening
from tidegate.cli.commands.sql import sql
from tidegate.cli.commands.topic import topic
from tidegate.cli.demo import agent, demo
from tidegate.cli.invocation import HomeOption, Invocation, JsonOption, PlainGroup, TenantOption
from tidegate.cli.output.errors import report_error
from tidegate.errors import TidegateError

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
# Their one argument has blanks in it, which a shell splits unless it is quoted.
TAKING_STATEMENTS = ("tidegate sql", "tidegate subscribe")

app = typer.Typer(
    name="tidegate",
    help="Tidegate: durable topics, pipelines on Spark, and tables to query, in one home folder.",
    no_args_is_help=True,
    cls=PlainGroup,
    pretty_exceptions_enable=False,
)
for _noun in (up, serve, worker, status, doctor, opening, sql, subscribe, audit, backup, demo, agent):
    _noun.register(app)
for _group in (topic, pipeline, state, dedup, user, tenant, job):
    app.add_typer(_group.app, cls=PlainGroup)


def _print_version(flag: bool) -> None:
    if flag:
        import tidegate

        typer.echo(f"tidegate {tidegate.__version__}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    home: HomeOption = None,
    as_json: JsonOption = False,
    tenant_name: TenantOption = None,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Tidegate: durable topics, pipelines on Spark, and tables to query, in one home folder."""
    ctx.obj = Invocation(home, as_json, tenant_name)


def run() -> None:
    """Run the command line and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal without Unicode shows '?' rather than a traceback.
            stream.reconfigure(errors="replace")
    sys.exit(run_arguments(sys.argv[1:]))


def run_arguments(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; errors are printed, never raised."""
    as_json = wants_json(arguments)
    try:
        code = app(args=list(arguments), prog_name="tidegate", standalone_mode=False)
    except TidegateError as error:
        report_error(error.to_wire()["error"], as_json=as_json)
        return EXIT_FAILED
    except typer.TyperException as error:
        return _report_usage(error, as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    return code if isinstance(code, int) else 0


def wants_json(arguments: Sequence[str]) -> bool:
    """True if the caller asked for JSON, even where the arguments do not parse."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options


def _report_usage(error: typer.TyperException, *, as_json: bool) -> int:
    context = getattr(error, "ctx", None)
    message = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":
        if message.strip():
            typer.echo(message, err=True)  # with Rich the help is printed already, and the message is empty
        return error.exit_code
    where = context.command_path if context else "tidegate"
    hint = f"See '{where} --help'."
    if where in TAKING_STATEMENTS and "unexpected extra argument" in message:
        hint = f'Put the statement in quotes: {where} "SELECT …".'
    wire = {"code": "USAGE", "message": message, "hint": hint, "details": {}}
    report_error(wire, as_json=as_json)
    return error.exit_code
