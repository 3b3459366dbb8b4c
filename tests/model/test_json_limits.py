"""JSON that a client cannot read is found, and nothing else is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.json_limits import DEPTH_MAX, NUMBER_CHARS_MAX, find_unreadable

JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text('ab"\\[{', max_size=4), inner, max_size=4)
    ),
)


def nested(depth: int, inside: bytes = b"0") -> bytes:
    """Return lists and objects in turn, so many levels deep."""
    text = inside
    for level in range(depth):
        text = b"[" + text + b"]" if level % 2 else b'{"a":' + text + b"}"
    return text


@pytest.mark.parametrize(
    "text",
    [
        nested(DEPTH_MAX),
        b"[" + b",".join([b"[1]"] * 5_000) + b"]",
        b"9" * NUMBER_CHARS_MAX,
        b"[" + b"1234567890," * 1_000 + b"1]",
        b'"' + b"9" * 100_000 + b'"',
        b'{"' + b"[" * 500 + b'": "' + b'\\"' * 200 + b"{" * 500 + b'"}',
        b"-1." + b"5" * (NUMBER_CHARS_MAX - 3),
    ],
)
def test_what_clients_read_is_left_alone(text: bytes) -> None:
    json.loads(text)
    assert find_unreadable(text) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (nested(DEPTH_MAX + 1), "128 levels"),
        (b"[" * 100_000 + b"]" * 100_000, "128 levels"),
        (b'{"a": "[[[", "b": ' + nested(DEPTH_MAX, b'"}]"') + b"}", "128 levels"),
        (b"9" * (NUMBER_CHARS_MAX + 1), "1000 characters"),
        (b"[0." + b"1" * 5_000 + b"]", "1000 characters"),
        (b'["a\\\\", ' + b"-" + b"1" * 1_000 + b"]", "1000 characters"),
    ],
)
def test_what_clients_cannot_read_is_found(text: bytes, words: str) -> None:
    found = find_unreadable(text)
    assert found is not None
    assert words in found


@given(JSON, st.integers(0, 3))
def test_depth_is_that_of_the_value(value: object, more: int) -> None:
    def depth(inner: object) -> int:
        items = inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else None
        return 0 if items is None else 1 + max(map(depth, items), default=0)

    levels = DEPTH_MAX - depth(value) - 1 + more
    text = nested(levels, json.dumps(value).encode())
    assert (find_unreadable(text) is not None) == (levels + depth(value) > DEPTH_MAX)
