"""Backups and restores that are killed: `python -m tests.upkeep.backup.kills --help`.

Each round starts the real command, kills it with -9 at a seeded moment, and looks at what is left: a file or
a home is whole or not there. The last round is not killed and must work.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.upkeep.backup.homes import make_home, opened_topics
from tidegate.storage.home.home import Home
from tidegate.testing.server import running_server
from tidegate.upkeep.backup.encryption import KEY_BYTES, BackupKey, make_key, read_key
from tidegate.upkeep.backup.restore import read_manifest

# From the start of Python to the end of the command; most of it is the start.
KILL_SECONDS_MAX = 2.5
# A killed maker's backup is noticed within this.
NEXT_SECONDS_MAX = 240.0


def kill_backups(home: Path, file: Path, rounds: int, seed: int, key: Path | None = None) -> None:
    """Kill that many backups of a running home; then make one."""
    choice = random.Random(seed)
    key_words = [] if key is None else ["--key", str(key)]
    backup = ["backup", str(file), "--force", "--home", str(home), *key_words]
    for number in range(rounds):
        _kill(backup, choice)
        if file.exists():
            manifest = read_manifest(file, key=_key_in(key))  # raises where the file is not whole
            assert manifest.home_id == Home.existing(home).home_id, f"seed {seed}, round {number}"
            file.unlink()
    deadline = time.monotonic() + NEXT_SECONDS_MAX
    command = [sys.executable, "-m", "tidegate", *backup]
    while True:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            break
        assert "is being made already" in answer.stderr, f"seed {seed}: {answer.stderr}"
        assert time.monotonic() < deadline, f"seed {seed}: the lease of a dead backup is held still"
        time.sleep(1)
    assert not list(file.parent.glob("*.partial")), f"seed {seed}"


def kill_restores(file: Path, target: Path, rounds: int, seed: int, key: Path | None = None) -> None:
    """Kill that many restores; then make one."""
    choice = random.Random(seed)
    expected = len(read_manifest(file, key=_key_in(key)).files)
    key_words = [] if key is None else ["--key", str(key), "--new-tokens"]
    restore = ["restore", str(file), "--home", str(target), *key_words]
    for number in range(rounds):
        _kill(restore, choice)
        if target.exists():
            Home.existing(target).read_token()
            found = sum(len(names) for _, _, names in os.walk(target))
            # The catalog's dump became a database; everything else is there as it was.
            assert found > expected // 2, f"seed {seed}, round {number}: {found} files of {expected}"
            shutil.rmtree(target)
    subprocess.run([sys.executable, "-m", "tidegate", *restore], check=True, capture_output=True)


def _key_in(file: Path | None) -> BackupKey | None:
    return None if file is None else read_key(file)


def _kill(words: list[str], choice: random.Random) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "tidegate", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(choice.random() * KILL_SECONDS_MAX)
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(signal.SIGKILL)
    child.wait()


def main() -> int:
    """Run both loops."""
    parser = argparse.ArgumentParser(description="Kill backups and restores; look at what is left.")
    parser.add_argument("--seed", type=int, default=None, help="repeat a run (default: a new one, printed)")
    parser.add_argument("--rounds", type=int, default=20, help="kills of each kind")
    parser.add_argument("--key", action="store_true", help="encrypt the backups")
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    folder = Path(tempfile.mkdtemp(prefix=f"tidegate-kills-{seed}-"))
    print(f"seed {seed}, {options.rounds} rounds, in {folder}", flush=True)
    home = make_home(folder / "home")
    with opened_topics(home.engine_path) as topics:
        topics.publish(10_000)
    for number in range(300):
        (home.lake_path / f"{number}.parquet").write_bytes(os.urandom(200_000))
    key = folder / "key" if options.key else None
    if key is not None:
        make_key(key, secrets.token_bytes(KEY_BYTES))
    with running_server(home.path):
        kill_backups(home.path, folder / "b.tar", options.rounds, seed, key)
    kill_restores(folder / "b.tar", folder / "new", options.rounds, seed, key)
    with opened_topics(folder / "new" / "engine") as topics:
        assert topics.numbers() == list(range(10_000)), f"seed {seed}"
    shutil.rmtree(folder)
    print("  every file and every home was whole or not there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
