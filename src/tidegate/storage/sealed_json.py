"""Sealed JSON: a small document in one line, with a format number and a checksum as its last member.

{"format": 1, …, "checksum": "<xxh3-64 of the document without this member>"}
"""

from __future__ import annotations

import json
from typing import Any

import xxhash

from tidegate.errors import StorageCorrupt


def seal(document: dict[str, Any]) -> bytes:
    """Return a JSON document with its checksum as the last member."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    checksum = xxhash.xxh3_64_hexdigest(text.encode())
    return f'{text[:-1]},"checksum":"{checksum}"}}\n'.encode()


def unseal(content: bytes, place: str, format_max: int) -> dict[str, Any]:
    """Return a document without its checksum.

    StorageCorrupt when that does not fit, or the format is newer.
    """
    text, mark, tail = content.rpartition(b',"checksum":"')
    text += b"}"
    if not mark or tail != xxhash.xxh3_64_hexdigest(text).encode() + b'"}\n':
        raise StorageCorrupt(place=place, reason="the checksum does not fit its bytes")
    document: dict[str, Any] = json.loads(text)
    if not 1 <= document.get("format", 0) <= format_max:
        reason = f"its format is {document.get('format')}, this version of Tidegate reads up to {format_max}"
        raise StorageCorrupt(
            place=place, reason=reason, hint="Use the version that wrote it, or a newer one."
        )
    return document
