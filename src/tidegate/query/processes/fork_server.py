"""The fork server: a process without threads that imports what children need once, and forks them.

    server ──Popen──▶ fork server ──fork──▶ child, child, …
       └──────────────── session and control socket ────────┘

The server has threads, and a fork of it could inherit a lock that nobody releases; an interpreter for each
child would take half a second. A request is one byte with two sockets attached; the answer is the child's
process id. The fork server ends when its connection closes, whatever ended the server, and its children end
with it: each asked the kernel for SIGKILL at the death of its parent. Children are reaped here.

Run as `python -m tidegate.query.processes.fork_server FD MODULE`: `MODULE` has `preload()` and
`run_child(session, control)`.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import importlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType

from tidegate.errors import QueryCrashed

_PID = struct.Struct("<i")
_SPAWN = b"s"
_PR_SET_PDEATHSIG = 1
# Raised for the kernel's out-of-memory killer: a child before the server.
_OOM_SCORE = b"1000"
# What a child needs of the environment; tokens and passwords of the server are left out.
_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")


class ForkServer:
    """The server's end; any thread may use it."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._is_closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None

    def start(self) -> None:
        """Start the process unless it runs; does not wait for its imports."""
        with self._lock:
            self._connected()

    def fork(self) -> tuple[int, socket.socket, socket.socket]:
        """Return the process id of a new child, and the server's ends of its session and control sockets.

        Raises QueryCrashed where there can be no child now; a fork server that was killed is replaced.
        """
        with self._lock:
            for is_last in (False, True):
                session, control = socket.socketpair(), socket.socketpair()
                try:
                    pid = self._request(self._connected(), [session[1].fileno(), control[1].fileno()])
                except OSError as error:
                    for ours in (session[0], control[0]):
                        ours.close()
                    self._drop()
                    if is_last:
                        raise QueryCrashed(reason=f"no process can be started for it: {error}") from error
                else:
                    return pid, session[0], control[0]
                finally:
                    session[1].close()
                    control[1].close()
        raise QueryCrashed(reason="no process can be started for it")

    def close(self) -> None:
        """End the fork server and every child of it; there are no more."""
        with self._lock:
            self._is_closed = True
            self._drop()

    def _connected(self) -> socket.socket:
        if self._connection is not None and self._process is not None and self._process.poll() is None:
            return self._connection
        self._drop()
        if self._is_closed:
            raise ConnectionAbortedError("it is closed")
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", __spec__.name, str(theirs.fileno()), self._module]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # Ctrl-C in a terminal is for the server, which ends its children when it has answered.
                start_new_session=True,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            )
        self._connection = ours
        return ours

    def _request(self, connection: socket.socket, fds: list[int]) -> int:
        connection.sendmsg([_SPAWN], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
        answer = b""
        while len(answer) < _PID.size:
            part = connection.recv(_PID.size - len(answer))
            if not part:
                raise ConnectionResetError("the fork server ended")
            answer += part
        pid: int = _PID.unpack(answer)[0]
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return pid

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._connection = None


def main(arguments: list[str]) -> None:
    """Serve until the connection closes."""
    connection = socket.socket(fileno=int(arguments[0]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    module = importlib.import_module(arguments[1])
    module.preload()
    os.chdir("/")  # so that the file system where the server was started can be unmounted
    wakeup, notify = os.pipe()
    os.set_blocking(notify, False)
    signal.set_wakeup_fd(notify, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([connection.fileno(), wakeup], [], [])
        if wakeup in ready:
            os.read(wakeup, 4096)
            _reap()
        if connection.fileno() in ready:
            content, fds, _, _ = socket.recv_fds(connection, 1, 2)
            if content != _SPAWN:
                return
            connection.sendall(_PID.pack(_fork(connection, module, fds)))


def _fork(connection: socket.socket, module: ModuleType, fds: list[int]) -> int:
    """Return the process id of a child, or an error number below 0; the child does not return."""
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        return -(error.errno or 1)
    finally:
        if os.getpid() == parent:
            for fd in fds:
                os.close(fd)
    if pid:
        return pid
    status = 1
    try:
        connection.close()
        _become_child(parent)
        module.run_child(socket.socket(fileno=fds[0]), socket.socket(fileno=fds[1]))
        status = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        # Without the clean-up of the interpreter: DuckDB's threads may still run.
        os._exit(status)


def _become_child(parent: int) -> None:
    signal.set_wakeup_fd(-1)
    os.setpgid(0, 0)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # it ended before the line above
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_bytes(_OOM_SCORE)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    main(sys.argv[1:])
