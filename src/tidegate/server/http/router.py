"""The router from method and path to an endpoint.

A tree of path segments: trying a list of patterns would cost a request more than all other steps of the
application.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import unquote

from tidegate.errors import EndpointNotFound, InvariantBroken, MethodNotAllowed
from tidegate.server.http.request import Endpoint

# An error repeats no more of a path than this.
PATH_SHOWN_CHARS_MAX = 200


@dataclass(slots=True)
class _Node:
    children: dict[str, _Node] = field(default_factory=dict)
    name: str = ""
    inner: _Node | None = None
    endpoints: dict[str, Endpoint] = field(default_factory=dict)


class Router:
    """Finds endpoints. HEAD is answered where there is a GET."""

    def __init__(self, routes: Iterable[Endpoint]) -> None:
        self._root = _Node()
        for endpoint in routes:
            self._add(endpoint)

    def find(self, method: str, path: str, raw_path: bytes = b"") -> tuple[Endpoint, dict[str, str]]:
        """Return the endpoint and its path parameters; raise EndpointNotFound or MethodNotAllowed.

        A value may contain a slash, written %2F: then the path is split at the slashes of `raw_path`, as
        sent.
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
        if node is None or not node.endpoints:
            raise EndpointNotFound(path=path[:PATH_SHOWN_CHARS_MAX])
        endpoint = node.endpoints.get(method) or (node.endpoints.get("GET") if method == "HEAD" else None)
        if endpoint is None:
            raise MethodNotAllowed(
                path=path[:PATH_SHOWN_CHARS_MAX],
                method=method[:20],
                allowed=", ".join(sorted(node.endpoints)),
            )
        return endpoint, params

    def _add(self, endpoint: Endpoint) -> None:
        node = self._root
        for segment in endpoint.path.split("/")[1:]:
            if segment.startswith("{"):
                if node.inner is None:
                    node.inner = _Node(name=segment[1:-1])
                if node.inner.name != segment[1:-1]:
                    raise InvariantBroken(reason=f"{endpoint.path} gives '{node.inner.name}' another name")
                node = node.inner
            else:
                node = node.children.setdefault(segment, _Node())
        if endpoint.method in node.endpoints:
            raise InvariantBroken(reason=f"{endpoint.method} {endpoint.path} is named twice")
        node.endpoints[endpoint.method] = endpoint
