"""The fork server: quick children, and none that outlives the server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil

from tests.paths import ROOT
from tests.query.processes.echo_child import ECHO, ENVIRONMENT, PID
from tidegate.query.processes.channel import Channel
from tidegate.query.processes.fork_server import ForkServer

GIVE_UP_SECONDS = 60


def is_gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def wait_gone(*pids: int) -> None:
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while not all(map(is_gone, pids)):
        assert time.monotonic() < deadline, f"{[pid for pid in pids if not is_gone(pid)]} still run"
        time.sleep(0.02)


def ask(channel: Channel, kind: int, content: bytes = b"") -> bytes:
    channel.send(kind, content)
    return bytes(channel.receive().content)


def test_children_are_processes_of_their_own_and_end_with_their_session(fork_server: ForkServer) -> None:
    children = [fork_server.fork() for _ in range(3)]
    pids = [pid for pid, _, _ in children]
    assert len({*pids, os.getpid()}) == 4
    for pid, session, control in children:
        channel = Channel(session)
        assert ask(channel, PID) == str(pid).encode()
        assert ask(channel, ECHO, b"hello") == b"hello"
        channel.close()
        control.close()
    wait_gone(*pids)
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while any(psutil.pid_exists(pid) for pid in pids):  # nor is one left as a zombie
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_child_sees_no_secret_of_the_environment(fork_server: ForkServer) -> None:
    _, session, _ = fork_server.fork()
    names = ask(Channel(session), ENVIRONMENT).decode().split("\n")
    assert "PATH" in names
    assert not [name for name in names if name.startswith("TIDEGATE")]


def test_a_killed_fork_server_is_replaced_and_its_children_are_gone(fork_server: ForkServer) -> None:
    pid, *sockets = fork_server.fork()
    process = psutil.Process(pid).parent()
    assert process is not None
    process.kill()
    wait_gone(pid)
    assert len(sockets) == 2, "the session was open until the end"
    other, session, _ = fork_server.fork()
    assert ask(Channel(session), PID) == str(other).encode()


KILLED = """
import os, sys, time
from tidegate.query.processes.channel import Channel
from tidegate.query.processes.fork_server import ForkServer
from tests.query.processes.echo_child import SLEEP
server = ForkServer("tests.query.processes.echo_child")
children = [server.fork() for _ in range(3)]
Channel(children[0][1]).send(SLEEP, b"86400")
print(*(pid for pid, _, _ in children), flush=True)
time.sleep(86400)
"""


def test_no_child_outlives_a_killed_server_even_one_that_is_busy() -> None:
    command = [sys.executable, "-c", KILLED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=environment()) as server:
        assert server.stdout is not None
        pids = [int(word) for word in server.stdout.readline().split()]
        assert len(pids) == 3
        assert not any(map(is_gone, pids))
        server.send_signal(signal.SIGKILL)
    wait_gone(*pids)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}
