"""Topics with dedup_seconds through every door: HTTP in JSON and Arrow, SQL, Python, batches; and upkeep."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

import tidegate
from tests.server.api.test_arrow import ARROW, send, stream
from tests.server.runtime.test_background import with_running
from tests.server.sql_client import Client
from tests.server.topic_client import told
from tidegate.errors import RequestInvalid
from tidegate.ingest.publish import Messages
from tidegate.server.runtime.background import apply_retention
from tidegate.server.runtime.runtime import Runtime
from tidegate.storage.keys import KeySpace, prefix_range
from tidegate.testing.clock import ManualClock
from tidegate.testing.server import RunningServer
from tidegate.topics.definitions import DEDUP_SECONDS_MAX, Retention

NOW_US = 1_800_000_000_000_000
_numbers = itertools.count()


@pytest.fixture
def topic(http: httpx.Client) -> str:
    name = f"once.t{next(_numbers)}"
    answer = http.post("/api/v1/topics", json={"name": name, "partitions": 3, "dedupSeconds": 3600})
    assert answer.status_code == 201, answer.text
    assert (answer.json()["dedupSeconds"], answer.json()["duplicates"]) == (3600, 0)
    return name


def _publish(http: httpx.Client, topic: str, *messages: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    body = {"messages": [*messages], **more}
    answer = http.post(f"/api/v1/topics/{topic}/publish", json=body)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["offsets"])


def _shown(http: httpx.Client, topic: str) -> dict[str, Any]:
    return dict(http.get(f"/api/v1/topics/{topic}").json())


def test_a_duplicate_is_dropped_and_told_where_the_first_one_is(http: httpx.Client, topic: str) -> None:
    one = {"payload": {"order": 1}, "key": "ada", "dedupKey": "order-1"}
    (first,) = _publish(http, topic, one)
    assert "duplicate" not in first
    again = _publish(http, topic, {**one, "key": "bob", "partition": 0}, {"payload": 2}, one)
    assert again[0] == again[2] == {**first, "duplicate": True}
    assert "duplicate" not in again[1]
    shown = _shown(http, topic)
    assert (shown["messages"], shown["duplicates"]) == (2, 2)


def test_a_topic_without_dedup_seconds_refuses_a_key(http: httpx.Client, topic: str) -> None:
    http.post("/api/v1/topics", json={"name": f"{topic}.plain"})
    body = {"messages": [{"payload": 1}, {"payload": 2, "dedupKey": "k"}]}
    answer = http.post(f"/api/v1/topics/{topic}.plain/publish", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (422, "REQUEST_INVALID")
    assert "takes no dedup keys" in error["message"]
    assert "dedup_seconds" in error["hint"]
    assert _shown(http, f"{topic}.plain")["messages"] == 0
    assert len(_publish(http, f"{topic}.plain", {"payload": 1, "dedupKey": None})) == 1


@pytest.mark.parametrize("seconds", [0, DEDUP_SECONDS_MAX + 1])
def test_a_time_out_of_bounds_is_refused(http: httpx.Client, topic: str, seconds: int) -> None:
    made = http.post("/api/v1/topics", json={"name": f"{topic}.x", "dedupSeconds": seconds})
    changed = http.patch(f"/api/v1/topics/{topic}", json={"dedupSeconds": seconds})
    assert {made.status_code, changed.status_code} == {422}
    assert _shown(http, topic)["dedupSeconds"] == 3600


def test_the_time_is_changed_and_taken_away(http: httpx.Client, topic: str) -> None:
    _publish(http, topic, {"payload": 1, "dedupKey": "k"})
    changed = http.patch(f"/api/v1/topics/{topic}", json={"dedupSeconds": 60}).json()
    assert (changed["dedupSeconds"], changed["retentionSeconds"]) == (60, None)
    assert http.patch(f"/api/v1/topics/{topic}", json={"retentionSeconds": 9}).json()["dedupSeconds"] == 60
    assert _publish(http, topic, {"payload": 1, "dedupKey": "k"})[0]["duplicate"]
    assert http.patch(f"/api/v1/topics/{topic}", json={"dedupSeconds": None}).json()["dedupSeconds"] is None
    answer = http.post(
        f"/api/v1/topics/{topic}/publish", json={"messages": [{"payload": 1, "dedupKey": "k"}]}
    )
    assert answer.status_code == 422


def test_clear_forgets_the_keys(http: httpx.Client, topic: str) -> None:
    _publish(http, topic, {"payload": 1, "dedupKey": "k"})
    assert http.post(f"/api/v1/topics/{topic}/clear", json={}).json() == {"cleared": 1}
    assert "duplicate" not in _publish(http, topic, {"payload": 1, "dedupKey": "k"})[0]


def test_an_arrow_column_has_the_keys(http: httpx.Client, topic: str) -> None:
    columns = {"payload": ["1", "2", "3"], "dedupKey": ["a", None, "a"]}
    places = send(http, topic, stream(columns)).json()["offsets"]
    assert [place.get("duplicate", False) for place in places] == [False, False, True]
    nothing = {"payload": ["1"], "dedupKey": pa.nulls(1)}
    assert "duplicate" not in send(http, topic, stream(nothing)).json()["offsets"][0]


def test_parts_of_a_batch_leave_duplicates_out(http: httpx.Client, topic: str) -> None:
    _publish(http, topic, {"payload": 0, "dedupKey": "a"})
    path, query = f"/api/v1/topics/{topic}", {"writer": "w", "batch": "0"}
    content = stream({"payload": ["1", "2", "3", "4"], "dedupKey": ["a", "b", None, "b"]})
    part = http.post(f"{path}/parts", content=content, headers={"Content-Type": ARROW}, params=query).json()
    body = {"writer": "w", "batch": 0, "parts": [part["part"]]}
    assert http.post(f"{path}/commit", json=body).json() == {
        "committed": True,
        "messages": 4,
        "duplicates": 2,
    }
    assert _shown(http, topic)["messages"] == 3
    assert _publish(http, topic, {"payload": 0, "dedupKey": "b"})[0]["duplicate"]
    http.post("/api/v1/topics", json={"name": f"{topic}.plain"})
    refused = http.post(f"{path}.plain/parts", content=content, headers={"Content-Type": ARROW}, params=query)
    assert refused.status_code == 422


def test_sql_makes_shows_and_publishes(server: RunningServer, topic: str) -> None:
    admin, name = Client(server), f"{topic}.sql"
    admin.run(f"CREATE TOPIC {name} WITH (retention_seconds = 60, dedup_seconds = 60)")
    admin.run(f"ALTER TOPIC {name} SET (dedup_seconds = 120)")
    (row,) = [row for row in told(admin, "SHOW TOPICS") if row["topic"] == name]
    assert (row["retention_seconds"], row["dedup_seconds"]) == (60, 120)
    assert ["dedup_seconds", "120"] in admin.rows(f"DESCRIBE TOPIC {name}")
    assert admin.rows("SELECT dedup_seconds FROM system.topics WHERE topic = ?", [name]) == [[120]]
    publish = f"PUBLISH INTO {name} DEDUP KEYS ('a', ?) VALUES ('1'), ('2')"
    first = told(admin, publish, ["b"])
    assert [row["duplicate"] for row in first] == [False, False]
    again = told(admin, publish, ["a"])
    assert [row["duplicate"] for row in again] == [True, True]
    assert {row["offset"] for row in again} == {first[0]["offset"]}
    assert "duplicate" not in told(admin, f"PUBLISH INTO {name} VALUES ('3')")[0]
    assert told(admin, f"PUBLISH INTO {name} DEDUP KEY 'z' VALUES ('3')")[0]["duplicate"] is False
    assert admin.refused(f"CREATE TOPIC {name}.x WITH (dedup_seconds = 8640001)")["code"] == "REQUEST_INVALID"
    admin.run(f"ALTER TOPIC {name} SET (dedup_seconds = NULL)")
    assert ["dedup_seconds", "none"] in admin.rows(f"DESCRIBE TOPIC {name}")
    assert admin.refused(f"PUBLISH INTO {name} DEDUP KEY 'a' VALUES ('1')")["code"] == "REQUEST_INVALID"


def test_a_table_feeds_such_a_topic_as_any_other(server: RunningServer, topic: str) -> None:
    admin, table = Client(server), f"once.rows{next(_numbers)}"
    admin.run("CREATE NAMESPACE IF NOT EXISTS once")
    admin.run(f"CREATE SHARED TABLE {table} (id INT PRIMARY KEY, v INT)")
    admin.run(f"ALTER TOPIC {topic} ADD SOURCE {table} ON INSERT, UPDATE WITH (payload = 'full')")
    for _ in range(2):
        admin.run(f"UPSERT INTO {table} VALUES (1, 1)")
    assert admin.rows("SELECT messages FROM system.topics WHERE topic = ?", [topic]) == [[2]]


def test_the_python_clients_send_and_tell(server: RunningServer, topic: str) -> None:
    message: Any = {"payload": 1, "dedupKey": "k"}
    with tidegate.connect(server.url, token=server.token) as client:
        made = client.topics.create(f"{topic}.py", dedup_seconds=60)
        (first,) = made.publish([message])
        assert made.publish([message]) == [{**first, "duplicate": True}]
        assert made.producer().publish([message])[0]["duplicate"]
        table = pa.table({"payload": ["1"], "dedupKey": ["k"]})
        assert made.publish_arrow(table)[0]["duplicate"]
        assert client.topics.show(f"{topic}.py")["duplicates"] == 3
        assert client.topics.change(f"{topic}.py", dedup_seconds=None)["dedupSeconds"] is None

    async def refused() -> None:
        async with tidegate.connect_async(server.url, token=server.token) as client:
            with pytest.raises(RequestInvalid, match="takes no dedup keys"):
                await client.topic(f"{topic}.py").publish([message])

    asyncio.run(refused())


def test_upkeep_removes_keys_that_are_over_and_counts_what_was_dropped(tmp_path: Path) -> None:
    clock = ManualClock(NOW_US)

    async def scene(running: Runtime) -> None:
        made = await running.committer.commit(
            lambda staging: running.topics.directory.stage_create(
                staging, "default", "app.once", 1, clock.now_us(), Retention(dedup_seconds=3600)
            )
        )
        messages = Messages([None] * 3, [b"1"] * 3, [None] * 3, ["a", "b", "a"])
        await running.topics.publisher.publish(made, messages)
        clock.advance(3600 + 1800)
        await apply_retention(running)
        stored = [key for key, _ in running.engine.scan(prefix_range(KeySpace.TOPIC_DEDUP))]
        assert len(stored) == 1, "the book alone"
        assert running.topics.log.counters(made, 0).end == 2
        assert running.topics.dedup.dropped_by_tenant() == {"default": 1}

    with_running(tmp_path / "home", clock, scene)
