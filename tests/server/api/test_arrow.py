"""Arrow in and out: a publish from columns, a consume into columns, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tidegate.errors import BodyTooLarge
from tidegate.server.http.arrow import messages_of

ARROW = "application/vnd.apache.arrow.stream"
NewTopic = Callable[..., str]


def stream(columns: dict[str, Any], *, batches: int = 1, compression: str | None = None) -> bytes:
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=max(1, -(-table.num_rows // batches)))
    return bytes(sink.getvalue())


def send(http: httpx.Client, topic: str, content: bytes, **query: str) -> httpx.Response:
    return http.post(
        f"/api/v1/topics/{topic}/publish", content=content, headers={"Content-Type": ARROW}, params=query
    )


def test_messages_go_in_and_come_out_as_columns(http: httpx.Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    payloads = ['{"v": 1.5}', '"text ü"', "null", "[]"]
    content = stream({"payload": payloads, "key": ["a", None, "b", "c"]}, batches=3)
    answer = send(http, topic, content)
    assert [place["offset"] for place in answer.json()["offsets"]] == [0, 1, 2, 3]
    taken = http.post(f"/api/v1/topics/{topic}/consume", json={"limit": 3}, headers={"Accept": ARROW})
    assert taken.headers["content-type"] == ARROW
    table = pa.ipc.open_stream(taken.content).read_all()
    assert table.column("payload").to_pylist() == payloads[:3]
    assert table.column("key").to_pylist() == ["a", None, "b"]
    assert json.loads(table.schema.metadata[b"tidegate.nextOffsets"]) == {"0": 3}
    rows = http.post(f"/api/v1/topics/{topic}/consume", json={}).json()["messages"]
    assert [row["payload"] for row in rows] == [json.loads(payload) for payload in payloads]


def test_partitions_can_be_named_and_an_empty_answer_has_its_columns(
    http: httpx.Client, new_topic: NewTopic
) -> None:
    topic = new_topic(3)
    content = stream({"payload": ["1", "2"], "partition": pa.array([2, 0], pa.int32())})
    assert [place["partition"] for place in send(http, topic, content).json()["offsets"]] == [2, 0]
    taken = http.post(f"/api/v1/topics/{topic}/consume", json={"partition": 1}, headers={"Accept": ARROW})
    table = pa.ipc.open_stream(taken.content).read_all()
    assert (table.num_rows, "payload" in table.schema.names) == (0, True)


def test_a_producer_numbers_its_columns_too(http: httpx.Client, new_topic: NewTopic) -> None:
    topic, content = new_topic(), stream({"payload": ["1", "2"]})
    first, again = (send(http, topic, content, producerId="p", sequence="0").json() for _ in range(2))
    assert first == again
    gap = send(http, topic, content, producerId="p", sequence="9")
    assert gap.json()["error"]["code"] == "SEQUENCE_GAP"
    assert send(http, topic, content, producerId="p", sequence="-1").status_code == 422
    assert send(http, topic, content, producerId="p").status_code == 422


@pytest.mark.parametrize(
    "columns",
    [
        {"key": ["a"]},
        {"payload": ["1"], "other": [1]},
        {"payload": ["{"]},
        {"payload": [None]},
        {"payload": pa.array([], pa.string())},
        {"payload": pa.array([b"\xff"], pa.binary())},
        {"payload": ["1"], "partition": ["zero"]},
        {"payload": ["1"], "partition": [9]},
        {"payload": ["1"] * 1001},
        {"payload": ['"' + "x" * 6000 + '"']},
    ],
    ids=["no payload", "stranger", "no JSON", "null", "empty", "no UTF-8", "text", "absent", "many", "large"],
)
def test_columns_that_cannot_be_messages_are_refused_and_nothing_is_stored(
    http: httpx.Client, new_topic: NewTopic, columns: dict[str, Any]
) -> None:
    topic = new_topic()
    answer = send(http, topic, stream(columns))
    assert answer.status_code in (404, 422), answer.text
    assert http.get(f"/api/v1/topics/{topic}").json()["messages"] == 0


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_compressed_stream_is_refused_before_it_is_unpacked(
    http: httpx.Client, new_topic: NewTopic, compression: str
) -> None:
    small = stream({"payload": ["1"] * 500}, compression=compression)
    bomb = stream({"payload": ['"' + "x" * 50_000_000 + '"']}, compression=compression)
    assert len(bomb) < 1_000_000
    for content in (small, bomb[:90_000]):
        answer = send(http, new_topic(), content)
        assert answer.status_code in (400, 422), answer.text
    refused = send(http, new_topic(), small)
    assert refused.status_code == 422
    assert "compressed" in refused.json()["error"]["message"]


_LONG = '"' + "x" * 4000 + '"'


@pytest.mark.parametrize(
    "column",
    [
        pa.array([_LONG] * 500).dictionary_encode(),
        pa.RunEndEncodedArray.from_arrays(pa.array([500], pa.int32()), pa.array([_LONG])),
        pa.array(["1"], pa.string_view()),
        pa.array([["1"]]),
        pa.array([b"1"], pa.binary()),
        pa.array([1]),
    ],
    ids=["dictionary", "run ends", "view", "list", "binary", "number"],
)
@pytest.mark.parametrize("name", ["payload", "key"])
def test_a_text_column_is_plain_text(
    http: httpx.Client, new_topic: NewTopic, column: pa.Array, name: str
) -> None:
    columns = {"payload": ["1"] * len(column), name: column}
    topic = new_topic()
    answer = send(http, topic, stream(columns))
    assert answer.status_code == 422, answer.text
    assert "hint" in answer.json()["error"]
    assert http.get(f"/api/v1/topics/{topic}").json()["messages"] == 0


@pytest.mark.parametrize(
    "column",
    [pa.array([0.0]), pa.array(["0"]), pa.array([0], pa.date32()), pa.array([2**64 - 1], pa.uint64())],
)
def test_a_partition_is_a_whole_number(http: httpx.Client, new_topic: NewTopic, column: pa.Array) -> None:
    answer = send(http, new_topic(), stream({"payload": ["1"], "partition": column}))
    assert answer.status_code == 422, answer.text


def test_large_text_and_columns_in_which_nothing_is_said_are_taken(
    http: httpx.Client, new_topic: NewTopic
) -> None:
    columns = {
        "payload": pa.array(["1", "2"], pa.large_string()),
        "key": pa.nulls(2),
        "partition": pa.array([0, None], pa.uint8()),
    }
    assert send(http, new_topic(), stream(columns)).status_code == 200


def test_the_texts_of_a_stream_count_as_a_body_does() -> None:
    content = stream({"payload": ["1234", "5678"], "key": ["k", None]}, batches=2)
    assert len(messages_of(content, 10, 9)) == 2
    with pytest.raises(BodyTooLarge):
        messages_of(content, 10, 8)


def test_bytes_that_are_no_arrow_are_refused(http: httpx.Client, new_topic: NewTopic) -> None:
    whole = stream({"payload": [str(number) for number in range(100)]})
    flipped = bytearray(whole)
    for index in range(8, len(flipped), 7):
        flipped[index] ^= 0x55
    for content in (b"", b"no", whole[:-200], bytes(flipped)):
        answer = send(http, new_topic(), content)
        assert answer.status_code in (400, 422), answer.text
