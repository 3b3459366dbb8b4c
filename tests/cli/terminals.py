"""A terminal with a program on it: types, and waits for what it says."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ANSWER_SECONDS_MAX = 90.0
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[=>]|\r")


class Terminal:
    """One program on one terminal."""

    def __init__(self, child: subprocess.Popen[bytes], ours: int) -> None:
        self.child = child
        self._ours = ours
        self._seen = ""

    @property
    def raw(self) -> str:
        """What was said and not waited for yet, with all that moves the cursor or colours."""
        return self._seen

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def wait_for(self, words: str) -> str:
        """Read until some words were said; give all that was said up to there, and forget it."""
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while words not in self._plain():
            if not self._read(deadline):
                raise AssertionError(f"'{words}' was not said:\n{self._plain()}")
        before, found, self._seen = self._plain().partition(words)
        return before + found

    def wait_for_end(self) -> tuple[int, str]:
        """Wait until the program has ended; give its exit code and the rest of what it said."""
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while self._read(deadline):
            pass
        return self.child.wait(ANSWER_SECONDS_MAX), self._plain()

    def _plain(self) -> str:
        return _CONTROL.sub("", self._seen)

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], max(0, deadline - time.monotonic()))
        try:
            said = os.read(self._ours, 65_536) if ready else b""
        except OSError:  # the program has closed its side
            said = b""
        self._seen += said.decode(errors="replace")
        return bool(said)


@contextmanager
def terminal(
    *words: str, home: Path, environ: Mapping[str, str] | None = None, columns: int = 100
) -> Iterator[Terminal]:
    """Run a command of ours on a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    clean = {key: value for key, value in os.environ.items() if not key.startswith("TIDEGATE_")}
    # This terminal answers no questions about its cursor.
    asked = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "TIDEGATE_HOME": str(home), **(environ or {})}
    child = subprocess.Popen(
        [sys.executable, "-m", "tidegate", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**clean, **asked},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(child, ours)
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()
        os.close(ours)
