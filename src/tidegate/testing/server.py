"""A real server for tests: its own process, a free port, stopped at the end of the `with` block."""

from __future__ import annotations

import contextlib
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from tidegate.cli.http_request import REQUEST_ERRORS, send_request
from tidegate.errors import HomeUnusable
from tidegate.storage.home.home import Home, ServerAddress

START_SECONDS = 60.0  # a shared machine that is busy
ANSWER_SECONDS_MAX = 5.0
# How the process of a server is started; a test run that has a quicker way sets it.
start_child: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen


@dataclass(frozen=True)
class RunningServer:
    """A server under test."""

    url: str
    token: str
    home: Path
    child: subprocess.Popen[bytes]

    def kill(self) -> None:
        """End it as a power cut would: no warning, no clean-up."""
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()


@contextlib.contextmanager
def running_server(
    home: Path,
    *,
    port: int = 0,
    environ: Mapping[str, str] | None = None,
    verify: ssl.SSLContext | bool = True,
) -> Iterator[RunningServer]:
    """Start `tidegate serve` on a home and wait until it is ready; `verify` is the trust under TLS."""
    command = [sys.executable, "-m", "tidegate", "serve", "--home", str(home), "--port", str(port)]
    log_path = home.parent / f"{home.name}.server.log"
    with log_path.open("ab") as log:
        child = start_child(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, **(environ or {})}
        )
    try:
        url = _wait_ready(home, child, log_path, verify)
        yield RunningServer(url, Home.existing(home).read_token(), home, child)
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(START_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _address(home: Path) -> ServerAddress | None:
    try:
        return Home.existing(home).server_address()
    except HomeUnusable:  # it is being made or upgraded
        return None


def _wait_ready(
    home: Path, child: subprocess.Popen[bytes], log_path: Path, verify: ssl.SSLContext | bool
) -> str:
    context = verify if isinstance(verify, ssl.SSLContext) else ssl.create_default_context()
    if verify is False:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if child.poll() is not None:
            break
        address = _address(home)
        if address is not None and address.pid == child.pid:
            with contextlib.suppress(*REQUEST_ERRORS):
                ready = send_request(
                    "GET", f"{address.url}/ready", timeout_seconds=ANSWER_SECONDS_MAX, tls_context=context
                )
                if ready[0] == HTTPStatus.OK:
                    return address.url
        time.sleep(0.05)
    raise RuntimeError(f"the server did not start:\n{log_path.read_text(errors='replace')[-4000:]}")
