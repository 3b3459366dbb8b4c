"""How this client waits and takes turns. Its twin, synchronous/waiting.py, is written by hand as well."""

from __future__ import annotations

from asyncio import Lock, sleep

__all__ = ["Lock", "sleep"]
