"""The blocking client under a short name, for the command line; `import tidegate` offers both clients."""

from __future__ import annotations

from tidegate.sdk._sync.client import Client, connect
from tidegate.sdk._sync.producer import Producer
from tidegate.sdk._sync.result import Result, SqlAnswer
from tidegate.sdk._sync.topics import TopicClient
from tidegate.sdk.live import RowChange

__all__ = ["Client", "Producer", "Result", "RowChange", "SqlAnswer", "TopicClient", "connect"]
