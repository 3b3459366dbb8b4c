"""Topics over HTTP: what goes in comes out, in the shapes that the interface promises."""

from __future__ import annotations

import contextlib
import gzip
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tests.server.live_client import metric

NewTopic = Callable[..., str]
# Whoever is not woken is not answered before this is over, which is too late.
WAIT_MS = 60_000
WOKEN_SECONDS = 40


def _publish(
    http: httpx.Client, topic: str, payloads: list[object], **more: object
) -> list[dict[str, object]]:
    body = {"messages": [{"payload": payload} for payload in payloads], **more}
    answer = http.post(f"/api/v1/topics/{topic}/publish", json=body)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["offsets"])


def _consume(http: httpx.Client, topic: str, **body: object) -> dict[str, Any]:
    answer = http.post(f"/api/v1/topics/{topic}/consume", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_published_message_is_consumed_as_it_was(http: httpx.Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    payloads: list[object] = [{"a": [1, 2.5, None, "ü\n"]}, "text", 7, None, [], True]
    places = _publish(http, topic, payloads)
    assert [(place["partition"], place["offset"]) for place in places] == [(0, n) for n in range(6)]
    answer = _consume(http, topic)
    assert [message["payload"] for message in answer["messages"]] == payloads
    assert answer["nextOffsets"] == {"0": 6}
    first = answer["messages"][0]
    assert first["messageId"] == places[0]["messageId"]
    assert isinstance(first["messageId"], str)
    assert {key: first[key] for key in ("topic", "op", "source", "payloadMode", "key")} == {
        "topic": topic,
        "op": "PUBLISH",
        "source": None,
        "payloadMode": "full",
        "key": None,
    }
    assert str(first["ts"]).endswith("Z")


def test_every_start_position(http: httpx.Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    _publish(http, topic, [0, 1, 2])
    time.sleep(0.01)
    _publish(http, topic, [3, 4])
    third = str(_consume(http, topic, **{"from": {"offset": 3}})["messages"][0]["ts"])
    cases: list[tuple[object, list[int]]] = [
        ("earliest", [0, 1, 2, 3, 4]),
        ("latest", []),
        ({"offset": 3}, [3, 4]),
        ({"after": 3}, [4]),
        ({"offset": 5}, []),
        ({"timestamp": third}, [3, 4]),
        ({"offsets": {"0": 1}}, [1, 2, 3, 4]),
    ]
    for start, expected in cases:
        messages = _consume(http, topic, **{"from": start})["messages"]
        assert [message["payload"] for message in messages] == expected, start


def test_pages_go_on_from_next_offsets_over_all_partitions(http: httpx.Client, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    body = {"messages": [{"key": f"k{n}", "payload": n} for n in range(50)]}
    assert http.post(f"/api/v1/topics/{topic}/publish", json=body).status_code == 200
    seen: list[int] = []
    position: object = "earliest"
    while page := _consume(http, topic, **{"from": position, "limit": 7})["messages"]:
        assert len(page) <= 7
        seen += [message["payload"] for message in page]
        position = {"offsets": _consume(http, topic, **{"from": position, "limit": 7})["nextOffsets"]}
    assert sorted(seen) == list(range(50))


@contextlib.contextmanager
def _waiting(http: httpx.Client, topic: str) -> Iterator[Future[httpx.Response]]:
    """Begin to wait for what comes; the wait has begun once the server counts it."""
    body = {"from": "latest", "waitMs": WAIT_MS}
    with ThreadPoolExecutor(1) as pool:
        poll = pool.submit(http.post, f"/api/v1/topics/{topic}/consume", json=body)
        while not poll.done() and metric(http, "tidegate_http_polls_waiting") != 1:
            time.sleep(0.02)
        yield poll


def test_case_21_a_waiting_consume_wakes_when_a_message_comes(
    http: httpx.Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    with _waiting(http, topic) as poll:
        _publish(http, topic, ["hello"])
        answer = poll.result(WOKEN_SECONDS).json()
    assert [message["payload"] for message in answer["messages"]] == ["hello"]


def test_a_waiting_consume_learns_at_once_that_its_topic_is_gone(
    http: httpx.Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    _publish(http, topic, [1])
    with _waiting(http, topic) as poll:
        http.delete(f"/api/v1/topics/{topic}")
        answer = poll.result(WOKEN_SECONDS)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "TOPIC_NOT_FOUND")


def test_a_waiting_consume_gives_up_after_its_time(http: httpx.Client, new_topic: NewTopic) -> None:
    answer = _consume(http, new_topic(), waitMs=50)
    assert answer["messages"] == []


def test_a_retried_publish_is_stored_once(http: httpx.Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    first = _publish(http, topic, ["a", "b"], producerId="p", sequence=0)
    assert _publish(http, topic, ["a", "b"], producerId="p", sequence=0) == first
    assert len(_consume(http, topic)["messages"]) == 2
    gap = http.post(
        f"/api/v1/topics/{topic}/publish",
        json={"messages": [{"payload": 1}], "producerId": "p", "sequence": 5},
    )
    assert (gap.status_code, gap.json()["error"]["code"]) == (409, "SEQUENCE_GAP")


def test_case_24_a_planned_range_reads_the_same_rows_again(http: httpx.Client, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    for number in range(20):
        _publish(http, topic, [number] * 60)
    planned = http.post(f"/api/v1/topics/{topic}/plan", json={"start": "earliest", "messagesMax": 500}).json()
    assert sum(planned["end"].values()) == 500
    assert sum(planned["latest"].values()) == 1200
    for partition, stop in planned["end"].items():
        body = {"partition": int(partition), "from": planned["start"][partition], "to": stop}
        streams = [http.post(f"/api/v1/topics/{topic}/read", json=body).content for _ in range(2)]
        tables = [pa.ipc.open_stream(stream).read_all() for stream in streams]
        assert tables[0] == tables[1]
        assert tables[0].column("offset").to_pylist() == list(range(stop))


def _all_topics(http: httpx.Client) -> Iterator[dict[str, Any]]:
    after: str | None = ""
    while after is not None:
        page = http.get("/api/v1/topics", params={"after": after} if after else {}).json()
        yield from page["topics"]
        after = page["next"]


def test_topics_are_listed_shown_and_deleted(http: httpx.Client, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    _publish(http, topic, [1])
    shown = http.get(f"/api/v1/topics/{topic}").json()
    assert (shown["messages"], len(shown["partitions"])) == (1, 2)
    assert topic in [listed["name"] for listed in _all_topics(http)]
    assert http.delete(f"/api/v1/topics/{topic}").status_code == 200
    assert http.get(f"/api/v1/topics/{topic}").status_code == 404
    assert http.post("/api/v1/topics", json={"name": topic}).status_code == 201
    assert _consume(http, topic)["messages"] == []


@pytest.mark.parametrize("name", ["", "a..b", ".a", "a b", "ä", "x" * 201, "a/b", "1a"])
def test_bad_topic_names_are_refused(http: httpx.Client, name: str) -> None:
    answer = http.post("/api/v1/topics", json={"name": name})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "NAME_INVALID")
    assert answer.json()["error"]["hint"]


def test_only_what_is_stored_is_counted(http: httpx.Client, new_topic: NewTopic) -> None:
    path = f"/api/v1/topics/{new_topic()}/publish"
    body = {"messages": [{"payload": 1}, {"payload": 1}]}
    before = http.get("/api/v1/status").json()["messagesTotal"]
    for _ in range(3):
        http.post(path, json=body, headers={"Idempotency-Key": f"count-{path}"}).raise_for_status()
    assert http.get("/api/v1/status").json()["messagesTotal"] == before + 2
    for start in (0, 0, 1):
        http.post(path, json={**body, "producerId": "p", "sequence": start}).raise_for_status()
    assert http.get("/api/v1/status").json()["messagesTotal"] == before + 5


@pytest.mark.parametrize("query", ["producer=p", "sequence=0&producerId=p&dryRun=1", "x"])
def test_a_parameter_that_publish_does_not_know_is_refused(
    http: httpx.Client, new_topic: NewTopic, query: str
) -> None:
    topic = new_topic()
    answer = http.post(f"/api/v1/topics/{topic}/publish?{query}", json={"messages": [{"payload": 1}]})
    assert answer.status_code == 422
    assert query.rpartition("&")[2].partition("=")[0] in answer.json()["error"]["message"]
    assert http.get(f"/api/v1/topics/{topic}").json()["messages"] == 0


def test_an_encoded_body_is_refused_with_what_to_do(http: httpx.Client, new_topic: NewTopic) -> None:
    path = f"/api/v1/topics/{new_topic()}/publish"
    content = b'{"messages": [{"payload": 1}]}'
    headers = {"Content-Type": "application/json"}
    sent = http.post(path, content=gzip.compress(content), headers={**headers, "Content-Encoding": "gzip"})
    assert (sent.status_code, sent.json()["error"]["code"]) == (415, "CONTENT_TYPE_UNSUPPORTED")
    assert "gzip" in sent.json()["error"]["message"]
    assert "Content-Encoding" in sent.json()["error"]["hint"]
    plain = http.post(path, content=content, headers={**headers, "Content-Encoding": "identity"})
    assert plain.status_code == 200
