"""A full disk: writes are refused with a clear error, reads go on, and writes go on when there is room."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tidegate.testing.server import running_server

DISK_MB = 64
PAYLOAD = "x" * 4000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(disk)],
            check=False,
            capture_output=True,
        ).returncode
    )
    if not mounted:
        pytest.skip("needs root and the right to mount a tmpfs")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def _fill(disk: Path, leave_bytes: int) -> Path:
    """Take all room but a little, as another program would."""
    usage = os.statvfs(disk)
    filler = disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, usage.f_bavail * usage.f_frsize - leave_bytes))
    return filler


@pytest.mark.parametrize("guard_bytes", [8 * 1024 * 1024, 0], ids=["guarded", "unguarded"])
def test_nothing_is_lost_when_the_disk_fills_up_and_writes_go_on_after_room_is_made(
    small_disk: Path, guard_bytes: int
) -> None:
    environ = {
        "TIDEGATE_STORAGE_FREE_BYTES_MIN": str(guard_bytes),
        "TIDEGATE_STORAGE_WRITE_BUFFER_BYTES": str(4 * 1024 * 1024),
    }
    with running_server(small_disk / "home", environ=environ) as server:
        headers = {"Authorization": f"Bearer {server.token}"}
        with httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=60) as http:
            assert http.post("/api/v1/topics", json={"name": "a.b"}).status_code == 201
            assert http.post("/api/v1/topics", json={"name": "a.spare"}).status_code == 201
            stored = _publish_until_refused(http, small_disk, guard_bytes)
            # Reads go on, and hold exactly what was acknowledged.
            assert _numbers(http)[: len(stored)] == stored
            _check_ready(http, disk_is_full=guard_bytes > 0)
            # What frees room works on a full disk.
            if guard_bytes:
                assert http.delete("/api/v1/topics/a.spare").status_code == 200
            # Room is made: writes go on.
            (small_disk / "filler").unlink()
            _publish_until_taken(http, 10_000)
            _check_ready(http, disk_is_full=False)
            kept = _numbers(http)
    assert kept[-1] == 10_000
    _check_kept(kept[:-1], stored)
    with running_server(small_disk / "home", environ=environ) as server:
        headers = {"Authorization": f"Bearer {server.token}"}
        with httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=60) as http:
            assert _numbers(http) == kept


def _check_ready(http: httpx.Client, *, disk_is_full: bool) -> None:
    answer = http.get("/ready")
    if not disk_is_full:
        assert answer.status_code == 200, answer.text
        return
    assert answer.status_code == 503
    parts = answer.json()["error"]["details"]["parts"]
    assert [name for name, part in parts.items() if not part["ok"]] == ["disk"]


def _check_kept(kept: list[int], stored: list[int]) -> None:
    assert kept[: len(stored)] == stored, "an acknowledged message is missing"
    # What was answered with an error may be there (the answer says so), but only once and only at the end.
    assert len(kept) - len(stored) <= 20
    assert len(set(kept)) == len(kept)


def _publish_until_refused(http: httpx.Client, disk: Path, guard_bytes: int) -> list[int]:
    stored = [number for number in range(20) if _publish(http, number).status_code == 200]
    assert len(stored) == 20
    _fill(disk, guard_bytes + 300_000)
    refusals = 0
    for number in range(20, 2000):
        answer = _publish(http, number)
        if answer.status_code == 200:
            stored.append(number)
            continue
        error = answer.json()["error"]
        assert answer.status_code in (500, 507), answer.text
        assert error["code"] in ("STORAGE_FULL", "STORAGE_FAILED")
        assert error["hint"]
        refusals += 1
        if refusals == 5:
            return stored
    raise AssertionError("the disk never filled up")


def _publish_until_taken(http: httpx.Client, number: int) -> None:
    """RocksDB looks for room every few seconds; what it refuses meanwhile is not there."""
    deadline = time.monotonic() + 60
    while (answer := _publish(http, number)).status_code != 200:
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.2)


def _publish(http: httpx.Client, number: int) -> httpx.Response:
    return http.post(
        "/api/v1/topics/a.b/publish", json={"messages": [{"payload": {"n": number, "pad": PAYLOAD}}]}
    )


def _numbers(http: httpx.Client) -> list[int]:
    answer = http.post("/api/v1/topics/a.b/consume", json={"limit": 10_000})
    assert answer.status_code == 200, answer.text
    return [message["payload"]["n"] for message in answer.json()["messages"]]
