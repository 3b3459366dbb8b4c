"""Hashes that are kept to be read once more: all of them, or it is known that some are missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tidegate.dedup.bloom import filter as filter_log
from tidegate.dedup.bloom.filter import CHUNK_BYTES, HashLog


def drawn(seed: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.random.default_rng(seed).integers(0, 2**64 - 1, count, np.uint64)


def read(log: HashLog) -> list[int]:
    return [one for chunk in log.chunks() for one in chunk.tolist()]


def test_hashes_come_back_in_their_order_also_behind_a_reader_that_stopped(tmp_path: Path) -> None:
    log = HashLog(tmp_path)
    many = CHUNK_BYTES // 8 + 5
    log.append(drawn(1, many))
    next(log.chunks())
    log.append(drawn(2, 7))
    assert read(log) == [*drawn(1, many).tolist(), *drawn(2, 7).tolist()]
    assert list(tmp_path.iterdir()) == []
    log.close()
    assert not log.is_whole


def test_too_many_hashes_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_log, "LOG_KEYS_MAX", 10)
    log = HashLog(tmp_path)
    whole = []
    for count in (10, 1, 1):
        log.append(drawn(count, count))
        whole.append(log.is_whole)
    assert whole == [True, False, False]


def test_a_disk_that_refuses_is_known_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = HashLog(tmp_path)
    log.append(drawn(1, 3))

    def full(_file: int, _content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(filter_log, "write_all", full)
    log.append(drawn(2, 3))
    assert not log.is_whole
