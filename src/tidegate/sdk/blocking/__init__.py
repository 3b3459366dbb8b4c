"""Threads and sockets of the client without asyncio, written by hand; the rest of it is `_sync`."""
