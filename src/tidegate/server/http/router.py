"""Routing: takes a method and a path, gives the route and the names inside the path.

A tree of path segments, because a list of patterns costs a request more than everything else at the door.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import unquote

from tidegate.errors import EndpointNotFound, InvariantBroken, MethodNotAllowed
from tidegate.server.api.routes import Route

# An error repeats no more of a path than this.
PATH_SHOWN_CHARS_MAX = 200


@dataclass(slots=True)
class _Node:
    children: dict[str, _Node] = field(default_factory=dict)
    name: str = ""
    inner: _Node | None = None
    routes: dict[str, Route] = field(default_factory=dict)


class Router:
    """Finds routes. HEAD is answered where there is a GET."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        for route in routes:
            self._add(route)

    def find(self, method: str, path: str, raw_path: bytes = b"") -> tuple[Route, dict[str, str]]:
        """Return the route and the values of its names; EndpointNotFound or MethodNotAllowed.

        A name may have a slash, written %2F: then the path is cut where `raw_path`, as it was sent, has one.
        """
        params: dict[str, str] = {}
        node: _Node | None = self._root
        segments = path.split("/")
        if b"%2f" in raw_path.lower():
            segments = [unquote(segment) for segment in raw_path.decode("latin-1").split("/")]
        for segment in segments[1:]:
            if node is None:
                break
            child = node.children.get(segment)
            if child is None and node.inner is not None and segment:
                params[node.inner.name] = segment
                child = node.inner
            node = child
        if node is None or not node.routes:
            raise EndpointNotFound(path=path[:PATH_SHOWN_CHARS_MAX])
        route = node.routes.get(method) or (node.routes.get("GET") if method == "HEAD" else None)
        if route is None:
            raise MethodNotAllowed(
                path=path[:PATH_SHOWN_CHARS_MAX], method=method[:20], allowed=", ".join(sorted(node.routes))
            )
        return route, params

    def _add(self, route: Route) -> None:
        node = self._root
        for segment in route.path.split("/")[1:]:
            if segment.startswith("{"):
                if node.inner is None:
                    node.inner = _Node(name=segment[1:-1])
                if node.inner.name != segment[1:-1]:
                    raise InvariantBroken(reason=f"{route.path} gives '{node.inner.name}' another name")
                node = node.inner
            else:
                node = node.children.setdefault(segment, _Node())
        if route.method in node.routes:
            raise InvariantBroken(reason=f"{route.method} {route.path} is there twice")
        node.routes[route.method] = route
