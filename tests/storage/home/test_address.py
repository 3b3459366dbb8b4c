"""Which token goes to the server of a home: in a worker that of pipelines, elsewhere the administrator's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.errors import ServerNotRunning, TokenMissing
from tidegate.pipeline.topic.client import ServerLocation
from tidegate.storage.home.address import PIPELINE_TOKEN_VARIABLE, find_server
from tidegate.storage.home.home import Home

ADMIN = "the token of the administrator"
PIPELINES = "the token of pipelines"


def _home(path: Path) -> Home:
    home = Home.open(path, lambda: ADMIN)
    home.write_address("http://127.0.0.1:1", 1)
    return home


def test_a_worker_sends_the_token_of_pipelines_to_the_server_of_its_home(tmp_path: Path) -> None:
    home = _home(tmp_path / "home")
    home.pipeline_token_path.write_text(f"{PIPELINES}\n")
    environ = {"TIDEGATE_HOME": str(home.path), PIPELINE_TOKEN_VARIABLE: str(home.pipeline_token_path)}
    assert find_server(None, None, None, environ).token == PIPELINES
    assert find_server(None, None, home.path, environ).token == PIPELINES
    assert find_server("http://127.0.0.1:1", None, home.path, environ).token == PIPELINES
    assert find_server(None, "another", home.path, environ).token == "another"
    assert find_server(None, None, home.path, {}).token == ADMIN


def test_another_home_and_the_worker_itself_have_the_token_of_the_administrator(tmp_path: Path) -> None:
    home, other = _home(tmp_path / "home"), _home(tmp_path / "other")
    for one in (home, other):
        one.pipeline_token_path.write_text(f"{PIPELINES}\n")
    environ = {PIPELINE_TOKEN_VARIABLE: str(home.pipeline_token_path)}
    assert find_server(None, None, other.path, environ).token == ADMIN
    assert ServerLocation(home=str(home.path)).find(environ).token == PIPELINES
    assert ServerLocation(home=str(home.path), as_admin=True).find(environ).token == ADMIN


def test_a_pipeline_without_a_token_waits_and_never_takes_another(tmp_path: Path) -> None:
    home = _home(tmp_path / "home")
    environ = {PIPELINE_TOKEN_VARIABLE: str(home.pipeline_token_path)}
    with pytest.raises(ServerNotRunning, match="token for its pipelines yet"):
        find_server(None, None, home.path, environ)
    home.pipeline_token_path.write_bytes(b"\xff\n")
    with pytest.raises(TokenMissing):
        find_server(None, None, home.path, environ)
