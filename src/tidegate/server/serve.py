"""The server process: takes a home and settings, serves until it is told to stop, leaves the home closed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import resource
import signal
import socket
import threading
from collections.abc import Iterator

import uvicorn

from tidegate import __version__
from tidegate.errors import PortInUse, StartRefused
from tidegate.model.clock import Clock, SystemClock
from tidegate.server.http.app import build_app
from tidegate.server.http.protocol import hide_cuts, limited_protocol
from tidegate.server.http.tls import load_tls
from tidegate.server.runtime.background import start_chores, stop_chores
from tidegate.server.runtime.runtime import Running, open_running
from tidegate.server.websocket.protocol import MESSAGE_BYTES_MAX, LiveProtocol
from tidegate.settings import Settings
from tidegate.storage.home.home import Home
from tidegate.storage.home.locks import HomeLock
from tidegate.telemetry.redaction import keep_secret
from tidegate.telemetry.tracing import start_tracing, stop_tracing

LISTEN_BACKLOG = 2048
# Connections, RocksDB's files and room to spare.
OPEN_FILES = 65_536
# Time that requests broken off at the end of the grace get to tell their callers: it is a few bytes each.
LAST_WORDS_SECONDS = 1.0
# Time that closing gets behind the grace. All that was acknowledged is on the disk before that; what still
# runs then is a read that nobody waits for.
CLOSE_SECONDS_MAX = 5.0

log = logging.getLogger(__name__)


def run_server(
    settings: Settings, home: Home, clock: Clock | None = None, supervisor: int | None = None
) -> None:
    """Serve until SIGTERM or SIGINT; accepted requests are finished first.

    `supervisor` is the pid of a process that this one stops with.
    """
    _take_open_files()
    # 1. one server a home, before anything of it is touched
    lock = home.lock("server")
    if supervisor is not None:
        lock.mark_supervised(supervisor)
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


def _take_open_files() -> None:
    """Use as many open files as the system allows: each connection is one, and shells give few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; say so when the port is taken."""
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

    def __init__(self, config: uvicorn.Config, grace_seconds: float) -> None:
        super().__init__(config)
        self._grace_seconds = grace_seconds
        self._stop_by_seconds: float | None = None

    def begin_stop(self) -> None:
        """Take no new work; the grace begins now, however busy the loop is. A second call does not wait."""
        if self._stop_by_seconds is None:
            self._stop_by_seconds = asyncio.get_running_loop().time() + self._grace_seconds
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let what runs finish within the grace; break off the rest, and leave no connection open."""
        if self._stop_by_seconds is not None:
            left_seconds = max(0.0, self._stop_by_seconds - asyncio.get_running_loop().time())
            # Uvicorn says int, and waits for parts of a second too.
            self.config.timeout_graceful_shutdown = left_seconds  # type: ignore[assignment]
        await super().shutdown(sockets)
        unfinished = list(self.server_state.tasks)
        for task in unfinished:
            # Those that uvicorn broke off are telling it already: a second time would stop them from that.
            if not task.cancelling():
                task.cancel()
        if unfinished:
            await asyncio.wait(unfinished, timeout=LAST_WORDS_SECONDS)
        for connection in list(self.server_state.connections):
            # A caller who does not read would hold up a connection that closes in good order for ever.
            connection.transport.abort()

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
    # What the start made stays: a collector that walks it again and again would hold requests up for it.
    gc.collect()
    gc.freeze()
    if tls is not None:
        chores.append(asyncio.ensure_future(tls.follow_files()))
    try:
        config = uvicorn.Config(
            build_app(running),
            http=limited_protocol(settings.server),
            ws=LiveProtocol,
            ws_max_size=MESSAGE_BYTES_MAX,
            # Equal messages are equal bytes only while none is compressed.
            ws_per_message_deflate=False,
            ws_ping_interval=settings.live.ping_seconds,
            ws_ping_timeout=settings.live.send_seconds_max,
            lifespan="off",
            log_config=None,
            access_log=False,
            # Whoever connects is who they are: a header could say anything.
            proxy_headers=False,
            server_header=False,
        )
        config.load()
        if tls is not None:
            config.ssl = tls.context
        url = _url(listener, "http" if tls is None else "https")
        running.url = settings.server.public_url or url
        home.write_address(url, os.getpid(), None if tls is None else str(tls.write_pin(home.run_path)))
        log.info("serving %s at %s", home.path, url)
        hide_cuts()
        server = _Server(config, settings.server.grace_seconds)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, _stop, server, running, lock, number)
        await server.serve([listener])
    finally:
        gc.unfreeze()  # what is left at the end is let go of as it should be
        lock.mark_stopping()
        await stop_chores(chores)
        home.clear_address()
        await asyncio.to_thread(running.close)
        log.info("stopped")


def _stop(server: _Server, running: Running, lock: HomeLock, number: int) -> None:
    """Take no new work and finish what was accepted; a second signal does not wait for it."""
    log.info("stopping on %s", signal.Signals(number).name)
    lock.mark_stopping()
    server.begin_stop()
    running.begin_stop()
    _end_by(running.settings.server.grace_seconds + CLOSE_SECONDS_MAX)


def _end_by(seconds: float) -> None:
    """End the process when it has not ended by itself by then, as a kill would: homes are made for that."""

    def end() -> None:
        log.warning("closing took longer than %.0f s: the process ends", CLOSE_SECONDS_MAX)
        logging.shutdown()
        os._exit(0)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _url(listener: socket.socket, scheme: str) -> str:
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - what we were told to listen on
        host = "127.0.0.1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    import uvloop

    loop: type[asyncio.AbstractEventLoop] = uvloop.Loop
    return loop
