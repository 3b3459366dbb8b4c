from __future__ import annotations

from collections.abc import Callable

import pytest

from tidegate.cli.commands.topic.arguments import parse_start
from tidegate.cli.commands.topic.publish_consume import (
    LINES_PER_REQUEST_MAX,
    messages_of,
    parse_payload,
    read_batches,
)
from tidegate.errors import RequestInvalid


def reader(*chunks: bytes) -> Callable[[int], bytes]:
    rest = iter([*chunks, b""])
    return lambda _size: next(rest)


def test_lines_keep_their_numbers_across_reads_and_blanks() -> None:
    batches = list(read_batches(reader(b'{"a":1}\n\n{"a"', b':2}\n{"a":3}')))
    assert [entry for batch in batches for entry in batch] == [
        (1, b'{"a":1}'),
        (3, b'{"a":2}'),
        (4, b'{"a":3}'),
    ]


def test_what_has_arrived_is_given_before_more_is_read() -> None:
    seen: list[int] = []

    def read(size: int) -> bytes:
        seen.append(size)
        return b"1\n" if len(seen) == 1 else b""

    assert next(read_batches(read)) == [(1, b"1")]
    assert len(seen) == 1


def test_requests_stay_below_the_limit() -> None:
    batches = list(read_batches(reader(b"1\n" * (LINES_PER_REQUEST_MAX + 5))))
    assert [len(batch) for batch in batches if batch] == [LINES_PER_REQUEST_MAX, 5]


def test_wrong_json_names_its_place() -> None:
    with pytest.raises(RequestInvalid, match=r"Line 7 is not JSON .*: hello"):
        parse_payload(b"hello", "Line 7")
    with pytest.raises(RequestInvalid, match="Line 8"):
        parse_payload(b"\xff\xfe", "Line 8")


def test_key_and_partition_go_on_every_message() -> None:
    assert messages_of([1, 2], "k", 0) == [
        {"key": "k", "partition": 0, "payload": 1},
        {"key": "k", "partition": 0, "payload": 2},
    ]
    assert messages_of([None], None, None) == [{"payload": None}]


def test_the_start_is_a_word_an_offset_or_a_time() -> None:
    assert parse_start("earliest") == "earliest"
    assert parse_start("latest") == "latest"
    assert parse_start("42") == {"offset": 42}
    start = parse_start("2026-01-31T12:00:00Z")
    assert isinstance(start, dict)
    assert start["timestamp"].startswith("2026-01-31T12:00:00")
    with pytest.raises(RequestInvalid, match="not a place in a topic"):
        parse_start("yesterday-ish")
