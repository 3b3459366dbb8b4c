"""The server process, from its start to an orderly stop."""

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
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import uvicorn

from tidegate import __version__
from tidegate.errors import PortInUse, StartRefused
from tidegate.model.clock import Clock, SystemClock
from tidegate.query.duckdb.remote import close_query_pool
from tidegate.server.app import HttpApp
from tidegate.server.http.protocol import hide_aborted_answers, limited_protocol
from tidegate.server.http.tls import load_tls
from tidegate.server.runtime.background import start_background_tasks, stop_background_tasks
from tidegate.server.runtime.runtime import Runtime, open_runtime
from tidegate.server.websocket.protocol import MESSAGE_BYTES_MAX, LiveProtocol
from tidegate.settings import Settings
from tidegate.storage.home.home import Home
from tidegate.storage.home.locks import HomeLock
from tidegate.telemetry.redaction import keep_secret
from tidegate.telemetry.tracing import start_tracing, stop_tracing

LISTEN_BACKLOG = 2048
# Connections, RocksDB's files, and a reserve.
OPEN_FILES = 65_536
# Writes are taken for this part of the grace period; the rest is for answering their clients.
WRITE_GRACE_PART = 0.8
# Time for those answers where the grace period has less: nothing is stored any more.
ANSWER_SECONDS_MIN = 1.0
# Time in which requests that are cancelled at the end of the grace period answer: it is a few bytes each.
CANCEL_SECONDS_MAX = 1.0
# Time for closing after the grace period. All that was acknowledged is on the disk before that; only reads
# that nobody waits for can still run then.
CLOSE_SECONDS_MAX = 5.0

log = logging.getLogger(__name__)


def run_server(
    settings: Settings, home: Home, clock: Clock | None = None, supervisor: int | None = None
) -> None:
    """Serve until SIGTERM or SIGINT; accepted requests are finished first.

    `supervisor` is the pid of a process that this one stops with.
    """
    _raise_open_files()
    # 1. the lock of the home, before anything in it is changed
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


def _raise_open_files() -> None:
    """Raise the limit of open files as far as the system allows: each connection needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise PortInUse when the port is taken."""
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
    """Uvicorn without its signal handlers: it would raise signals again before the home is closed."""

    def __init__(
        self, config: uvicorn.Config, grace_seconds: float, end_writes: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(config)
        self._grace_seconds = grace_seconds
        self._end_writes = end_writes
        self._stop_by_seconds: float | None = None

    def begin_stop(self) -> None:
        """Accept no new work; the grace period begins now. After a second call nothing is waited for."""
        if self._stop_by_seconds is None:
            self._stop_by_seconds = asyncio.get_running_loop().time() + self._grace_seconds
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests finish within the grace period, cancel the rest, and close all connections.

        A request is cancelled only when nothing is stored any more: its client is told that it was not done.
        """
        closing = asyncio.ensure_future(super().shutdown(sockets))
        # 1. everything is finished as ever; a second signal ends this
        await asyncio.wait({closing}, timeout=self._left_seconds(1 - WRITE_GRACE_PART))
        if self.server_state.tasks:
            # 2. what waits for its write is refused, and what is being written is answered
            await self._end_writes()
            left_seconds = 0.0 if self.force_exit else self._left_seconds()
            await self._wait_tasks(max(left_seconds, ANSWER_SECONDS_MIN))
            # 3. what is left stores nothing: half a request, a read
            for task in list(self.server_state.tasks):
                task.cancel()
            await self._wait_tasks(CANCEL_SECONDS_MAX)
        await asyncio.wait({closing}, timeout=0.0 if self.force_exit else self._left_seconds())
        for connection in list(self.server_state.connections):
            # A client that does not read would delay an orderly close without limit.
            connection.transport.abort()
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)

    def _left_seconds(self, without_part: float = 0.0) -> float:
        """Return how long the grace period still is, without a part of it at its end."""
        if self._stop_by_seconds is None:
            return 0.0
        end_seconds = self._stop_by_seconds - without_part * self._grace_seconds
        return max(0.0, end_seconds - asyncio.get_running_loop().time())

    async def _wait_tasks(self, seconds: float) -> None:
        """Wait until no request runs; the end of one may begin another of its connection."""
        loop = asyncio.get_running_loop()
        end_seconds = loop.time() + seconds
        while self.server_state.tasks and loop.time() < end_seconds:
            running = set(self.server_state.tasks)
            await asyncio.wait(running, timeout=end_seconds - loop.time())

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


async def _serve(
    settings: Settings, home: Home, clock: Clock, listener: socket.socket, lock: HomeLock
) -> None:
    tls = load_tls(settings.server)
    runtime = open_runtime(settings, home, clock, asyncio.get_running_loop())
    tasks = start_background_tasks(runtime)
    # The objects of the start stay: a garbage collector that traverses them again and again would delay
    # requests.
    gc.collect()
    gc.freeze()
    if tls is not None:
        tasks.append(asyncio.ensure_future(tls.follow_files()))
    try:
        config = uvicorn.Config(
            HttpApp(runtime),
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
            # The peer's address counts: a header could say anything.
            proxy_headers=False,
            server_header=False,
        )
        config.load()
        if tls is not None:
            config.ssl = tls.context
        url = _url(listener, "http" if tls is None else "https")
        runtime.url = settings.server.public_url or url
        home.write_address(url, os.getpid(), None if tls is None else str(tls.write_pin(home.run_path)))
        log.info("serving home=%s url=%s", home.path, url)
        runtime.lakes.warm()
        hide_aborted_answers()
        server = _Server(config, settings.server.grace_seconds, partial(_end_writes, runtime, tasks))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, _stop, server, runtime, lock, number)
        await server.serve([listener])
    finally:
        gc.unfreeze()  # so that objects are finalized as usual
        lock.mark_stopping()
        await stop_background_tasks(tasks)
        home.clear_address()
        await asyncio.to_thread(runtime.close)
        await asyncio.to_thread(close_query_pool)
        log.info("stopped")


async def _end_writes(runtime: Runtime, tasks: list[asyncio.Task[None]]) -> None:
    """Store nothing from now on; return when what is in work is stored."""
    runtime.has_ended = True
    await stop_background_tasks(tasks)
    await asyncio.to_thread(runtime.end_writes)


def _stop(server: _Server, runtime: Runtime, lock: HomeLock, number: int) -> None:
    """Accept no new work and finish running requests; a second signal does not wait for them."""
    log.info("stopping signal=%s", signal.Signals(number).name)
    lock.mark_stopping()
    server.begin_stop()
    runtime.begin_stop()
    _end_by(runtime.settings.server.grace_seconds + CLOSE_SECONDS_MAX)


def _end_by(seconds: float) -> None:
    """Kill the process if it has not ended by then; a home survives that like any crash."""

    def end() -> None:
        log.warning("close timed out, ending the process seconds_max=%.0f", CLOSE_SECONDS_MAX)
        logging.shutdown()
        os._exit(0)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _url(listener: socket.socket, scheme: str) -> str:
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - what the settings say
        host = "127.0.0.1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    import uvloop

    loop: type[asyncio.AbstractEventLoop] = uvloop.Loop
    return loop
