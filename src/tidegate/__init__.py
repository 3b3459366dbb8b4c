"""Tidegate: a stream data platform in one Python package.

`tidegate.connect()` gives a client of a running server, `tidegate.connect_async()` one for asyncio.
`from tidegate import spark as tide` gives what pipelines use. `tidegate.Deduplicator` drops duplicates in a
plain consumer. Nothing heavy is imported until it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.sdk.agents import Reject, Retry
    from tidegate.sdk.asynchronous.client import AsyncClient, connect_async
    from tidegate.sdk.synchronous.client import Client, connect
    from tidegate.state.segments.deduplicator import Deduplicator

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "Client",
    "Deduplicator",
    "Reject",
    "Retry",
    "TidegateError",
    "__version__",
    "connect",
    "connect_async",
]

_LATE = {
    "connect": "tidegate.sdk.synchronous.client",
    "Client": "tidegate.sdk.synchronous.client",
    "connect_async": "tidegate.sdk.asynchronous.client",
    "AsyncClient": "tidegate.sdk.asynchronous.client",
    "Retry": "tidegate.sdk.agents",
    "Reject": "tidegate.sdk.agents",
    "Deduplicator": "tidegate.state.segments.deduplicator",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'tidegate' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_LATE[name]), name)
