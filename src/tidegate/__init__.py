"""Tidegate: a stream data platform in one Python package.

`tidegate.connect()` gives a client of a running server, `tidegate.connect_async()` one for asyncio.
`from tidegate import spark as tide` gives what pipelines use. `tidegate.Deduplicator` drops duplicates in a
plain consumer. Nothing heavy is imported until it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.dedup.deduplicator import Deduplicator
    from tidegate.sdk._async.client import AsyncClient, connect_async
    from tidegate.sdk._sync.client import Client, connect
    from tidegate.sdk.agent_policy import Reject, Retry

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
    "connect": "tidegate.sdk._sync.client",
    "Client": "tidegate.sdk._sync.client",
    "connect_async": "tidegate.sdk._async.client",
    "AsyncClient": "tidegate.sdk._async.client",
    "Retry": "tidegate.sdk.agent_policy",
    "Reject": "tidegate.sdk.agent_policy",
    "Deduplicator": "tidegate.dedup.deduplicator",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'tidegate' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_LATE[name]), name)
