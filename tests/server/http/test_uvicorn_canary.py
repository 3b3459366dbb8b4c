"""The private classes of uvicorn have what we override and use; a version that changes that fails here."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from importlib import metadata
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from tests.paths import ROOT
from tidegate.server.http.protocol import JoinedWrites, LimitedProtocol
from tidegate.server.serve import _Server
from tidegate.server.websocket.protocol import LiveProtocol

PAIRS: list[tuple[type, type]] = [
    (LimitedProtocol, HttpToolsProtocol),
    (LiveProtocol, WebSocketsSansIOProtocol),
    (_Server, uvicorn.Server),
]
OVERRIDDEN: dict[type, set[str]] = {
    LimitedProtocol: {
        "connection_made",
        "connection_lost",
        "data_received",
        "on_message_begin",
        "on_headers_complete",
        "handle_websocket_upgrade",
        "send_400_response",
    },
    LiveProtocol: {
        "connection_made",
        "connection_lost",
        "resume_writing",
        "run_asgi",
        "keepalive_timeout",
    },
    _Server: {"shutdown", "capture_signals"},
}
# What our classes read and set of the instances below them.
ATTRIBUTES: dict[type, set[str]] = {
    HttpToolsProtocol: {
        "client",
        "connections",
        "cycle",
        "headers",
        "loop",
        "scope",
        "timeout_keep_alive",
        "transport",
    },
    WebSocketsSansIOProtocol: {
        "close_sent",
        "close_timer",
        "conn",
        "disconnected",
        "logger",
        "loop",
        "pong_timer",
        "queue",
        "read_paused",
        "stop_keepalive",
        "transport",
        "writable",
    },
}


async def _answer(scope: object, receive: object, send: object) -> None:
    """Answer nothing."""


def _config() -> uvicorn.Config:
    config = uvicorn.Config(_answer, lifespan="off", log_config=None, ws=LiveProtocol)
    config.load()
    return config


def _named(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_every_method_that_we_override_is_there_with_the_same_parameters(ours: type, theirs: type) -> None:
    overridden = {
        name
        for name, member in vars(ours).items()
        if inspect.isfunction(member) and not name.startswith("__") and hasattr(theirs, name)
    }
    assert overridden == OVERRIDDEN[ours]
    for name in overridden:
        assert _named(getattr(ours, name)) == _named(getattr(theirs, name)), name


@pytest.mark.parametrize("kind", list(ATTRIBUTES))
def test_every_attribute_that_we_use_is_there(kind: type) -> None:
    async def make() -> object:
        return kind(config=_config(), server_state=ServerState(), app_state={})

    made = asyncio.run(make())
    assert {name for name in ATTRIBUTES[kind] if not hasattr(made, name)} == set()


def test_an_answer_uses_no_more_of_its_transport_than_joined_writes_have() -> None:
    used = set(re.findall(r"self\.transport\.(\w+)", inspect.getsource(RequestResponseCycle)))
    assert {"write", "close"} <= used
    assert {name for name in used if not hasattr(JoinedWrites, name)} == set()


def test_an_answer_says_when_it_is_complete_and_has_a_transport_of_its_own() -> None:
    source = inspect.getsource(RequestResponseCycle.__init__)
    assert "self.transport = transport" in source
    assert "self.response_complete = False" in source


def test_a_live_socket_has_its_scope_before_the_application_runs() -> None:
    assert "self.scope" in inspect.getsource(WebSocketsSansIOProtocol.handle_connect)
    assert "run_asgi" in inspect.getsource(WebSocketsSansIOProtocol)


def test_a_server_has_what_a_stop_needs() -> None:
    server = uvicorn.Server(_config())
    assert (server.should_exit, server.force_exit) == (False, False)
    assert (server.server_state.tasks, server.server_state.connections) == (set(), set())
    assert hasattr(server.config, "timeout_graceful_shutdown")
    assert hasattr(server.config, "ssl")


def test_the_pinned_version_is_the_only_minor_that_the_package_takes() -> None:
    major, minor = metadata.version("uvicorn").split(".")[:2]
    assert f'"uvicorn>={major}.{minor},<{major}.{int(minor) + 1}"' in (ROOT / "pyproject.toml").read_text()
