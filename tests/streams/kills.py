"""Streams under kill -9: `python -m tests.streams.kills --rounds N [--seed S]`.

A child appends in several threads, acknowledges every append on its standard output, and flushes as a server
does; it is killed at a seeded moment. Then everything that was acknowledged before the last flush that ended
must be there once and in order, nothing torn or damaged, and rows of a durable table all of them. The next
child goes on in the same folder.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from pathlib import Path

from tests.streams.factories import make_store, make_table
from tidegate.model.clock import SystemClock
from tidegate.model.tables import Durability, Table
from tidegate.settings.sections import StreamSettings
from tidegate.streams.frame_reader import Damage
from tidegate.streams.store import StreamStore

USERS = 24
THREADS = 3
FLUSH_SECONDS = 0.05
ALIVE_SECONDS_MAX = 0.5
# By turns: logs lose their slots and fill their buffers all the time; or nothing but a flush writes them.
SETTINGS = [
    StreamSettings(writers_max=10, buffer_bytes=2048),
    StreamSettings(writers_max=64, buffer_bytes=16 * 1024 * 1024),
]
TABLES = [
    make_table(id=1, name="buffered", ttl_seconds=86_400),
    make_table(id=2, name="durable", ttl_seconds=86_400, durability=Durability.FSYNC),
]


def numbers(store: StreamStore, table: Table, user: str) -> list[int]:
    """Return the numbers of a user's rows as they are read."""
    return [int(str(row[0])) for row in store.read(table, user).rows]


def append_for_ever(folder: Path, seed: int) -> None:
    """Append and say so, until someone kills this process."""
    clock = SystemClock()
    store = make_store(folder, clock, settings=SETTINGS[seed % 2])

    def work(thread: int) -> None:
        choice = random.Random(seed * 100 + thread)
        users = [f"user{number}" for number in range(thread, USERS, THREADS)]
        following: dict[tuple[int, str], int] = {}
        while True:
            table, user = TABLES[choice.random() < 0.1], choice.choice(users)
            if (table.id, user) not in following:
                newest = store.read(table, user, last=1).rows
                following[table.id, user] = int(str(newest[0][0])) + 1 if newest else 0
            first, count = following[table.id, user], choice.randint(1, 5)
            text = "x" * choice.randint(0, 200)
            store.append(table, user, [(first + place, text) for place in range(count)])
            following[table.id, user] += count
            _say(f"A {table.id} {user} {first + count - 1} {clock.monotonic_seconds()}")

    def work_or_fall(thread: int) -> None:
        try:
            work(thread)
        finally:  # it only ends by an error: a child that appends nothing more must not be waited for
            traceback.print_exc()
            os._exit(1)

    for thread in range(THREADS):
        threading.Thread(target=work_or_fall, args=(thread,), daemon=True).start()
    while True:
        time.sleep(FLUSH_SECONDS / 2)
        before = clock.monotonic_seconds() - FLUSH_SECONDS / 2
        store.flush(older_than_seconds=FLUSH_SECONDS / 2)
        _say(f"F {before}")


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def kill_one(folder: Path, seed: int) -> int:
    """Start a child, kill it, and check what it left; gives how many appends it acknowledged."""
    choice = random.Random(seed)
    command = [sys.executable, "-m", "tests.streams.kills", "--child", str(folder), "--seed", str(seed)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    if child.stdout is None:
        raise RuntimeError("the child has no output")
    lines = [child.stdout.readline()]
    while lines[-1] and not lines[-1].startswith(b"A"):  # from its first append on it can be killed
        lines.append(child.stdout.readline())

    def kill() -> None:
        time.sleep(choice.random() * ALIVE_SECONDS_MAX)
        child.send_signal(signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    lines += child.stdout.readlines()
    killer.join()
    if child.wait() != -signal.SIGKILL:
        raise RuntimeError(f"the child ended by itself with {child.returncode}, seed {seed}")
    check(folder, [line.decode().split() for line in lines if line.endswith(b"\n")], seed)
    return sum(line.startswith(b"A") for line in lines)


def check(folder: Path, words: list[list[str]], seed: int) -> None:
    """Compare what a killed child said with what is there."""
    flushed = max((float(line[1]) for line in words if line[0] == "F"), default=0.0)
    owed: dict[tuple[int, str], int] = defaultdict(lambda: -1)
    for kind, *rest in words:
        if kind == "A":
            table_id, user, last, at = int(rest[0]), rest[1], int(rest[2]), float(rest[3])
            if table_id == TABLES[1].id or at <= flushed:
                owed[table_id, user] = max(owed[table_id, user], last)
    store = make_store(folder, SystemClock())
    damages: list[Damage] = []
    store.on_damage = damages.append
    for table in TABLES:
        for user in (f"user{number}" for number in range(USERS)):
            found = numbers(store, table, user)
            place = f"seed {seed}, {table.name}, {user}"
            assert found == list(range(len(found))), f"{place}: not every row once and in order: {found}"
            assert len(found) > owed[table.id, user], f"{place}: {owed[table.id, user]} was acknowledged"
    assert damages == [], f"seed {seed}: {damages}"
    store.close()


def main() -> None:
    """Kill that many children in one folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--child", type=Path, default=None)
    chosen = parser.parse_args()
    seed = secrets.randbits(32) if chosen.seed is None else chosen.seed
    if chosen.child is not None:
        append_for_ever(chosen.child, seed)
    with tempfile.TemporaryDirectory() as name:
        appends = 0
        for number in range(chosen.rounds):
            print(f"seed {seed + number}", flush=True)
            appends += kill_one(Path(name), seed + number)
    print(f"{chosen.rounds} kills, {appends} acknowledged appends: nothing lost, doubled or torn")


if __name__ == "__main__":
    main()
