"""Pages of messages: one that cannot be decoded harms no other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import TidegateError
from tidegate.sdk.message_page import _page_of, decode_page

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a"\\[{,:}] '), inner, max_size=3),
    max_leaves=8,
)
LONG = "1" * 5_000


def page_text(payloads: list[str], *, indent: str = "") -> bytes:
    """Return a page as a server writes it, or with spaces and line ends between its tokens."""
    messages = [
        f'{{"offset":{number},{indent}"lease":"0.{number}.1","key":"a\\"b, {{","payload":{indent}{payload}}}'
        for number, payload in enumerate(payloads)
    ]
    text = f'{{"messages":[{indent}{f",{indent}".join(messages)}{indent}],{indent}"nextOffsets":{{"0":9}}}}'
    return text.encode()


@given(st.lists(VALUES, max_size=5), st.sampled_from(["", " \n\t"]))
def test_a_page_cut_apart_is_the_page(values: list[Any], indent: str) -> None:
    text = page_text([json.dumps(value, ensure_ascii=False) for value in values], indent=indent)
    assert _page_of(text) == json.loads(text) == decode_page(text, "here")


@given(st.lists(VALUES, max_size=4), st.lists(VALUES, max_size=4))
def test_what_cannot_be_read_is_text_with_its_lease(before: list[Any], after: list[Any]) -> None:
    bad = f'{{"n": [{LONG}, "]"]}}'
    page = decode_page(page_text([*map(json.dumps, before), bad, *map(json.dumps, after)]), "here")
    messages: list[Any] = list(page["messages"])
    found = messages.pop(len(before))
    assert (found["payload"], found["lease"], found["key"]) == (bad, f"0.{len(before)}.1", 'a"b, {')
    assert "digits" in found["unreadable"] or "out of range" in found["unreadable"]
    assert [message["payload"] for message in messages] == [*before, *after]
    assert not any("unreadable" in message for message in messages)
    assert page["nextOffsets"] == {"0": 9}


@pytest.mark.parametrize("depth", [2_000, 100_000])
def test_depth_is_no_matter(depth: int) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth
    page: Any = decode_page(page_text(["1", deep, "3"]), "here")
    assert [message["payload"] for message in page["messages"]] == [1, deep, 3]
    assert "recursion" in page["messages"][1]["unreadable"]


@pytest.mark.parametrize(
    "content", [b"", b"<html>", b"[1, 2", b'{"messages": [5' + b"5" * 5_000 + b"]}", b'{"messages"']
)
def test_what_is_no_page_is_refused(content: bytes) -> None:
    with pytest.raises(TidegateError, match="answered what is not JSON"):
        decode_page(content, "here")
