"""Backup and restore of a home: all of it is there again, elsewhere; a damaged file changes nothing."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.upkeep.backup.homes import (
    ACTOR,
    back_up,
    load_catalog,
    make_home,
    no_report,
    open_coordinator,
    opened_catalog,
    opened_topics,
    table_rows,
    tree,
    write_table,
)
from tidegate.catalog.paging import PageRequest
from tidegate.errors import BackupUnusable, HomeUnusable, RequestInvalid, StorageFailed, StorageFull
from tidegate.model.access import Role
from tidegate.storage.home.home import Home
from tidegate.upkeep.backup.pack import pack, packing
from tidegate.upkeep.backup.restore import read_manifest, restore
from tidegate.upkeep.backup.tar_format import (
    END,
    MANIFEST_NAME,
    BackupManifest,
    ManifestEntry,
    encode_manifest,
    header_of,
    padding_of,
)

FLIPS = 150
LAYOUT_AND = {"layout.json": b'{"layout": 2}'}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = make_home(tmp_path / "home")
    write_table(made.lake_path / "readings", 30)
    write_table(made.tenant_lake_path("acme") / "theirs", 4)
    (made.pipelines_path / "readings.py").write_text("# a pipeline\n")
    (made.pipelines_path / "hourly.py.stopped").write_text("# a stopped one\n")
    (made.path / "tidegate.toml").write_text("[topics]\npartitions_max = 7\n")
    (made.path / "logs" / "server.log").write_text("served\n")
    return made


@pytest.fixture
def file(home: Home, tmp_path: Path) -> Path:
    with opened_topics(home.engine_path) as topics:
        topics.publish(100)
        back_up(home, topics.engine, tmp_path / "backup.tar")
    return tmp_path / "backup.tar"


def test_everything_is_there_again_on_another_path(home: Home, tmp_path: Path) -> None:
    with opened_catalog(home) as catalog:
        catalog.accounts.create_tenant(ACTOR, "acme")
        catalog.accounts.add_user(ACTOR, "acme", "alice", frozenset({Role.READER}))
        token = catalog.tokens.make(ACTOR, "acme", "alice", lifetime_seconds=None)
    with opened_topics(home.engine_path) as topics:
        ids = topics.publish(100)
        made = back_up(home, topics.engine, tmp_path / "backup.tar")
        topics.publish(11)  # after the backup: not in it
    assert stat.S_IMODE(made.file.stat().st_mode) == 0o600
    assert made.size_bytes == made.file.stat().st_size
    restored = restore(made.file, tmp_path / "elsewhere" / "home", load_catalog, no_report)
    shutil.rmtree(home.path)  # nothing of the old one is needed

    again = Home.existing(restored.home)
    assert (again.home_id, again.read_token()) == (made.home_id, again.read_token())
    assert table_rows(again.lake_path / "readings") == 30
    assert table_rows(again.tenant_lake_path("acme") / "theirs") == 4
    assert (again.pipelines_path / "readings.py").read_text() == "# a pipeline\n"
    assert (again.pipelines_path / "hourly.py.stopped").read_text() == "# a stopped one\n"
    assert (again.path / "tidegate.toml").read_text() == "[topics]\npartitions_max = 7\n"
    assert not list((again.path / "logs").iterdir())
    with opened_catalog(again) as catalog:
        assert catalog.tokens.find(token.text).user == "alice"
        assert catalog.tokens.find(again.read_token()).is_instance_admin
    with opened_topics(again.engine_path) as topics:
        assert topics.numbers() == list(range(100))
        assert min(topics.publish(5)) > max(ids)
        assert topics.numbers() == list(range(105))


def test_modes_of_a_restored_home_let_nobody_else_in(file: Path, tmp_path: Path) -> None:
    made = restore(file, tmp_path / "new", load_catalog, no_report)
    assert stat.S_IMODE(made.home.stat().st_mode) == 0o700
    assert stat.S_IMODE((made.home / "admin.token").stat().st_mode) == 0o600


def test_what_was_acknowledged_before_the_backup_is_in_it_while_writers_go_on(
    home: Home, tmp_path: Path
) -> None:
    stop, acknowledged = threading.Event(), [0]

    with opened_topics(home.engine_path) as topics:
        topics.publish(1)

        def write() -> None:
            while not stop.is_set():
                topics.publish(3)
                acknowledged[0] += 3

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for number in range(3):
                while acknowledged[0] < 6 * (number + 1):  # it is at work
                    assert writer.is_alive()
                    time.sleep(0.01)
                before = acknowledged[0]
                file = tmp_path / f"{number}.tar"
                back_up(home, topics.engine, file)
                made = restore(file, tmp_path / f"home-{number}", load_catalog, no_report)
                with opened_topics(made.home / "engine") as copy:
                    found = copy.numbers()
                assert found == list(range(len(found)))
                assert len(found) >= 1 + before
        finally:
            stop.set()
            writer.join()
    assert acknowledged[0] > 10


def test_an_existing_file_is_replaced_only_by_force(home: Home, tmp_path: Path) -> None:
    target = tmp_path / "b.tar"
    target.write_text("precious")
    with opened_topics(home.engine_path) as topics, open_coordinator(home, topics.engine) as (coordinator, _):
        started = coordinator.start(ACTOR)
        with pytest.raises(RequestInvalid, match="already exists"):
            pack(started.folder, target, tidegate_version="0", force=False, report=no_report)
        assert target.read_text() == "precious"
        pack(started.folder, target, tidegate_version="0", force=True, report=no_report)
    assert read_manifest(target).home_id == home.home_id
    assert not list(tmp_path.glob("*.partial"))


def test_a_folder_that_is_not_empty_is_refused_and_untouched(file: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "thesis.tex").write_text("x")
    with pytest.raises(HomeUnusable, match="not empty"):
        restore(file, tmp_path / "new", load_catalog, no_report)
    assert tree(tmp_path / "new") == {"thesis.tex": b"x"}


def test_an_empty_folder_is_taken_and_leftovers_of_dead_restores_go(file: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    child = subprocess.Popen(["true"])
    child.wait()
    (tmp_path / f"new.restoring-{child.pid}").mkdir()
    (tmp_path / f"new.restoring-{os.getppid()}").mkdir()  # of one that lives
    restore(file, tmp_path / "new", load_catalog, no_report)
    assert [path.name for path in tmp_path.glob("new.restoring-*")] == [f"new.restoring-{os.getppid()}"]


def test_no_file_and_no_backup_are_named(tmp_path: Path) -> None:
    with pytest.raises(BackupUnusable, match=r"none\.tar"):
        restore(tmp_path / "none.tar", tmp_path / "new", load_catalog, no_report)
    (tmp_path / "text").write_text("not a backup at all, but long enough for a block" * 20)
    with pytest.raises(BackupUnusable):
        restore(tmp_path / "text", tmp_path / "new", load_catalog, no_report)
    assert not list(tmp_path.glob("new*"))


def test_every_flipped_bit_and_every_cut_is_noticed(file: Path, tmp_path: Path) -> None:
    seed = secrets.randbelow(10**6)
    choice = random.Random(seed)
    whole = bytearray(file.read_bytes())
    for _ in range(FLIPS):
        at, bit = choice.randrange(len(whole)), choice.randrange(8)
        whole[at] ^= 1 << bit
        file.write_bytes(whole)
        with pytest.raises(BackupUnusable):
            read_manifest(file)
        whole[at] ^= 1 << bit
    for _ in range(FLIPS):
        file.write_bytes(whole[: choice.randrange(len(whole))])
        with pytest.raises(BackupUnusable):
            read_manifest(file)
    with pytest.raises(BackupUnusable):
        restore(file, tmp_path / "new", load_catalog, no_report)
    assert not list(tmp_path.glob("new*")), f"seed {seed}"
    file.write_bytes(whole)
    assert read_manifest(file)


def _written(file: Path, files: dict[str, bytes], noted: dict[str, bytes], layout: int = 2) -> Path:
    """Write an archive whose manifest says something else than what is in it."""
    import hashlib

    notes = tuple(ManifestEntry(path, len(c), hashlib.sha256(c).hexdigest()) for path, c in noted.items())
    manifest = encode_manifest(BackupManifest("9", layout, "0" * 16, "2026-01-01T00:00:00Z", notes))
    parts = [*files.items(), (MANIFEST_NAME, manifest)]
    file.write_bytes(b"".join(header_of(p, len(c)) + c + padding_of(len(c)) for p, c in parts) + END)
    return file


@pytest.mark.parametrize(
    ("files", "noted", "layout", "words"),
    [
        ({"a": b"1"}, {"a": b"1", "b": b"2"}, 2, "b is missing"),
        ({"a": b"1", "b": b"2"}, {"a": b"1"}, 2, "b is not in its manifest"),
        ({"a": b"1"}, {"a": b"2"}, 2, "a is damaged"),
        ({"../a": b"1"}, {"../a": b"1"}, 2, "leaves the folder"),
        ({"/a": b"1"}, {"/a": b"1"}, 2, "leaves the folder"),
        ({"layout.json": b"{}"}, {"layout.json": b"{}"}, 5, "layout 5"),
        ({"a": b"1"}, {"a": b"1"}, 2, "no layout.json"),
        ({"layout.json": b"{}"}, {"layout.json": b"{}"}, 2, "layout.json is damaged"),
        ({"layout.json": b'{"layout": 1}'}, {"layout.json": b'{"layout": 1}'}, 2, "another layout"),
        ({"a": b"1", "a/b": b"1"}, {"a": b"1", "a/b": b"1"}, 2, "something else"),
        ({"a/b": b"1", "a": b"1"}, {"a/b": b"1", "a": b"1"}, 2, "something else"),
        ({"a" * 300: b"1"}, {"a" * 300: b"1"}, 2, "too long"),
        (LAYOUT_AND | {"locks": b"1"}, LAYOUT_AND | {"locks": b"1"}, 2, "locks is a file"),
        (LAYOUT_AND | {"catalog/dump": b""}, LAYOUT_AND | {"catalog/dump": b""}, 2, "dump is a file"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(
    tmp_path: Path, files: dict[str, bytes], noted: dict[str, bytes], layout: int, words: str
) -> None:
    file = _written(tmp_path / "b.tar", files, noted, layout)
    with pytest.raises(BackupUnusable, match=words):
        restore(file, tmp_path / "in" / "new", load_catalog, no_report)
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("in", "b.tar")] == []
    assert not list((tmp_path / "in").iterdir())


@contextmanager
def _mounted(disk: Path, *words: str) -> Iterator[Path]:
    disk.mkdir()
    mount = ["mount", *words, str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs root and the right to mount")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with _mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=1m", "tmpfs") as disk:
        yield disk


def test_a_link_to_an_empty_folder_is_followed(file: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "new").symlink_to("there")
    restore(file, tmp_path / "new", load_catalog, no_report)
    assert (tmp_path / "new").is_symlink()
    with opened_topics(tmp_path / "there" / "engine") as topics:
        assert topics.numbers() == list(range(100))


@pytest.mark.parametrize("kind", ["a disk", "a folder of the same disk"])
def test_a_home_may_be_a_disk_of_its_own(file: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "there ü").mkdir()
    words = ("-t", "tmpfs", "tmpfs") if kind == "a disk" else ("--bind", str(tmp_path / "there ü"))
    with _mounted(tmp_path / "a disk", *words) as disk:
        (disk / "lost+found").mkdir()
        restore(file, disk, load_catalog, no_report)
        home = Home.existing(disk)
        assert {path.name for path in disk.iterdir()} >= {"lost+found", "layout.json", "admin.token"}
        assert not list(disk.glob(".restoring-*"))
        with opened_topics(home.engine_path) as topics:
            assert topics.numbers() == list(range(100))
        with opened_catalog(home) as catalog:
            (event,) = catalog.audit.list("default", PageRequest(None, 5), action="backup.restore").rows
            assert event.outcome == "done"
        with pytest.raises(HomeUnusable, match="not empty"):
            restore(file, disk, load_catalog, no_report)
        assert Home.existing(disk).home_id == home.home_id


RESTORE = """
import os, sys
from pathlib import Path
from tests.upkeep.backup.homes import load_catalog, no_report
from tidegate.upkeep.backup.restore import restore
restore(Path(sys.argv[1]), Path(sys.argv[2]), load_catalog, no_report, lambda: os.kill(os.getpid(), 9))
"""


def test_a_restore_to_a_disk_that_is_killed_is_no_home_and_done_again(file: Path, tmp_path: Path) -> None:
    with _mounted(tmp_path / "mount", "-t", "tmpfs", "tmpfs") as disk:
        child = subprocess.run([sys.executable, "-c", RESTORE, str(file), str(disk)], check=False)
        assert child.returncode == -signal.SIGKILL
        (left,) = disk.glob(".restoring-*")
        for name in ("admin.token", "engine", "lake"):  # killed while they were moved to their places
            (left / name).rename(disk / name)
        with pytest.raises(HomeUnusable, match="a restore of it was cut off"):
            Home.open(disk, lambda: "another token of this home")
        (disk / "thesis.tex").write_text("x")
        with pytest.raises(HomeUnusable, match="not empty"):
            restore(file, disk, load_catalog, no_report)
        (disk / "thesis.tex").unlink()
        restore(file, disk, load_catalog, no_report)
        assert not list(disk.glob(".restoring-*"))
        with opened_topics(Home.existing(disk).engine_path) as topics:
            assert topics.numbers() == list(range(100))


def test_a_restore_to_a_disk_that_fails_leaves_it_as_it_was(file: Path, tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(5, "the disk said no")

    with _mounted(tmp_path / "mount", "-t", "tmpfs", "tmpfs") as disk:
        with pytest.raises(StorageFailed, match="the disk said no"):
            restore(file, disk, load_catalog, no_report, fail)
        assert list(disk.iterdir()) == []


def test_a_full_disk_leaves_no_part_of_a_backup_and_no_part_of_a_home(
    home: Home, file: Path, small_disk: Path, tmp_path: Path
) -> None:
    (home.lake_path / "large.parquet").write_bytes(os.urandom(2 << 20))
    with opened_topics(home.engine_path) as topics, open_coordinator(home, topics.engine) as (coordinator, _):
        started = coordinator.start(ACTOR)
        with packing(started.folder), pytest.raises(StorageFull):
            pack(started.folder, small_disk / "b.tar", tidegate_version="0", force=False, report=no_report)
        assert list(small_disk.iterdir()) == []
        large = tmp_path / "large.tar"
        pack(started.folder, large, tidegate_version="0", force=False, report=no_report)
    with pytest.raises(StorageFull):
        restore(large, small_disk / "new", load_catalog, no_report)
    assert list(small_disk.iterdir()) == []
