"""`tidegate up`: server and worker together, kept running until Ctrl-C, with a live view of both."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.hints import running_holder
from tidegate.cli.invocation import PIPE_WIDTH_COLUMNS, RETRY_SECONDS, Invocation, command
from tidegate.cli.output.format import program_name

if TYPE_CHECKING:
    from tidegate.cli.console.status_feed import CounterHistory, GroupLag
    from tidegate.cli.console.view import Picture
    from tidegate.cli.supervision.supervisor import ChildPlan
    from tidegate.errors import TidegateError
    from tidegate.sdk.client import Client
    from tidegate.settings import Settings
    from tidegate.storage.home.home import Home

STEP_SECONDS = 0.2  # between two polls of the children, and two drawings of the screen
NOTES_MAX = 50
EXIT_KILLED = 130


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(app, "up")(up)


def up(
    call: Invocation,
    port: Annotated[int | None, typer.Option(help="Port of the server (server.port).")] = None,
    demo: Annotated[
        bool,
        typer.Option("--demo", help="With a live source of readings, a pipeline for them, and an agent."),
    ] = False,
) -> None:
    """Run server and worker together, restart what ends, and stop all on one Ctrl-C."""
    settings = call.settings({"server.port": port})
    home = call.open_home()
    refusal = running_holder(home, "server")
    if refusal is not None:  # before a child writes into the log of the running server
        raise refusal
    hurried = Launch(call, home, settings, demo=demo, port=port).run()
    if hurried:
        raise typer.Exit(EXIT_KILLED)


class StopRequested(Exception):
    """A signal asked to stop."""


class StopSignals:
    """Counts signals to stop: the first stops in order, the second kills."""

    def __init__(self) -> None:
        self.count = 0

    def install(self) -> None:
        """Count SIGINT, SIGTERM and SIGHUP from now on."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note)

    def hurry(self) -> bool:
        """True if there was a second signal."""
        return self.count > 1

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1


class Launch:
    """One run of `tidegate up`."""

    def __init__(
        self, call: Invocation, home: Home, settings: Settings, *, demo: bool, port: int | None
    ) -> None:
        from tidegate.cli.console.status_feed import StatusFeed
        from tidegate.cli.demo.feeds import DemoFeeds
        from tidegate.cli.supervision.supervisor import Supervisor
        from tidegate.model.clock import SystemClock

        clock = SystemClock()
        self._call = call
        self._home = home
        self._demo = demo
        self._port = port
        self._signals = StopSignals()
        self._supervisor = Supervisor(settings.supervisor, clock, self._notify)
        self._feed = StatusFeed(self._fetch, clock, self._fetch_lags)
        self._demo_feeds = DemoFeeds(self._connect, clock)
        self._client: Client | None = None
        self._notes: list[str] = []
        self._drawing = False
        self._worker_started = False
        self._demo_started = False

    def run(self) -> bool:
        """Run until a signal; True if there was a second one."""
        from tidegate.cli.console.screen import can_draw, show_live

        self._signals.install()
        try:
            self._supervisor.start(self._plan("server", "serve", self._port_flags()))
            self._feed.start()
            self._drawing = can_draw(self._call)
            show_live(self._call, self._draw, self._step)
        except StopRequested:
            self._drawing = False
            self._notify("stopping; Ctrl-C again kills at once")
        finally:
            self._drawing = False
            self._feed.stop()
            self._demo_feeds.stop()
            self._supervisor.stop(self._signals.hurry, time.sleep)
        return self._signals.hurry()

    def _step(self) -> None:
        time.sleep(STEP_SECONDS)
        if self._signals.count:
            raise StopRequested
        self._supervisor.tick()
        seen, _, _ = self._seen()
        if seen is not None:
            if not self._worker_started:
                self._worker_started = True
                self._supervisor.start(self._plan("worker", "worker"))
            if self._demo and not self._demo_started:
                self._start_demo()

    def _seen(self) -> tuple[Mapping[str, Any] | None, TidegateError | None, CounterHistory]:
        """Return what the feed knows, without the answers of a server that is not our child."""
        seen, failure, history = self._feed.read()
        pid = next(child.pid for child in self._supervisor.states() if child.name == "server")
        return (seen if seen is not None and seen["pid"] == pid else None), failure, history

    def _start_demo(self) -> None:
        import tidegate
        from tidegate.cli.demo.demo import prepare_demo
        from tidegate.errors import Unavailable

        try:
            # The demo belongs to the home: a token of the environment is not used.
            with tidegate.connect(home=self._home.path, retry_seconds=RETRY_SECONDS) as client:
                prepare_demo(client, self._home)
        except Unavailable as error:
            self._notify(f"the demo waits: {error.message}")
            return  # the next step tries again
        self._demo_started = True
        self._supervisor.start(self._plan("agent", "demo-agent"))
        self._supervisor.start(self._plan("demo", "demo-source"))
        if not self._drawing and not self._call.as_json:
            self._print_commands()

    def _plan(self, name: str, noun: str, extra: tuple[str, ...] = ()) -> ChildPlan:
        from tidegate.cli.supervision.supervisor import ChildPlan, child_command

        line = child_command(noun, sys.executable, self._home.path, extra)
        return ChildPlan(name, line, self._home.logs_path / f"{name}.log")

    def _port_flags(self) -> tuple[str, ...]:
        return () if self._port is None else ("--port", str(self._port))

    def _connect(self) -> Client:
        import tidegate

        return tidegate.connect(home=self._home.path, retry_seconds=0)

    def _fetch(self) -> Mapping[str, Any]:
        from tidegate.errors import TidegateError

        if self._client is None:
            self._client = self._connect()
        try:
            return self._client.status()
        except TidegateError:
            self._client.close()
            self._client = None  # a server that is restarted may have another address
            raise

    def _fetch_lags(self) -> Sequence[GroupLag]:
        from tidegate.cli.console.status_feed import group_lags

        return () if self._client is None else group_lags(self._client)

    def _draw(self) -> Picture:
        from tidegate.cli.commands.status import picture_of
        from tidegate.cli.console.view import with_demo

        seen, failure, history = self._seen()
        address = self._home.server_address()
        picture = picture_of(self._call, address.url if address else "", seen)
        trouble = "starting the server"
        if failure is not None and history.samples:
            trouble = failure.message
        picture = replace(
            picture,
            history=history,
            children=self._supervisor.states(),
            notes=self._notes,
            commands=picture.commands if seen is not None else (),
            trouble=trouble,
            lags=self._feed.lags(),
        )
        return with_demo(picture, self._demo_feeds) if self._demo else picture

    def _notify(self, text: str) -> None:
        self._notes = [*self._notes[-NOTES_MAX:], f"{time.strftime('%H:%M:%S')} {text}"]
        if self._call.as_json:
            self._call.line({"event": text})
        elif not self._drawing:
            typer.echo(self._notes[-1])

    def _print_commands(self) -> None:
        from tidegate.cli.commands.status import commands_to_try
        from tidegate.cli.demo.feeds import ANSWERS_TOPIC, DEMO_TOPIC

        topics = [{"name": DEMO_TOPIC}, {"name": ANSWERS_TOPIC}]
        made = {"topics": topics, "tables": [{"name": "readings"}]}
        typer.echo(f"The demo runs. Try, in another terminal ({program_name()} --help lists more):")
        for line in commands_to_try(self._home.path, made, PIPE_WIDTH_COLUMNS):
            typer.echo(f"  {line}")
