"""The wire: finds the server by address, home or environment, and waits for one that restarts."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tidegate.errors import RequestInvalid, ServerNotRunning, TokenWrong
from tidegate.pipeline.topic.client import ServerClient, ServerLocation
from tidegate.storage.home.address import ServerEndpoint
from tidegate.storage.home.home import Home
from tidegate.testing.server import running_server


@pytest.fixture
def made(home: Path) -> Home:
    made = Home.open(home, make_token=lambda: "token-of-the-home-folder")
    made.write_address("http://127.0.0.1:1111", 1)
    return made


def test_address_comes_from_options_then_home_then_environment(made: Home, tmp_path: Path) -> None:
    away = {"TIDEGATE_URL": "http://there:1", "TIDEGATE_TOKEN": "env-token"}
    assert ServerLocation("http://here:2", "mine").find(away) == ServerEndpoint("http://here:2", "mine")
    assert ServerLocation(home=str(made.path)).find(away) == ServerEndpoint(
        "http://127.0.0.1:1111", "token-of-the-home-folder"
    )
    assert ServerLocation().find(away) == ServerEndpoint("http://there:1", "env-token")
    assert ServerLocation().find({"TIDEGATE_HOME": str(made.path)}) == ServerEndpoint(
        "http://127.0.0.1:1111",
        "token-of-the-home-folder",
    )
    with pytest.raises(ServerNotRunning):
        ServerLocation(home=str(tmp_path / "nothing")).find({})


def test_place_shows_no_token() -> None:
    assert "hush" not in repr(ServerLocation("http://here:2", "hush"))


def test_wrong_token_and_wrong_address_are_final(home: Path) -> None:
    with running_server(home) as server:
        with pytest.raises(TokenWrong):
            ServerClient(ServerLocation(server.url, "wrong"), retry_seconds=3600).post_json(
                "sql", {"sql": "SELECT 1"}
            )
        with pytest.raises(RequestInvalid, match="not an address"):
            ServerClient(ServerLocation("localhost", "t"), retry_seconds=3600).post_json("sql", {})


def test_call_waits_for_a_server_that_comes_back_on_another_port(home: Path) -> None:
    with running_server(home) as server:
        first = server.url
        server.kill()
    wire = ServerClient(ServerLocation(home=str(home)), retry_seconds=60)
    answers: list[object] = []
    waiting = threading.Thread(
        target=lambda: answers.append(wire.post_json("sql", {"sql": "SELECT 1"})["rows"])
    )
    with socket.socket() as taken:
        # Nobody answers there, and the next server is given another port.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", urlsplit(first).port))
        waiting.start()
        with running_server(home) as server:
            assert server.url != first
            waiting.join(60)
    assert answers == [[[1]]]
