from __future__ import annotations

from pathlib import Path

from tidegate.cli.supervision.supervisor import LOG_BYTES_MAX, LOG_FILES_MAX, open_log, read_since


def test_a_short_log_is_written_on(tmp_path: Path) -> None:
    for text in (b"one\n", b"two\n"):
        with open_log(tmp_path / "logs" / "server.log") as log:
            log.write(text)
    assert (tmp_path / "logs" / "server.log").read_bytes() == b"one\ntwo\n"


def test_a_full_log_is_put_aside_and_the_oldest_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    for start in range(LOG_FILES_MAX + 2):
        with open_log(path) as log:
            log.write(b"%d" % start)
            log.truncate(LOG_BYTES_MAX + 1)
    found = sorted(entry.name for entry in tmp_path.iterdir())
    assert found == ["server.log", *(f"server.log.{number}" for number in range(1, LOG_FILES_MAX))]
    firsts = [(tmp_path / name).open("rb").read(1) for name in found]
    assert firsts == [b"6", b"5", b"4", b"3", b"2"]


def test_only_what_came_after_a_point_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"before\nafter \xff\n")
    assert read_since(path, 7) == "after \ufffd\n"
