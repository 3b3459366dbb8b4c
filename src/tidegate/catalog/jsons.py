"""JSON text in columns: one way to write it, one way to read it, and a limit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tidegate.errors import InvariantBroken, RequestInvalid


def to_text(value: Mapping[str, Any], bytes_max: int, noun: str) -> str:
    """Give a mapping as JSON text; refuse one that is longer than its limit."""
    text = json.dumps(value, separators=(",", ":"))  # ASCII: characters are bytes
    if len(text) > bytes_max:
        raise RequestInvalid(reason=f"{noun} of {len(text)} bytes are too long; {bytes_max} are allowed.")
    return text


def to_mapping(text: str) -> dict[str, Any]:
    """Give the mapping that `to_text` wrote."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise InvariantBroken(reason="the catalog holds JSON of another shape than was written")
    return found
