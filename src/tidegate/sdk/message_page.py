"""Pages of messages: decoded at once, or message by message where one of them cannot be read.

A server refuses messages that a client could not read, but a log may hold some from before it did. Such a
message has its payload as text, and `unreadable` says why. It has its lease like the others, so that it can
be nacked alone. The page is then cut apart by its brackets and strings, without recursion.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from tidegate.sdk.requests import not_json
from tidegate.sdk.types import MessageDict, MessagePageDict

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},]', re.DOTALL)
_OPENING, _CLOSING = b"[{", b"]}"


def decode_page(content: bytes, url: str) -> MessagePageDict:
    """Return the messages of an answer; TidegateError for what is no page of messages."""
    try:
        page: MessagePageDict = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        try:
            return _page_of(content)
        except (ValueError, KeyError, RecursionError) as problem:
            raise not_json(content, url) from problem
    return page


def _page_of(content: bytes) -> MessagePageDict:
    members = _members(content)
    page: Any = {name: msgspec.json.decode(text) for name, text in members.items() if name != "messages"}
    page["messages"] = [_message_of(text) for text in _parts(members["messages"])]
    found: MessagePageDict = page
    return found


def _message_of(text: bytes) -> MessageDict:
    members = _members(text)
    payload = members.pop("payload")
    message: Any = {name: msgspec.json.decode(value) for name, value in members.items()}
    try:
        message["payload"] = msgspec.json.decode(payload)
    except (ValueError, RecursionError) as problem:
        message |= {"payload": payload.decode(errors="replace"), "unreadable": str(problem)}
    found: MessageDict = message
    return found


def _members(text: bytes) -> dict[str, bytes]:
    """Return the members of a JSON object, their values as text."""
    pairs = ((part, part.index(b'"', 1) + 1) for part in _parts(text))
    return {part[1 : end - 1].decode(): part[end:].lstrip()[1:].strip() for part, end in pairs}


def _parts(text: bytes) -> Iterator[bytes]:
    """Yield what stands between the commas of a JSON list or object, without what is around it."""
    depth = begin = 0
    for token in _TOKEN.finditer(text):
        char = token[0]
        if char in _OPENING:
            depth += 1
            begin = token.end() if depth == 1 else begin
        elif depth == 1 and char in (b",", b"]", b"}"):
            if part := text[begin : token.start()].strip():
                yield part
            begin = token.end()
        if char in _CLOSING:
            depth -= 1
