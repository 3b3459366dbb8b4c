from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.calls import tidegate
from tidegate.cli.commands.open import has_display
from tidegate.testing.server import RunningServer, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("open") / "home") as running:
        yield running


def test_the_link_is_alone_on_stdout_and_signs_a_browser_in_once(server: RunningServer) -> None:
    answer = tidegate("open", "--print", home=server.home)
    assert answer.returncode == 0, answer.stderr
    url = answer.stdout.removesuffix("\n")
    assert url.startswith(f"{server.url}/enter?code=")
    assert "works once" in answer.stderr
    code = {"code": url.partition("code=")[2]}
    origin = {"Origin": server.url}
    with httpx.Client(base_url=server.url, headers=origin, trust_env=False) as browser:
        assert browser.get(url).status_code == 200  # looking does not use it up
        assert browser.post("/enter", data=code).status_code == 303
        assert "tidegate_session" in browser.cookies
        assert browser.get("/").status_code == 200
    with httpx.Client(base_url=server.url, headers=origin, trust_env=False) as second:
        assert second.post("/enter", data=code).status_code == 401


def test_json_gives_the_link_and_its_end(server: RunningServer) -> None:
    answer = json.loads(tidegate("open", "--json", home=server.home).stdout)
    assert set(answer) == {"url", "expiresAt"}


def test_a_browser_is_started_where_there_is_a_display(server: RunningServer, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {seen}\n', encoding="utf-8")
    browser.chmod(0o755)
    display = {"BROWSER": f"{browser} %s", "DISPLAY": ":77"}
    answer = tidegate("open", home=server.home, environ=display)
    assert seen.read_text(encoding="utf-8") == answer.stdout
    seen.unlink()
    for flags, environ in (((), {"BROWSER": f"{browser} %s"}), (("--print",), display)):
        assert tidegate("open", *flags, home=server.home, environ=environ).returncode == 0
        assert not seen.exists()


def test_a_display_is_what_the_environment_names() -> None:
    assert has_display({"DISPLAY": ":0"}, "linux")
    assert has_display({"WAYLAND_DISPLAY": "wayland-0"}, "linux")
    assert not has_display({}, "linux")
    assert not has_display({"SSH_CONNECTION": "1 2 3 4"}, "darwin")
