"""The client that blocks under its short name, for the command line; `import tidegate` lends out both."""

from __future__ import annotations

from tidegate.sdk.live import Change
from tidegate.sdk.synchronous.answer import Answer, Result
from tidegate.sdk.synchronous.client import Client, connect
from tidegate.sdk.synchronous.producer import Producer
from tidegate.sdk.synchronous.topics import Topic

__all__ = ["Answer", "Change", "Client", "Producer", "Result", "Topic", "connect"]
