"""How this client waits and takes turns. Its twin, asynchronous/waiting.py, is written by hand as well."""

from __future__ import annotations

from threading import Lock
from time import sleep

__all__ = ["Lock", "sleep"]
