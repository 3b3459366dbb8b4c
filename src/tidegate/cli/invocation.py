"""The context of one call of a command: --home, --json and --tenant, the client, and the answer it prints."""

from __future__ import annotations

import functools
import inspect
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tidegate.cli.completion import complete_tenants
from tidegate.cli.hints import UsageRefused, advised, leave_stdout, with_near_name
from tidegate.cli.output.format import HOME_DEFAULT
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    import typer
    from rich.console import Console, RenderableType

    from tidegate.sdk.client import Client
    from tidegate.settings import Settings
    from tidegate.storage.home.home import Home

# Output into a file or a pipe is never cut.
PIPE_WIDTH_COLUMNS = 10_000
TOKEN_BYTES = 32
RETRY_SECONDS = 1.0
EXIT_DECLINED = 1

HomeOption = Annotated[
    Path | None,
    typer.Option("--home", metavar="DIR", help="The home folder; else TIDEGATE_HOME, else ~/.tidegate."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Answer in JSON, for machines.")]
TenantOption = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        metavar="TENANT",
        help="Act in this tenant; for administrators of the instance. Else TIDEGATE_TENANT.",
        autocompletion=complete_tenants,
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of a command: its home, its tenant, and the form of its answer."""

    named_home: Path | None
    as_json: bool
    tenant: str | None = None

    @property
    def home_path(self) -> Path:
        """The home folder: the flag, else TIDEGATE_HOME, else ~/.tidegate."""
        return find_home(self.named_home)

    @property
    def elsewhere(self) -> bool:
        """True if commands call the server that TIDEGATE_URL names, whose home may be on another machine."""
        return self.named_home is None and bool(os.environ.get("TIDEGATE_URL"))

    @property
    def tenant_flag(self) -> str:
        """The flag with which another command acts in the same tenant; "" where none is named."""
        return f" --tenant {self.tenant}" if self.tenant else ""

    def without_tenant(self) -> Invocation:
        """Return the same call in the caller's own tenant."""
        return Invocation(self.named_home, self.as_json)

    def advise(self, error: TidegateError) -> TidegateError:
        """Return the error with a hint for the command line."""
        return advised(error, self.home_path, elsewhere=self.elsewhere)

    def settings(self, flags: Mapping[str, object] | None = None) -> Settings:
        """Return the settings of this home, the environment and the flags."""
        from tidegate.settings import load_settings

        return load_settings(self.home_path, os.environ, flags or {})

    def open_home(self) -> Home:
        """Return the home; create it where there is none."""
        from tidegate.storage.home.home import Home

        return Home.open(self.home_path, lambda: secrets.token_urlsafe(TOKEN_BYTES))

    def existing_home(self) -> Home:
        """Return the home; raise HomeUnusable where there is none."""
        from tidegate.storage.home.home import Home

        return Home.existing(self.home_path)

    def connect(self) -> Client:
        """Return a client, which the caller closes."""
        import tidegate

        home = None if self.elsewhere else self.home_path
        # A token that is set replaces the token of the home, which is the administrator's.
        token = os.environ.get("TIDEGATE_TOKEN") or None if self.named_home is None else None
        # A person waits: that a server is gone is reported soon.
        return tidegate.connect(home=home, token=token, tenant=self.tenant, retry_seconds=RETRY_SECONDS)

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Yield a client of the server of this home, or of the one that TIDEGATE_URL names.

        TIDEGATE_TOKEN is used with either. With --home neither variable counts.
        """
        client = self.connect()
        try:
            yield client
        finally:
            client.close()

    def require_terminal(self, what: str) -> None:
        """Raise UsageRefused where no question can be asked: without a terminal, and with --json."""
        if self.as_json or not sys.stdin.isatty() or not console().is_terminal:
            raise UsageRefused(f"Nobody can be asked {what}")

    def answer(self, value: Any, shown: Callable[[], RenderableType]) -> None:
        """Print `value` as JSON, or what `shown` returns for people."""
        if self.as_json:
            self.line(value)
        else:
            console().print(shown())

    def line(self, value: Any) -> None:
        """Print one value as one line of JSON, and flush."""
        typer.echo(json.dumps(value, ensure_ascii=False, default=str))
        sys.stdout.flush()


def console(*, stderr: bool = False) -> Console:
    """Return a console for stdout or stderr; it cuts nothing where its output is no terminal."""
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # Rich would exit with 1

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPE_WIDTH_COLUMNS
    return PipeConsole(stderr=stderr, width=width, highlight=False, markup=False)


def confirm(question: str, declined: str) -> None:
    """Ask a question; where the answer is no, print what was not done and exit."""
    if not typer.confirm(question):
        typer.echo(declined, err=True)
        raise typer.Exit(EXIT_DECLINED)


def find_home(flag: Path | None) -> Path:
    """Return the home folder: the flag, else TIDEGATE_HOME, else ~/.tidegate."""
    chosen = flag or Path(os.environ.get("TIDEGATE_HOME") or HOME_DEFAULT)
    return chosen.expanduser().absolute()


def command(
    app: typer.Typer, name: str, *, hidden: bool = False, tenant: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function `f(call, …)` as a command which also takes --home and --json.

    Both options may come before the noun or after the verb: `--json topic list` and `topic list --json`. With
    `tenant` the command takes --tenant as well: for what belongs to a tenant.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(function, eval_str=True).parameters.values() if p.name != "call"]

        @functools.wraps(function)
        def run(ctx: typer.Context, home: Path | None, as_json: bool, **options: Any) -> None:
            tenant_name = options.pop("tenant_name", None)
            try:
                call = _call_of(ctx, home, as_json, tenant_name, takes_tenant=tenant)
                function(call, **options)
            except UsageRefused as problem:
                problem.ctx = ctx
                raise
            except BrokenPipeError as problem:
                leave_stdout()
                raise typer.Exit(0) from problem  # the reader has enough, as in `| head -1`
            except TidegateError as error:
                better = with_near_name(call.advise(error), call)
                if better is error:
                    raise
                raise better from error

        added = [
            _keyword("ctx", typer.Context, inspect.Parameter.empty),
            _keyword("home", HomeOption, None),
            _keyword("as_json", JsonOption, False),
        ]
        if tenant:
            added.append(_keyword("tenant_name", TenantOption, None))
        own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        parameters = [*own, *added]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        del run.__dict__["__wrapped__"]  # else Typer reads the signature of the function inside
        app.command(name, hidden=hidden, cls=PlainCommand)(run)
        return function

    return register


def _call_of(
    ctx: typer.Context, home: Path | None, as_json: bool, tenant: str | None, *, takes_tenant: bool
) -> Invocation:
    """Join the options before the noun with those after the verb; the latter win."""
    outer: Invocation | None = ctx.obj
    if outer is not None:
        home, as_json, tenant = home or outer.named_home, as_json or outer.as_json, tenant or outer.tenant
    if not takes_tenant:
        if tenant is not None:
            raise UsageRefused(f"'{ctx.command_path}' is about the whole instance and takes no --tenant.")
        return Invocation(home, as_json)
    return Invocation(home, as_json, tenant or os.environ.get("TIDEGATE_TENANT") or None)


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


class PlainCommand(TyperCommand):
    """A command whose help shows `--json`, not `--json <bool>`."""

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        """Return the parameters; flags have no type."""
        return _plain(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """A group whose help does the same."""

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        """Return the parameters; flags have no type."""
        return _plain(super().get_params(ctx))


def _plain(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters
