"""Payloads to publish: takes arguments or lines of JSON, gives messages, names the line that is not JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tidegate.errors import RequestInvalid

# What one read of stdin takes at most. A slow writer is read line by line, a fast one in large requests.
READ_BYTES = 256 * 1024
# Most lines in one request, well below the default of server.messages_max.
LINES_PER_REQUEST_MAX = 10_000
STDIN = 0


def parse_payload(text: str | bytes, place: str, published: str = "Nothing was published.") -> Any:
    """Read one payload as JSON, or say where it is, what is wrong with it and what was published before."""
    try:
        return json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError) as problem:
        shown = text if isinstance(text, str) else text.decode("utf-8", errors="replace")
        raise RequestInvalid(
            reason=f"{place} is not JSON ({problem}): {shown[:80]}",
            hint=f"Text needs quotes of its own: '\"hello\"'. {published}",
        ) from problem


def read_batches(read: Callable[[int], bytes]) -> Iterator[list[tuple[int, bytes]]]:
    """Give the lines of a stream that are not blank, numbered from 1, as many at a time as have arrived."""
    number = 0
    rest = b""
    while True:
        chunk = read(READ_BYTES)
        *lines, rest = (rest + chunk).split(b"\n")
        if not chunk:
            lines, rest = [rest], b""
        numbered = [(number + index, line) for index, line in enumerate(lines, start=1) if line.strip()]
        number += len(lines)
        for start in range(0, len(numbered), LINES_PER_REQUEST_MAX):
            yield numbered[start : start + LINES_PER_REQUEST_MAX]
        if not chunk:
            return


def read_stdin(size: int) -> bytes:
    """Read what stdin has, at most `size` bytes."""
    return os.read(STDIN, size)


def messages_of(
    payloads: Sequence[Any], key: str | None, partition: int | None, dedup_keys: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Build the messages of a publish request; there are as many dedup keys as payloads, or none."""
    message: dict[str, Any] = {}
    if key is not None:
        message["key"] = key
    if partition is not None:
        message["partition"] = partition
    if dedup_keys:
        pairs = zip(payloads, dedup_keys, strict=True)
        return [{**message, "payload": payload, "dedupKey": dedup_key} for payload, dedup_key in pairs]
    return [{**message, "payload": payload} for payload in payloads]
