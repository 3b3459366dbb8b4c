"""The command line, called as a user calls it."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.warm import command_line
from tidegate.cli.main import run_arguments

CALL_SECONDS_MAX = 120.0
# What runs for long is a tree of its own; what tells Python how to start must be there when it starts.
COLD_WORDS = frozenset({"up", "worker"})
COLD_SETTINGS = ("PYTHON", "LANG", "LC_")


def tidegate(
    *words: str, home: Path, stdin: str = "", environ: Mapping[str, str] | None = None, cold: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end, on a machine without a display; a cold one has to import all by itself."""
    foreign = ("TIDEGATE_", "DISPLAY", "WAYLAND_DISPLAY")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    cold = cold or not COLD_WORDS.isdisjoint(words)
    cold = cold or any(key.startswith(COLD_SETTINGS) for key in environ or {})
    return subprocess.run(
        [sys.executable, "-m", "tidegate", *words] if cold else command_line(*words),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=CALL_SECONDS_MAX,
        env={**clean, "TIDEGATE_HOME": str(home), **(environ or {})},
        check=False,
    )


def on_a_terminal(*words: str, home: Path, typed: str) -> tuple[int, str]:
    """Run one command on a terminal of its own with something typed; give its exit code and what it said."""
    ours, theirs = pty.openpty()
    line = [sys.executable, "-m", "tidegate", *words, "--home", str(home)]
    said = b""
    try:
        with subprocess.Popen(line, stdin=theirs, stdout=theirs, stderr=theirs) as child:
            os.close(theirs)
            os.write(ours, typed.encode())
            # It comes in pieces; reading fails when the program has closed its side.
            with contextlib.suppress(OSError):
                while piece := os.read(ours, 65_536):
                    said += piece
            code = child.wait(CALL_SECONDS_MAX)
    finally:
        os.close(ours)
    return code, said.decode()


def alive(pid: int) -> bool:
    """Return whether a process runs; one that only waits to be collected does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def tidegate_here(*words: str, home: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run one command to its end in this process, which is quicker; for what needs no process of its own."""
    out, err = io.StringIO(), io.StringIO()
    arguments = ["--home", str(home), *words]
    stdin_before, sys.stdin = sys.stdin, io.StringIO(stdin)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_arguments(arguments)
    finally:
        sys.stdin = stdin_before
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
