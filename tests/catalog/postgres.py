"""A real PostgreSQL server for tests, in a temporary folder.

It is started from installed binaries, with `fsync` on, on a free port of 127.0.0.1. PostgreSQL refuses to run
as root; there it runs as `postgres` or `nobody`. When the tests are killed, it ends with them.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from tidegate.errors import StartRefused

START_SECONDS_MAX = 60.0  # a shared machine that syncs slowly
CONNECTIONS_MAX = 100
PASSWORD = "s3cret-of-tests"  # so that tests can look for it where it must not be
_POLL_SECONDS = 0.05
_PORT_MIN, _PORT_MAX = 15_000, 32_000
_PORTS_TRIED = 100
_GUARD = 'read _; kill -QUIT "$1"; sleep 1; rm -rf "$2"'  # the clean-up when the tests were killed
_FOLDERS = ("/usr/lib/postgresql", "/usr/local/pgsql", "/opt/homebrew/opt")


def find_binaries() -> Path | None:
    """Return the folder with `initdb` and `postgres`, the newest of several; None where there is none."""
    on_path = shutil.which("postgres")
    found = [Path(on_path).resolve().parent] if on_path else []
    for folder in _FOLDERS:
        found += [path.parent for path in sorted(Path(folder).glob("**/bin/postgres"), reverse=True)]
    return next((path for path in found if (path / "initdb").exists()), None)


class Postgres:
    """One PostgreSQL server that a test may stop, restart and kill."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._user = _unprivileged_user() if os.geteuid() == 0 else None
        # Not under the folders of the tests: those are closed to other users.
        self._folder = Path(tempfile.mkdtemp(prefix="tidegate-postgres-"))
        self._server: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self._emptied: list[str] = []
        self.port = free_port()
        self._make()
        self.start()

    def url(self, database: str) -> str:
        """Return the address of a database as users write it."""
        return f"postgresql://tidegate:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    def create_database(self) -> str:
        """Return the address of an empty database."""
        if self._emptied:
            return self._emptied.pop()
        self._databases += 1
        name = f"test_{self._databases}"
        self.execute("postgres", f"CREATE DATABASE {name}")
        return self.url(name)

    def empty_database(self, url: str) -> None:
        """Close all connections to a database and empty it for the next `create_database`.

        That is far quicker than to drop it: a new database is a thousand files.
        """
        database = url.rsplit("/", 1)[1]
        others = f"datname = '{database}' AND pid <> pg_backend_pid()"
        terminate = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"
        self.execute(database, terminate)
        self.execute(database, "DROP SCHEMA public CASCADE")
        self.execute(database, "CREATE SCHEMA public")
        self._emptied.append(url)

    def execute(self, database: str, statement: str) -> None:
        """Run one statement outside any transaction."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement.encode())

    def start(self) -> None:
        """Start the server and wait until it answers."""
        with (self._folder / "server.log").open("ab") as log:
            self._server = subprocess.Popen(
                [self._binaries / "postgres", "-D", self._folder / "cluster"],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                user=self._user,
                start_new_session=True,
                cwd=self._folder,
            )
        # Its input ends when this process does, however that happens.
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "guard", str(self._server.pid), self._folder],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
            except psycopg.OperationalError as problem:
                if self._server.poll() is not None or time.monotonic() > deadline:
                    raise StartRefused(reason=f"PostgreSQL does not start: {self._log_end()}") from problem
                time.sleep(_POLL_SECONDS)
            else:
                return

    def stop(self) -> None:
        """Stop the server in order, and close all connections."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Stop the server as a power cut would: what it did not sync is lost."""
        self._end(signal.SIGQUIT)

    def restart(self) -> None:
        """Stop the server and start it again at the same address."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze every process of the server: connections stay open and nothing answers."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a frozen server."""
        self._signal_all(signal.SIGCONT)

    def close(self) -> None:
        """Stop the server for good and remove its files."""
        self.kill()  # nothing needs to reach a disk that is cleared next
        shutil.rmtree(self._folder)

    def _make(self) -> None:
        if self._user is not None:
            os.chown(self._folder, self._user, -1)
        secret = self._folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        cluster = self._folder / "cluster"
        options = ["-U", "tidegate", f"--pwfile={secret}", "--auth=scram-sha-256"]
        options += ["--encoding=UTF8", "--locale=C", "--no-sync"]
        made = subprocess.run(
            [self._binaries / "initdb", "-D", cluster, *options],
            capture_output=True,
            text=True,
            user=self._user,
            cwd=self._folder,
            check=False,
        )
        if made.returncode != 0:
            raise StartRefused(reason=f"initdb failed: {made.stderr.strip()[-500:]}")
        settings = {
            "port": self.port,
            "listen_addresses": "'127.0.0.1'",
            "unix_socket_directories": "''",
            "max_connections": CONNECTIONS_MAX,
            "fsync": "on",
            "shared_buffers": "'32MB'",
        }
        with (cluster / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = {value}\n" for name, value in settings.items())

    def _end(self, with_signal: signal.Signals) -> None:
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None
        if self._server is not None:
            self._server.send_signal(with_signal)
            self._server.wait()
            self._server = None

    def _signal_all(self, sent: signal.Signals) -> None:
        import psutil

        if self._server is not None:
            parent = psutil.Process(self._server.pid)
            parent.send_signal(sent)
            # A frozen parent starts no other process, and its children stay until it has waited for them.
            while sent == signal.SIGSTOP and parent.status() != psutil.STATUS_STOPPED:
                time.sleep(_POLL_SECONDS / 10)
            for part in parent.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    part.send_signal(sent)

    def _log_end(self) -> str:
        return (self._folder / "server.log").read_text(errors="replace")[-500:]


def _unprivileged_user() -> int:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
    raise StartRefused(reason="PostgreSQL does not run as root, and there is no user 'postgres' or 'nobody'")


def free_port() -> int:
    """Return a free port below those of outgoing connections, which could take it between two starts."""
    for port in random.SystemRandom().sample(range(_PORT_MIN, _first_outgoing_port()), _PORTS_TRIED):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise StartRefused(reason="no free port was found for PostgreSQL")


def _first_outgoing_port() -> int:
    try:
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return _PORT_MAX
    return low if low >= _PORT_MIN + _PORTS_TRIED else _PORT_MAX
