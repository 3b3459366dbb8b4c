"""Reports: tells the server each second what the worker does.

A server that is away is said once in the log, and once more when it is back; the worker goes on either way.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from tidegate.errors import TidegateError
from tidegate.pipeline.wire import Wire

log = logging.getLogger("tidegate.worker")

REPORT_INTERVAL_SECONDS = 1.0
# A report that takes longer is worth less than the next one.
REPORT_TIMEOUT_SECONDS = 5.0
REPORT_PATH = "worker/report"


class Reporter:
    """A thread that posts what `body` gives until it is stopped."""

    def __init__(self, wire: Wire, body: Callable[[], dict[str, Any]]) -> None:
        self._wire = wire
        self._body = body
        self._stopping = threading.Event()
        self._away = False
        self._thread = threading.Thread(target=self._run, name="tidegate-reports", daemon=True)

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def stop(self) -> None:
        """Send one last report and end."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(REPORT_INTERVAL_SECONDS):
            self._post()
        self._post()

    def _post(self) -> None:
        try:
            self._wire.post_json_once(REPORT_PATH, self._body())
        except TidegateError as problem:
            if not self._away:
                log.warning("server does not take reports error=%r", str(problem))
            self._away = True
        else:
            if self._away:
                log.info("server takes reports again")
            self._away = False
