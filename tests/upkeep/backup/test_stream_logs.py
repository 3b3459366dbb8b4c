"""Stream logs in a backup: as long as they were, whatever is appended, evicted or dropped meanwhile."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.streams.factories import make_table
from tests.upkeep.backup.homes import (
    ACTOR,
    back_up,
    load_catalog,
    make_home,
    no_report,
    open_coordinator,
    opened_topics,
    tree,
)
from tidegate.errors import StorageFull
from tidegate.model.clock import SystemClock
from tidegate.model.ids import SnowflakeSource
from tidegate.model.tables import Table
from tidegate.settings.sections import StreamSettings
from tidegate.storage.files import link_or_copy
from tidegate.storage.home.home import Home
from tidegate.streams.store import StreamStore
from tidegate.upkeep.backup import stream_logs
from tidegate.upkeep.backup.home_snapshot import CONTENT_FOLDER, freeze
from tidegate.upkeep.backup.pack import pack, packing
from tidegate.upkeep.backup.restore import read_manifest, restore
from tidegate.upkeep.backup.stream_logs import copy_streams

LOGS = {
    "chat/typing/table.id": b"7",
    "chat/typing/w60000-60000/shard-3/ann.log": b"frames of ann",
    "chat/typing/w60000-60000/shard-9/.bob.log": b"frames of a user whose name begins with a point",
    "chat/typing/w120000-60000/shard-3/ann.log": b"more frames of ann",
    "home/doors/table.id": b"8",
    "home/doors/w60000-60000/shard-0/carl@x.log": b"frames of carl",
}
TRASH = {
    ".trash/chat.typing.7/w0-60000/shard-3/ann.log": b"expired",
    "chat/.trash/x": b"expired",
    "chat/typing/table.id.4711.new": b"7",
}


def write(root: Path, files: dict[str, bytes]) -> None:
    """Write files below a folder."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write(tmp_path / "streams", {**LOGS, **TRASH})
    return tmp_path / "streams"


def while_linking(
    monkeypatch: pytest.MonkeyPatch, name: str, move: Callable[[], None], *, times: int = 1
) -> None:
    """Move the world just before a file of that name is linked, the first so many times."""
    left = [times]

    def moving(old: Path, new: Path, *, sync: bool) -> None:
        if old.name == name and left[0]:
            left[0] -= 1
            move()
        link_or_copy(old, new, sync=sync)

    monkeypatch.setattr(stream_logs, "link_or_copy", moving)


def test_every_log_is_taken_with_its_length_and_what_is_being_removed_is_not(
    source: Path, tmp_path: Path
) -> None:
    lengths = copy_streams(source, tmp_path / "copy")
    assert tree(tmp_path / "copy") == LOGS
    assert {str(path.relative_to(tmp_path / "copy")): length for path, length in lengths.items()} == {
        name: len(content) for name, content in LOGS.items()
    }


def test_a_home_without_streams_is_no_harm(tmp_path: Path) -> None:
    assert copy_streams(tmp_path / "nothing", tmp_path / "copy") == {}


