"""Lists that come in pages: takes a path, gives all entries or the first few, keeps nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.sdk.asynchronous.transport import Transport
from tidegate.sdk.requests import get

# Asked for only where fewer are wanted: how many a page holds at most is a setting of the server.
PAGE_ENTRIES = 100


async def listed(
    transport: Transport,
    path: str,
    noun: str,
    query: Mapping[str, Any] | None = None,
    limit: int | None = None,
) -> list[Any]:
    """Give the entries of a list, page after page, up to `limit`."""
    entries: list[Any] = []
    question = dict(query or {})
    while limit is None or len(entries) < limit:
        if limit is not None and limit - len(entries) < PAGE_ENTRIES:
            question["limit"] = limit - len(entries)
        page = await transport.call(get(path, question))
        entries += page[noun]
        question["after"] = page.get("next")
        if question["after"] is None:
            break
    return entries if limit is None else entries[:limit]
