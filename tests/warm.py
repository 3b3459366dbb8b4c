"""A warm Tidegate: one process that has imported it all, and a fork of it for each command and server.

What a short command costs is almost only its imports, and the tests start hundreds. Each is still a whole
process with its own arguments, environment, folder, input and output; it only begins where `import` ends.
`python -m tests.warm SOCKET` is the process that forks; `warm_call.py` calls it from a shell.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tests.paths import ROOT

CALLER = Path(__file__).with_name("warm_call.py")
START_SECONDS_MAX = 60.0
# A shell waits a second for names; a busy machine may need longer, and then nothing would be offered.
COMPLETION_SECONDS = 60.0
HEAD_BYTES = 8
NUMBER_BYTES = 4
# What commands import when they need it, and all of the server. The one thread that comes with them is of an
# allocator that starts it again in a fork.
NEEDED_LATER = (
    "encodings.idna",
    "httpx",
    "pydantic.json_schema",
    "pydantic.type_adapter",
    "rich._emoji_codes",
    "rich.panel",
    "tidegate.cli.completion",
    "tidegate.cli.output.tables",
    "tidegate.cli.main",
    "tidegate.cli.output.tables",
    "tidegate.cli.console.view",
    "tidegate.sdk.client",
    "tidegate.server.app",
    "tidegate.server.serve",
)


def command_line(*words: str) -> list[str]:
    """Return the line that runs `tidegate` with these words in a fork of the warm process."""
    return [sys.executable, "-I", "-S", str(CALLER), warm_socket(), *words]


@functools.cache
def warm_socket() -> str:
    """Return where the warm process of this test process listens; it starts when first asked for."""
    folder = tempfile.mkdtemp(prefix="tidegate-warm-")
    path = str(Path(folder) / "s")
    environ = {key: value for key, value in os.environ.items() if not key.startswith("TIDEGATE_")}
    environ["OPENBLAS_NUM_THREADS"] = "1"
    line = [sys.executable, "-m", "tests.warm", path]
    # It ends with us, however we end: its input closes.
    child = subprocess.Popen(line, cwd=ROOT, env=environ, stdin=subprocess.PIPE)
    atexit.register(_end, child, folder)
    deadline = time.monotonic() + START_SECONDS_MAX
    while not Path(path).exists():
        if child.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the warm command line did not start")
        time.sleep(0.02)
    return path


class WarmChild:
    """A command in a fork of the warm process, with what its starter uses of a `subprocess.Popen`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: IO[bytes],
        stderr: IO[bytes],
        env: Mapping[str, str],
    ) -> None:
        if stdin != subprocess.DEVNULL or list(command[:3]) != [sys.executable, "-m", "tidegate"]:
            raise ValueError(f"not a command without input: {command}")
        self.returncode: int | None = None
        self.args = command
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(warm_socket())
        asked = {"words": command[3:], "environ": dict(env), "folder": str(Path.cwd())}
        text = json.dumps(asked).encode()
        with open(os.devnull, "rb") as nothing:  # noqa: PTH123
            fds = [nothing.fileno(), stdout.fileno(), stderr.fileno()]
            socket.send_fds(self._connection, [len(text).to_bytes(HEAD_BYTES, "big")], fds)
        self._connection.sendall(text)
        self.pid = int.from_bytes(self._connection.recv(NUMBER_BYTES), "big")

    def poll(self) -> int | None:
        """Return the exit code, if there is one."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and give the exit code."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int.from_bytes(self._connection.recv(NUMBER_BYTES), "big", signed=True)
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


def _end(child: subprocess.Popen[bytes], folder: str) -> None:
    if child.stdin is not None:
        child.stdin.close()
    child.wait()
    shutil.rmtree(folder, ignore_errors=True)


def main(path: str) -> None:
    """Listen, and fork for each that calls, until the standard input closes."""
    for name in NEEDED_LATER:
        importlib.import_module(name)
    sys.modules["tidegate.cli.completion"].__dict__["ANSWER_SECONDS_MAX"] = COMPLETION_SECONDS
    gc.freeze()
    # Forks are collected by the kernel: nobody here waits for them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path + ".new")
    listener.listen(64)
    Path(path + ".new").rename(path)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            try:
                _attend(connection)
            finally:
                os._exit(0)
        connection.close()


def _attend(connection: socket.socket) -> None:
    """Run the command in a fork, tell how it ended, and end it where the caller is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    fds, asked = _receive(connection)
    pid = os.fork()
    if pid == 0:
        connection.close()
        _run(asked, fds)
    connection.sendall(pid.to_bytes(NUMBER_BYTES, "big"))
    for fd in fds:
        os.close(fd)
    ended = os.pidfd_open(pid)
    while True:
        ready, _, _ = select.select([connection.fileno(), ended], [], [])
        if ended in ready:
            break
        sent = connection.recv(1)
        os.kill(pid, sent[0] if sent else signal.SIGKILL)
        if not sent:
            break
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):
        connection.sendall(code.to_bytes(NUMBER_BYTES, "big", signed=True))


def _receive(connection: socket.socket) -> tuple[list[int], dict[str, Any]]:
    head, fds, _, _ = socket.recv_fds(connection, HEAD_BYTES, 3)
    text = b""
    while len(text) < int.from_bytes(head, "big"):
        text += connection.recv(65_536)
    return fds, json.loads(text)


def _run(asked: dict[str, Any], fds: list[int]) -> None:
    """Become the command."""
    code = 1
    try:
        for place, fd in enumerate(fds):
            os.dup2(fd, place)
            os.close(fd)
        os.environ.clear()
        os.environ.update(asked["environ"])
        time.tzset()
        os.chdir(asked["folder"])
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
        sys.stderr = os.fdopen(2, "w", buffering=1)
        sys.argv = ["tidegate", *asked["words"]]
        from tidegate.cli.main import run

        run()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does it
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
