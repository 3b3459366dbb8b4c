"""The limits of JSON that every client can read: its nesting, and the length of a number.

Python refuses whole numbers of more than 4,300 digits and JSON nested about 1,000 levels deep, Jackson
refuses numbers of more than 1,000 characters: one such message would make a client fail on its whole page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

DEPTH_MAX = 128
NUMBER_CHARS_MAX = 1_000

# A text of so many bytes has neither.
HARMLESS_BYTES_MAX = min(2 * DEPTH_MAX, NUMBER_CHARS_MAX)
HINT = "Send long numbers as texts, and nest less."

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKET = re.compile(rb"[\[{]|[\]}]")
# It looks at each run of digits once, from its beginning.
_LONG_NUMBER = re.compile(rb"(?<![-+.0-9Ee])[-+.0-9Ee]{%d}" % (NUMBER_CHARS_MAX + 1))


def find_unreadable(text: bytes) -> str | None:
    """Return what of a valid JSON text is beyond the limits; None where nothing is. Linear in its length."""
    if len(text) <= HARMLESS_BYTES_MAX:
        return None
    is_deep = text.count(b"[") + text.count(b"{") > DEPTH_MAX
    if not is_deep and not _LONG_NUMBER.search(text):
        return None
    # Only now, because it is slower: brackets and digits inside strings do not count.
    outside = _STRING.sub(b"", text)
    if _LONG_NUMBER.search(outside):
        return f"it has a number of more than {NUMBER_CHARS_MAX} characters"
    depth = 0
    for bracket in _BRACKET.finditer(outside):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > DEPTH_MAX:
            return f"it is nested more than {DEPTH_MAX} levels deep"
    return None


def is_deeper(values: Sequence[Any], depth: int) -> bool:
    """Return whether decoded JSON has more than so many levels of lists and objects, `values` among them."""
    # Level by level instead of recursion: values nest deeper than Python does.
    level: list[Any] = [values]
    for _ in range(depth):
        level = [
            inner
            for container in level
            for inner in (container.values() if type(container) is dict else container)
            if type(inner) is list or type(inner) is dict
        ]
        if not level:
            return False
    return True
