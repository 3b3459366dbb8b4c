"""A real server for tests: its own process, a free port, gone with the `with`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from tidegate.storage.home import Home

START_SECONDS = 20.0


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
    home: Path, *, port: int = 0, environ: Mapping[str, str] | None = None
) -> Iterator[RunningServer]:
    """Start `tidegate serve` on a home and wait until it is ready."""
    command = [sys.executable, "-m", "tidegate", "serve", "--home", str(home), "--port", str(port)]
    log_path = home.parent / f"{home.name}.server.log"
    with log_path.open("ab") as log:
        child = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, **(environ or {})}
        )
    try:
        url = _wait_ready(home, child, log_path)
        yield RunningServer(url, Home.existing(home).read_token(), home, child)
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(START_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _wait_ready(home: Path, child: subprocess.Popen[bytes], log_path: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if child.poll() is not None:
            break
        address = Home.existing(home).server_address() if (home / "layout.json").exists() else None
        if address is not None and address.pid == child.pid:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{address.url}/ready", trust_env=False).status_code == 200:
                    return address.url
        time.sleep(0.05)
    raise RuntimeError(f"the server did not start:\n{log_path.read_text(errors='replace')[-4000:]}")
