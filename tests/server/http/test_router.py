"""Routing: every route is found by its path, and nothing else is."""

from __future__ import annotations

import pytest

from tidegate.errors import EndpointNotFound, InvariantBroken, MethodNotAllowed
from tidegate.model.access import Operation
from tidegate.server.api.status import health
from tidegate.server.http.request import Endpoint
from tidegate.server.http.router import Router
from tidegate.server.routes import ROUTES


def route(method: str, path: str) -> Endpoint:
    return Endpoint(method, path, health, Operation.STATUS_SHOW)


@pytest.mark.parametrize("known", ROUTES, ids=lambda known: f"{known.method} {known.path}")
def test_every_route_is_found_by_its_path(known: Endpoint) -> None:
    path = known.path.replace("{", "a.").replace("}", "-1")
    found, params = Router(ROUTES).find(known.method, path)
    assert found is known
    assert params == {name: f"a.{name}-1" for name in _names(known.path)}


def _names(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


@pytest.mark.parametrize("path", ["/", "/a/b", "/a/b/c/d", "/a//c", "/a/b/c/", "/A/b/c", ""])
def test_a_path_that_is_not_there_is_not_found(path: str) -> None:
    with pytest.raises(EndpointNotFound):
        Router([route("GET", "/a/{name}/c")]).find("GET", path)


def test_a_literal_segment_wins_over_a_name() -> None:
    router = Router([route("GET", "/a/{name}"), route("GET", "/a/fixed")])
    assert router.find("GET", "/a/fixed")[0].path == "/a/fixed"
    assert router.find("GET", "/a/other")[1] == {"name": "other"}


def test_another_method_is_told_which_ones_there_are() -> None:
    router = Router([route("GET", "/a"), route("POST", "/a")])
    with pytest.raises(MethodNotAllowed) as refused:
        router.find("PUT", "/a")
    assert refused.value.values["allowed"] == "GET, POST"
    assert router.find("HEAD", "/a")[0].method == "GET"


def test_two_routes_that_say_different_things_of_one_path_are_our_mistake() -> None:
    with pytest.raises(InvariantBroken):
        Router([route("GET", "/a/{x}"), route("POST", "/a/{y}")])
    with pytest.raises(InvariantBroken):
        Router([route("GET", "/a"), route("GET", "/a")])


def test_a_name_may_have_a_slash_that_is_written_as_such() -> None:
    router = Router([route("DELETE", "/a/{name}/groups/{group}")])
    found, params = router.find("DELETE", "/a/t/groups/x/y", b"/a/t/groups/x%2Fy")
    assert found.path == "/a/{name}/groups/{group}" and params == {"name": "t", "group": "x/y"}
    with pytest.raises(EndpointNotFound):
        router.find("DELETE", "/a/t/groups/x/y", b"/a/t/groups/x/y")
