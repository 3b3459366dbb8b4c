"""A home that lost a part is refused, not served as if it were new."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest

from tidegate.storage.home.home import Home
from tidegate.testing.server import running_server


def fill(home: Path) -> None:
    with running_server(home) as server:
        headers = {"Authorization": f"Bearer {server.token}"}
        made = httpx.post(
            f"{server.url}/api/v1/topics", json={"name": "a.b"}, headers=headers, trust_env=False, timeout=60
        )
        assert made.status_code == 201


@pytest.mark.parametrize("part", ["engine", "catalog"])
def test_a_home_without_its_engine_or_catalog_is_refused_and_stays_as_it_is(home: Path, part: str) -> None:
    fill(home)
    shutil.move(home / part, home.parent / "elsewhere")
    for emptied in (False, True):
        if emptied:
            (home / part).mkdir()
        assert Home.existing(home).lost_parts() == [part]
        with (
            pytest.raises(RuntimeError, match=f"what was in its folder {part} is gone"),
            running_server(home),
        ):
            pass
        assert not (home / part).exists() or not list((home / part).iterdir())
    shutil.rmtree(home / part)
    shutil.move(home.parent / "elsewhere", home / part)
    with running_server(home) as server:
        headers = {"Authorization": f"Bearer {server.token}"}
        assert httpx.get(
            f"{server.url}/api/v1/topics/a.b", headers=headers, trust_env=False, timeout=60
        ).is_success


def test_a_new_home_and_one_that_was_never_served_lack_nothing(home: Path) -> None:
    assert Home.open(home, lambda: "a-token-that-is-long-enough").lost_parts() == []
