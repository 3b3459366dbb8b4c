"""The client that blocks under its short name, for the command line; `import tidegate` lends out both."""

from __future__ import annotations

from tidegate.sdk._sync.client import Client, connect
from tidegate.sdk._sync.producer import Producer
from tidegate.sdk._sync.result import Answer, Result
from tidegate.sdk._sync.topics import Topic
from tidegate.sdk.live import Change

__all__ = ["Answer", "Change", "Client", "Producer", "Result", "Topic", "connect"]
