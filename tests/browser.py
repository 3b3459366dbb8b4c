"""A real browser for tests: Chromium without a window, driven over its DevTools protocol.

Tests that need it ask for `start_browser` and skip with the reason where no Chromium is installed.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

START_SECONDS = 60.0
ANSWER_SECONDS = 60.0
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str:
    """Return the path of a Chromium, or skip the test."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium is installed")
    return found


class Page:
    """One tab."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.events: list[dict[str, Any]] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and give its result; events that come meanwhile are kept."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=ANSWER_SECONDS))
            if message.get("id") != number:
                self.events.append(message)
                continue
            if "error" in message:
                raise RuntimeError(f"{method}: {message['error']['message']}")
            result: dict[str, Any] = message["result"]
            return result

    def open(self, url: str) -> None:
        """Go to an address as a person who types it, and wait until it is there."""
        self._leave_mark()
        failed = self.call("Page.navigate", url=url).get("errorText")
        # A page of a refusal counts as one that is there.
        if failed and failed != "net::ERR_HTTP_RESPONSE_CODE_FAILURE":
            raise RuntimeError(f"{url}: {failed}")
        self._wait_for_next()

    def press(self, selector: str) -> None:
        """Press a button that leads to another page, and wait until that is there."""
        self._leave_mark()
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")
        self._wait_for_next()

    def evaluate(self, script: str) -> Any:
        """Return the value of some JavaScript; the policy of the page does not hold for it."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']['text']}")
        return answer["result"].get("value")

    @property
    def text(self) -> str:
        """What a person reads."""
        return str(self.evaluate("document.body.innerText"))

    @property
    def path(self) -> str:
        """Where the browser is."""
        return str(self.evaluate("location.pathname + location.search"))

    def cookies(self) -> dict[str, dict[str, Any]]:
        """Return the cookies of the page by name, those that scripts cannot see too."""
        return {cookie["name"]: cookie for cookie in self.call("Network.getCookies")["cookies"]}

    def complaints(self) -> list[str]:
        """Return what the browser complained of so far: refused styles, failed loads, errors."""
        self.evaluate("1")
        entries = [e["params"]["entry"] for e in self.events if e.get("method") == "Log.entryAdded"]
        return [entry["text"] for entry in entries if entry["level"] == "error"]

    def resize(self, width_px: int, height_px: int, *, dark: bool = False) -> None:
        """Look as from a screen of that size, in light or dark colours."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width_px,
            height=height_px,
            deviceScaleFactor=1,
            mobile=True,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path) -> None:
        """Write what is seen as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def _leave_mark(self) -> None:
        self.evaluate("window.leftBehind = true")

    def _wait_for_next(self) -> None:
        """Wait for a whole document other than the one that was marked."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            # Between two documents there is nothing to ask.
            with contextlib.suppress(RuntimeError):
                if self.evaluate("!window.leftBehind && document.readyState === 'complete'"):
                    return
            time.sleep(0.02)
        raise RuntimeError("the next page did not come")


@contextlib.contextmanager
def start_browser(folder: Path) -> Iterator[Page]:
    """Start a browser with an empty profile in a folder, and give its one tab."""
    from websockets.sync.client import connect

    command = [find_browser(), "--headless=new", "--remote-debugging-port=0", "--no-first-run"]
    command += ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server"]
    command += ["--disable-background-networking", "--disable-component-update"]
    profile = folder / "profile"
    with (folder / "browser.log").open("wb") as log:
        child = subprocess.Popen(
            [*command, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "HOME": str(folder)},
        )
    try:
        address = f"http://127.0.0.1:{_debug_port(profile, child)}"
        tabs = httpx.get(f"{address}/json/list", trust_env=False, timeout=ANSWER_SECONDS).json()
        tab = next(tab for tab in tabs if tab["type"] == "page")
        with connect(tab["webSocketDebuggerUrl"], proxy=None, max_size=None) as socket:
            yield Page(socket)
    finally:
        child.terminate()
        try:
            child.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _debug_port(profile: Path, child: subprocess.Popen[bytes]) -> int:
    told = profile / "DevToolsActivePort"
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and child.poll() is None:
        if told.exists() and (lines := told.read_text().splitlines()):
            return int(lines[0])
        time.sleep(0.05)
    raise RuntimeError(f"the browser did not start: {(profile.parent / 'browser.log').read_text()[-2000:]}")
