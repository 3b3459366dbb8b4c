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

from tidegate.errors import PortInUse, StartRefused
from tidegate.model.clock import Clock, SystemClock
from tidegate.server.app import build_app
from tidegate.server.running import Running, open_running
from tidegate.settings import Settings
from tidegate.storage.home import Home, HomeLock

LISTEN_BACKLOG = 2048
SAMPLE_SECONDS = 1.0

log = logging.getLogger(__name__)


def run_server(settings: Settings, home: Home, clock: Clock | None = None) -> None:
    """Serve until SIGTERM or SIGINT; accepted requests are finished first."""
    # 1. one server a home, before anything of it is touched
    lock = home.lock("server")
    try:
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
    running = open_running(settings, home, clock, asyncio.get_running_loop())
    sampler = asyncio.ensure_future(_sample(running))
    try:
        config = uvicorn.Config(
            build_app(running),
            http="httptools",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=max(1, round(settings.server.grace_seconds)),
        )
        url = _url(listener)
        home.write_address(url, os.getpid())
        log.info("serving %s at %s", home.path, url)
        server = _Server(config)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, _stop, server, running, lock, number)
        await server.serve([listener])
    finally:
        lock.mark_stopping()
        sampler.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sampler
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


async def _sample(running: Running) -> None:
    while True:
        running.sample_rate()
        await asyncio.sleep(SAMPLE_SECONDS)


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - what we were told to listen on
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    import uvloop

    loop: type[asyncio.AbstractEventLoop] = uvloop.Loop
    return loop