def test_a_window_that_expires_meanwhile_is_left_out_and_the_rest_is_there(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 6: windows are renamed out of sight while the backup walks over them."""
    window = source / "chat" / "typing" / "w60000-60000"
    while_linking(monkeypatch, ".bob.log", lambda: _put_away(window, source / ".trash" / window.name))
    copy_streams(source, tmp_path / "copy")
    gone = {"chat/typing/w60000-60000/shard-9/.bob.log"}  # ann's was linked before, and does no harm
    assert tree(tmp_path / "copy") == {name: LOGS[name] for name in LOGS if name not in gone}


def _put_away(window: Path, place: Path) -> None:
    window.rename(place)


def test_a_table_that_is_dropped_meanwhile_is_left_out_wholly(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 7: half of a dropped stream is nothing to keep."""
    table = source / "chat" / "typing"
    while_linking(monkeypatch, ".bob.log", lambda: shutil.rmtree(table))
    copy_streams(source, tmp_path / "copy")
    assert {name for name in tree(tmp_path / "copy") if name.startswith("chat/")} == set()
    assert (tmp_path / "copy" / "home" / "doors" / "table.id").exists()


def test_a_table_that_is_made_again_meanwhile_shows_nothing_of_before(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 7: re-creation shows nothing of before, not in a backup either."""
    table = source / "chat" / "typing"
    anew = {"table.id": b"9", "w180000-60000/shard-3/ann.log": b"frames of the second table"}

    def make_again() -> None:
        shutil.rmtree(table)
        write(table, anew)

    while_linking(monkeypatch, ".bob.log", make_again)
    copy_streams(source, tmp_path / "copy")
    assert tree(tmp_path / "copy" / "chat" / "typing") == anew


def test_a_table_that_is_made_again_all_the_time_is_left_out(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, ids = source / "chat" / "typing", iter(range(100, 200))

    def make_again() -> None:
        (table / "table.id").write_bytes(str(next(ids)).encode())

    while_linking(monkeypatch, ".bob.log", make_again, times=99)
    copy_streams(source, tmp_path / "copy")
    assert not (tmp_path / "copy" / "chat" / "typing").exists()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = make_home(tmp_path / "home")
    write(made.streams_path, {**LOGS, **TRASH})
    write(made.tenant_streams_path("acme"), LOGS)
    return made


def test_streams_of_all_tenants_are_there_again(home: Home, tmp_path: Path) -> None:
    with opened_topics(home.engine_path) as topics:
        topics.publish(1)
        back_up(home, topics.engine, tmp_path / "b.tar")
    restore(tmp_path / "b.tar", tmp_path / "again", load_catalog, no_report)
    again = Home.existing(tmp_path / "again")
    assert tree(again.streams_path) == LOGS
    assert tree(again.tenant_streams_path("acme")) == LOGS


def test_what_is_appended_after_the_freeze_is_not_in_the_file_and_what_was_cut_is_no_harm(
    home: Home, tmp_path: Path
) -> None:
    grown = home.streams_path / "chat/typing/w60000-60000/shard-3/ann.log"
    cut = home.streams_path / "home/doors/w60000-60000/shard-0/carl@x.log"
    with opened_topics(home.engine_path) as topics, open_coordinator(home, topics.engine) as (coordinator, _):
        started = coordinator.start(ACTOR)
        with grown.open("ab") as log:
            log.write(b" and rows from after the freeze")
        with cut.open("r+b") as log:
            log.truncate(3)  # a torn tail goes when the log is opened for writing
        shutil.rmtree(home.streams_path / "chat" / "typing" / "w120000-60000")
        with packing(started.folder):
            made = pack(
                started.folder, tmp_path / "b.tar", tidegate_version="0", force=False, report=no_report
            )
            coordinator.finish(started.id, str(tmp_path / "b.tar"), made.size_bytes)
    sizes = {note.path: note.size_bytes for note in read_manifest(tmp_path / "b.tar").files}
    assert sizes["streams/chat/typing/w60000-60000/shard-3/ann.log"] == len(b"frames of ann")
    restore(tmp_path / "b.tar", tmp_path / "again", load_catalog, no_report)
    expected = {**LOGS, "home/doors/w60000-60000/shard-0/carl@x.log": b"fra"}
    assert tree(Home.existing(tmp_path / "again").streams_path) == expected


def test_streams_are_flushed_before_they_are_copied_and_a_flush_that_fails_ends_the_backup(
    home: Home, tmp_path: Path
) -> None:
    late = home.streams_path / "chat/typing/w60000-60000/shard-3/late.log"
    with opened_topics(home.engine_path) as topics:
        back_up(home, topics.engine, tmp_path / "b.tar", lambda: late.write_bytes(b"gathered until now"))
        with pytest.raises(StorageFull):
            back_up(home, topics.engine, tmp_path / "none.tar", _full)
    paths = {note.path for note in read_manifest(tmp_path / "b.tar").files}
    assert "streams/chat/typing/w60000-60000/shard-3/late.log" in paths
    assert not (tmp_path / "none.tar").exists()
    assert list(home.backups_path.iterdir()) == []


def _full() -> None:
    raise StorageFull(path="streams", free_bytes=0)


# Real rows, with a server's store


TABLE = make_table(ttl_seconds=86_400)
THEIRS = make_table(id=2, tenant="acme", ttl_seconds=86_400)


def opened_store(home: Home) -> StreamStore:
    """Open the streams of a home as a server does."""
    clock = SystemClock()
    return StreamStore(
        home.tenant_streams_path, clock, SnowflakeSource(clock), StreamSettings(), free_bytes_min=0
    )


def ids(store: StreamStore, table: Table, user: str) -> list[int]:
    """Return the numbers of a user's rows."""
    found = store.read(table, user)
    assert found.warnings == []
    return [row[0] for row in found.rows if isinstance(row[0], int)]


def test_rows_that_wait_in_memory_are_in_the_backup_and_can_be_read_and_added_to_elsewhere(
    tmp_path: Path,
) -> None:
    home = make_home(tmp_path / "home")
    store = opened_store(home)
    for number in range(5):
        store.append(TABLE, "ann", [(number, "x")])
        store.append(THEIRS, "Bob", [(100 + number, None)])
    with opened_topics(home.engine_path) as topics:
        topics.publish(1)
        back_up(home, topics.engine, tmp_path / "b.tar", store.flush_all)
    store.append(TABLE, "ann", [(99, "after the backup")])
    store.close()
    restore(tmp_path / "b.tar", tmp_path / "again", load_catalog, no_report)
    again = opened_store(Home.existing(tmp_path / "again"))
    try:
        assert ids(again, TABLE, "ann") == list(range(5))
        assert ids(again, THEIRS, "Bob") == list(range(100, 105))
        again.append(TABLE, "ann", [(5, "on")])
        assert ids(again, TABLE, "ann") == list(range(6))
    finally:
        again.close()


def test_backups_under_appends_hold_whole_batches_from_the_first_on(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    store = opened_store(home)
    stop, acknowledged = threading.Event(), [0]

    def append() -> None:
        number = 0
        while not stop.is_set():
            store.append(TABLE, "ann", [(number + place, "x" * 200) for place in range(10)])
            number += 10
            acknowledged[0] = number

    thread = threading.Thread(target=append)
    thread.start()
    try:
        with opened_topics(home.engine_path) as topics:
            topics.publish(1)
            for turn in range(3):
                owed = acknowledged[0]
                back_up(home, topics.engine, tmp_path / f"{turn}.tar", store.flush_all)
                restore(tmp_path / f"{turn}.tar", tmp_path / f"again-{turn}", load_catalog, no_report)
                again = opened_store(Home.existing(tmp_path / f"again-{turn}"))
                found = ids(again, TABLE, "ann")
                again.close()
                assert found == list(range(len(found)))
                assert len(found) % 10 == 0, "half an append"
                assert len(found) >= owed, "rows that were acknowledged before the backup are missing"
    finally:
        stop.set()
        thread.join()
        store.close()


def test_logs_of_a_stream_that_was_made_again_during_the_backup_are_not_taken_for_its_own(
    tmp_path: Path,
) -> None:
    """Case 7: definitions are copied after the logs, and a log of an older table is moved away."""
    home = make_home(tmp_path / "home")
    store = opened_store(home)
    store.append(TABLE, "ann", [(1, "of the first")])
    later = make_table(id=7, ttl_seconds=86_400)

    def make_again() -> None:
        """Drop and create between the copy of the streams and that of the engine."""
        store.drop(TABLE)
        store.append(later, "ann", [(2, "of the second")])

    with opened_topics(home.engine_path) as topics:
        topics.publish(1)
        moved = [make_again]
        freeze(
            home,
            topics.engine,
            tmp_path / "frozen",
            SystemClock(),
            lambda: moved.pop()() if moved and _has_streams(tmp_path / "frozen") else None,
            store.flush_all,
        )
        pack(tmp_path / "frozen", tmp_path / "b.tar", tidegate_version="0", force=False, report=no_report)
    store.close()
    restore(tmp_path / "b.tar", tmp_path / "again", load_catalog, no_report)
    again = opened_store(Home.existing(tmp_path / "again"))
    try:
        assert moved == []
        assert ids(again, later, "ann") == [], "the engine knows the second one; the logs are of the first"
    finally:
        again.close()


def _has_streams(frozen: Path) -> bool:
    return (frozen / CONTENT_FOLDER / "streams").exists()
