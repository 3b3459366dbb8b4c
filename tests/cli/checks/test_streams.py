"""Real stream logs, broken in one place: the finding names file and byte; a server may write meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.streams.factories import make_store, make_table
from tidegate.cli.checks.stores import check_streams
from tidegate.streams.store import StreamStore
from tidegate.testing.clock import ManualClock

ROWS = [(number, f"row {number}") for number in range(20)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> StreamStore:
    made = make_store(tmp_path, clock)
    for user in ("ann", "bob"):
        for _ in range(3):
            made.append(make_table(), user, ROWS)
    made.flush_all()
    return made


def logs(root: Path) -> list[Path]:
    return sorted((root / "streams").rglob("*.log"))


def test_whole_logs_are_counted_while_the_server_writes_to_them(store: StreamStore, tmp_path: Path) -> None:
    found = check_streams([tmp_path / "streams"])
    assert (found.state, found.found.startswith("2 logs, ")) == ("ok", True)
    store.append(make_table(), "ann", ROWS)  # waits in memory
    assert check_streams([tmp_path / "streams"]).state == "ok"
    store.close()


def test_a_torn_tail_is_no_damage(store: StreamStore, tmp_path: Path) -> None:
    """Case 2: a file cut inside its last frame reads as its end."""
    store.close()
    (first, _) = logs(tmp_path)
    first.write_bytes(first.read_bytes()[:-7])
    assert check_streams([tmp_path / "streams"]).state == "ok"


def test_a_flipped_byte_is_named_with_file_and_position_and_nothing_is_changed(
    store: StreamStore, tmp_path: Path
) -> None:
    """Case 2: a damaged frame is named in the doctor."""
    store.close()
    (first, second) = logs(tmp_path)
    content = bytearray(second.read_bytes())
    frame_bytes = len(content) // 3
    content[frame_bytes + frame_bytes // 2] ^= 0x10
    second.write_bytes(content)
    found = check_streams([tmp_path / "streams"])
    assert found.state == "fail"
    assert f"{second}: " in found.found
    assert f"at byte {frame_bytes}" in found.found
    assert str(first) not in found.found
    assert "tidegate restore" in found.fix
    assert second.read_bytes() == content


def test_damage_everywhere_is_named_in_part(store: StreamStore, tmp_path: Path) -> None:
    store.close()
    for log in logs(tmp_path):
        content = bytearray(log.read_bytes())
        for frame in range(3):
            content[len(content) // 3 * frame + len(content) // 6] ^= 1
        log.write_bytes(content)
    found = check_streams([tmp_path / "streams"])
    assert found.found.count("at byte") == 5
    assert found.found.endswith("; and more")


def test_what_is_beyond_the_bound_is_told_as_not_looked_at(store: StreamStore, tmp_path: Path) -> None:
    store.close()
    size_bytes = logs(tmp_path)[0].stat().st_size
    found = check_streams([tmp_path / "streams"], bytes_max=size_bytes + 1)
    assert found.state == "ok"
    assert found.found.startswith("1 log, ")
    assert "1 log beyond" in found.found


def test_what_expired_and_is_not_removed_yet_is_counted_and_not_read(
    store: StreamStore, clock: ManualClock, tmp_path: Path
) -> None:
    """Case 6: windows that are out of sight wait to be unlinked."""
    clock.advance(2 * 3600)
    store.append(make_table(), "ann", ROWS)
    store.evict(make_table())
    store.close()
    for log in (tmp_path / "streams" / ".trash").rglob("*.log"):
        log.write_bytes(b"anything")
    found = check_streams([tmp_path / "streams"])
    assert (found.state, found.found.startswith("1 log, ")) == ("ok", True)
    assert "1 expired folder still to be removed" in found.found


def test_a_home_without_streams_is_fine(tmp_path: Path) -> None:
    assert check_streams([tmp_path / "streams"]).state == "ok"
