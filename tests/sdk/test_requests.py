"""First mistakes with messages and leases are refused before anything is sent, with words that help."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import tidegate
from tests.sdk.faults import FaultyServer, faulty_server
from tidegate.errors import RequestInvalid
from tidegate.sdk.requests import lease_list, message_list

PAYLOADS = [
    ([{"a": 1}], 'Write {"payload": {"a": 1}}.'),
    ([{"payload": 0}, {"a": 1}], 'Write {"payload": {"a": 1}}.'),
    ({"a": 1}, 'Write [{"payload": {"a": 1}}].'),
    ({"payload": 1, "key": "k"}, 'Write [{"payload": 1, "key": "k"}].'),
    ("text", 'Write [{"payload": "text"}].'),
    (["text"], 'Write {"payload": "text"}.'),
    ([{"key": "k"}], 'Write {"payload": {"key": "k"}}.'),
    ([{"payload": 1, "colour": "red"}], "belong into the payload"),
]


@pytest.mark.parametrize(("given", "words"), PAYLOADS, ids=str)
def test_a_payload_that_is_no_message_is_refused_with_the_message_to_write(given: Any, words: str) -> None:
    with pytest.raises(RequestInvalid) as caught:
        message_list(given)
    assert words in str(caught.value.hint)


@pytest.mark.parametrize("key", [b"x", bytearray(b"x"), memoryview(b"x")], ids=lambda key: type(key).__name__)
def test_a_dedup_key_of_bytes_is_refused(key: Any) -> None:
    """JSON would make another text of it, and that another key."""
    messages: list[Any] = [{"payload": 1, "dedupKey": "x"}, {"payload": 2, "dedupKey": key}]
    for given in (messages, [messages[0], SimpleNamespace(payload=2, dedupKey=key)]):
        with pytest.raises(RequestInvalid, match=r"A dedupKey is a text, not bytes \(message 1\)"):
            message_list(given)


def test_messages_are_taken_as_they_are_from_anything_that_gives_them() -> None:
    made = ({"payload": number, "key": None, "partition": 0} for number in range(2))
    assert message_list(made) == [{"payload": number, "key": None, "partition": 0} for number in range(2)]
    assert message_list([]) == []


def test_what_is_shown_of_a_payload_is_short_even_when_it_has_no_end() -> None:
    endless: dict[str, Any] = {}
    endless["self"] = endless
    for payload in ({"text": "x" * 10_000}, endless):
        with pytest.raises(RequestInvalid) as caught:
            message_list([payload])
        assert len(str(caught.value.hint)) < 400


@pytest.mark.parametrize("given", ["0.1f.3", {"lease": "0.1f.3"}, [{"lease": "0.1f.3"}], [None]], ids=str)
def test_leases_that_are_no_list_of_texts_are_refused(given: Any) -> None:
    with pytest.raises(RequestInvalid, match=r"[Ll]ease"):
        lease_list(given)


CALLS: dict[str, Callable[[Any], Any]] = {
    "publish": lambda topic: topic.publish([{"a": 1}]),
    "producer": lambda topic: topic.producer().publish({"a": 1}),
    "ack": lambda topic: topic.ack("g", "0.1f.3"),
    "nack": lambda topic: topic.nack("g", "0.1f.3"),
    "extend": lambda topic: topic.extend("g", "0.1f.3"),
}


@pytest.fixture
def nobody() -> Any:
    with faulty_server() as faulty:
        yield faulty


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_call_looks_before_it_sends(call: Callable[[Any], Any], nobody: FaultyServer) -> None:
    with tidegate.connect(nobody.url, token="t") as client, pytest.raises(RequestInvalid):
        call(client.topic("t"))

    async def asked() -> None:
        async with tidegate.connect_async(nobody.url, token="t") as client:
            await call(client.topic("t"))

    with pytest.raises(RequestInvalid):
        asyncio.run(asked())
    assert nobody.seen == []
