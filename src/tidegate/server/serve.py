"""The server process: takes a home and settings, serves until it is told to stop, leaves the home closed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
from collections.abc import Iterator

import uvicorn

from tidegate import __version__
from tidegate.errors import PortInUse, StartRefused
from tidegate.model.clock import Clock, SystemClock
from tidegate.server.app import build_app
from tidegate.server.chores import start_chores, stop_chores
from tidegate.server.running import Running, open_running
from tidegate.server.tls import load_tls
from tidegate.settings import Settings
from tidegate.storage.home import Home, HomeLock
from tidegate.watching.logs import keep_secret
from tidegate.watching.tracing import start_tracing, stop_tracing

LISTEN_BACKLOG = 2048

log = logging.getLogger(__name__)


def run_server(settings: Settings, home: Home, clock: Clock | None = None) -> None:
    """Serve until SIGTERM or SIGINT; accepted requests are finished first."""
    # 1. one server a home, before anything of it is touched
    lock = home.lock("server")
    try:
        keep_secret(home.read_token())
        start_tracing(settings.tracing, "tidegate-server", __version__)
        # 2. the port, before the engine is opened: a refusal leaves no trace
        listener = listen(settings.server.host, settings.server.port)
        try:
            # 3. serve
            runner = asyncio.Runner(loop_factory=_loop_factory())
            with runner:
                runner.run(_serve(settings, home, clock or SystemClock(), listener, lock))
        finally:
            listener.close()
    finally:
        stop_tracing()
        lock.release()


def listen(host: str, port: int) -> socket.socket:
    """Give a socket that listens; say so when the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(LISTEN_BACKLOG)
    except OSError as problem:
        listener.close()
        if problem.errno == errno.EADDRINUSE:
            raise PortInUse(host=host, port=port, other=port + 1 if port < 65_535 else 0) from problem
        reason = f"Cannot listen on {host}:{port}: {problem.strerror}."
        raise StartRefused(reason=reason, hint="Check server.host and server.port.") from problem
    listener.setblocking(False)
    return listener


class _Server(uvicorn.Server):
    """Uvicorn, but signals are ours: it would raise them again before the home is closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take no signals."""
        yield


async def _serve(
    settings: Settings, home: Home, clock: Clock, listener: socket.socket, lock: HomeLock
) -> None:
    tls = load_tls(settings.server)
    running = open_running(settings, home, clock, asyncio.get_running_loop())
    chores = start_chores(running)
    if tls is not None:
        chores.append(asyncio.ensure_future(tls.follow_files()))
    try:
        config = uvicorn.Config(
            build_app(running),
            http="httptools",
            lifespan="off",
            log_config=None,
            access_log=False,
            # Whoever connects is who they are: a header could say anything.
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=max(1, round(settings.server.grace_seconds)),
        )
        config.load()
        if tls is not None:
            config.ssl = tls.context
        url = _url(listener, "http" if tls is None else "https")
        running.url = settings.server.public_url or url
        home.write_address(url, os.getpid(), None if tls is None else str(tls.write_pin(home.run_path)))
        log.info("serving %s at %s", home.path, url)
        server = _Server(config)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, _stop, server, running, lock, number)
        await server.serve([listener])
    finally:
        lock.mark_stopping()
        await stop_chores(chores)
        home.clear_address()
        await asyncio.to_thread(running.close)
        log.info("stopped")


def _stop(server: uvicorn.Server, running: Running, lock: HomeLock, number: int) -> None:
    """Take no new work and finish what was accepted; a second signal does not wait for it."""
    log.info("stopping on %s", signal.Signals(number).name)
    lock.mark_stopping()
    server.force_exit = server.should_exit
    server.should_exit = True
    running.begin_stop()


def _url(listener: socket.socket, scheme: str) -> str:
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - what we were told to listen on
        host = "127.0.0.1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    import uvloop

    loop: type[asyncio.AbstractEventLoop] = uvloop.Loop
    return loop
