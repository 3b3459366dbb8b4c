"""What every command is called with: takes --home and --json, gives home, settings and a way to answer."""

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

from tidegate.cli.advice import advised, leave_stdout
from tidegate.cli.show import HOME_DEFAULT
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from tidegate.sdk.client import Client
    from tidegate.settings import Settings
    from tidegate.storage.home import Home

# Output that goes into a file or a pipe is never cut: rows are as wide as they are.
PIPE_WIDTH_COLUMNS = 10_000
TOKEN_BYTES = 32

HomeOption = Annotated[
    Path | None,
    typer.Option("--home", metavar="DIR", help="The home folder; else TIDEGATE_HOME, else ~/.tidegate."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Answer in JSON, for machines.")]


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of a command: where its home is and who reads its answer."""

    named_home: Path | None
    as_json: bool

    @property
    def home_path(self) -> Path:
        """The home folder: the flag, else TIDEGATE_HOME, else ~/.tidegate."""
        return find_home(self.named_home)

    @property
    def elsewhere(self) -> bool:
        """Whether commands ask a server that TIDEGATE_URL names, whose home may be on another machine."""
        return self.named_home is None and bool(os.environ.get("TIDEGATE_URL"))

    def advise(self, error: TidegateError) -> TidegateError:
        """Give an error with the hint that fits the command line."""
        return advised(error, self.home_path, elsewhere=self.elsewhere)

    def settings(self, flags: Mapping[str, object] | None = None) -> Settings:
        """Read the settings of this home, the environment and the flags."""
        from tidegate.settings import load_settings

        return load_settings(self.home_path, os.environ, flags or {})

    def open_home(self) -> Home:
        """Open the home, or make it."""
        from tidegate.storage.home import Home

        return Home.open(self.home_path, lambda: secrets.token_urlsafe(TOKEN_BYTES))

    def existing_home(self) -> Home:
        """Open the home, which must be there."""
        from tidegate.storage.home import Home

        return Home.existing(self.home_path)

    def connect(self) -> Client:
        """Give a client, which the caller closes."""
        import tidegate

        return tidegate.connect(home=None if self.elsewhere else self.home_path)

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Connect to the server for as long as the block runs.

        It is the server of this home; TIDEGATE_URL and TIDEGATE_TOKEN name another, unless --home is given.
        """
        client = self.connect()
        try:
            yield client
        finally:
            client.close()

    def answer(self, value: Any, shown: Callable[[], RenderableType]) -> None:
        """Print `value` as JSON, or what `shown` builds for people."""
        if self.as_json:
            self.line(value)
        else:
            console().print(shown())

    def line(self, value: Any) -> None:
        """Print one value as one line of JSON, at once."""
        typer.echo(json.dumps(value, ensure_ascii=False, default=str))
        sys.stdout.flush()


def console(*, stderr: bool = False) -> Console:
    """Give a console for stdout or stderr that cuts nothing when its output is not a terminal."""
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # Rich would leave with 1

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPE_WIDTH_COLUMNS
    return PipeConsole(stderr=stderr, width=width, highlight=False, markup=False)


def find_home(flag: Path | None) -> Path:
    """Give the home folder: the flag, else TIDEGATE_HOME, else ~/.tidegate."""
    chosen = flag or Path(os.environ.get("TIDEGATE_HOME") or HOME_DEFAULT)
    return chosen.expanduser().absolute()


def command(
    app: typer.Typer, name: str, *, hidden: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function `f(call, …)` as a command which also takes --home and --json.

    Both may stand before the noun or after the verb: `--json topic list` and `topic list --json`.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(function, eval_str=True).parameters.values() if p.name != "call"]

        @functools.wraps(function)
        def run(ctx: typer.Context, home: Path | None, as_json: bool, **options: Any) -> None:
            outer: Invocation | None = ctx.obj
            if outer is not None:
                home = home or outer.named_home
                as_json = as_json or outer.as_json
            call = Invocation(home, as_json)
            try:
                function(call, **options)
            except BrokenPipeError as problem:
                leave_stdout()
                raise typer.Exit(0) from problem  # the reader has what it wanted, as in `| head -1`
            except TidegateError as error:
                better = call.advise(error)
                if better is error:
                    raise
                raise better from error

        added = [
            _keyword("ctx", typer.Context, inspect.Parameter.empty),
            _keyword("home", HomeOption, None),
            _keyword("as_json", JsonOption, False),
        ]
        own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        parameters = [*own, *added]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        del run.__dict__["__wrapped__"]  # else Typer reads the signature of the function inside
        app.command(name, hidden=hidden)(run)
        return function

    return register


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
