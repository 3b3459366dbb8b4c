"""Messages that clients cannot read: refused by every door; those that a log has harm no other message."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.cli.calls import tidegate_here
from tests.server.sql_client import Client
from tests.server.topic_client import admin, topic
from tests.topics.bench import Bench, build
from tidegate import connect
from tidegate.errors import RequestInvalid, StorageCorrupt
from tidegate.model.json_limits import DEPTH_MAX, NUMBER_CHARS_MAX
from tidegate.model.tables import Table, TableColumn, TableKind
from tidegate.sdk.agent_policy import Retry
from tidegate.sdk.client import Client as Sdk
from tidegate.storage.group_commit import Staging
from tidegate.storage.rocksdb.engine import RocksEngine
from tidegate.testing.clock import ManualClock
from tidegate.testing.server import RunningServer, running_server
from tidegate.topics.log.record_batch import Origin
from tidegate.topics.payloads import CODEC_FULL, encode_full

__all__ = ["admin", "topic"]  # fixtures

LONG = "1" * (NUMBER_CHARS_MAX + 1)
DEEP = "[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1)
# Beyond what Python reads.
DIGITS = "9" * 5_000
STORED = ['{"n": 0}', f'{{"n": {DIGITS}}}', '{"n": 2}', DEEP, '{"n": 4}']
# What Python takes for another value, what UTF-8 does not have, and what is deep enough for a recursion.
ODD = ["1e400", '{"a": [-1e400000]}', '"\\ud800"', '{"\\udc00": 1}', "[" * 900 + "null" + "]" * 900]


@pytest.fixture
def client(server: RunningServer) -> Iterator[Sdk]:
    with connect(server.url, token=server.token) as found:
        yield found


@pytest.mark.parametrize("payload", [LONG, DEEP, f'{{"a": [1, -0.{LONG}]}}'])
def test_every_door_refuses_them_and_stores_no_part_of_the_request(
    admin: Client, client: Sdk, topic: str, payload: str
) -> None:
    body = f'{{"messages": [{{"payload": 1}}, {{"payload": {payload}}}]}}'
    answer = admin.http.post(
        f"/topics/{topic}/publish", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["message"].startswith("Message 1 is not readable for every client: it ")
    assert error["hint"] == "Send long numbers as texts, and nest less."
    with pytest.raises(RequestInvalid, match="Message 1 is not readable"):
        client.topic(topic).publish_arrow(pa.table({"payload": ["1", payload]}))
    # The door of the Spark sink.
    messages = pa.table({"payload": ["1", payload]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, messages.schema) as writer:
        writer.write_table(messages)
    part = admin.http.post(
        f"/topics/{topic}/parts?writer=w&batch=0",
        content=sink.getvalue().to_pybytes(),
        headers={"Content-Type": "application/vnd.apache.arrow.stream"},
    )
    assert "Message 1 is not readable" in part.json()["error"]["message"]
    refused = admin.refused(f"PUBLISH INTO {topic} VALUES ('1'), (?)", [payload])
    assert "row 2 of VALUES is not readable for every client" in refused["message"]
    assert client.topics.show(topic)["messages"] == 0


def test_columns_of_json_refuse_them_so_that_change_feeds_have_none(admin: Client, topic: str) -> None:
    admin.run("CREATE SHARED TABLE IF NOT EXISTS shop.documents (id INT PRIMARY KEY, body JSON)")
    admin.run(f"ALTER TOPIC {topic} ADD SOURCE shop.documents ON INSERT WITH (payload = 'full')")
    for number, payload in enumerate((LONG, DEEP)):
        refused = admin.refused("INSERT INTO shop.documents VALUES (?, ?)", [number, payload])
        assert "is not readable for every client" in refused["message"]
    refused = admin.refused("INSERT INTO shop.documents VALUES (2, ?)", [{"a": json.loads(DEEP)}])
    assert "parameter $1 is nested more than 128 levels deep" in refused["message"]
    limit = "[" * DEPTH_MAX + "]" * DEPTH_MAX
    admin.run("INSERT INTO shop.documents VALUES (3, ?)", [limit])
    (message,) = admin.run(f"CONSUME FROM {topic}")["rows"]
    assert limit in json.dumps(message)


def test_what_clients_read_is_stored(client: Sdk, topic: str) -> None:
    texts = ["9" * 4_500, "[" * 4_500, {"n": int("9" * 40)}, [[[]]] * 500]
    client.topic(topic).publish([{"payload": text} for text in texts])
    assert [message["payload"] for message in client.topic(topic).consume()["messages"]] == texts


def bench_of(home: Path) -> Bench:
    """Open the log of a server that is stopped, to write what its doors refuse."""
    engine: Any = RocksEngine(home / "engine")
    return build(engine, ManualClock(time.time_ns() // 1_000))


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[RunningServer]:
    """Start a server whose topics app.old and app.odd have what an older version took."""
    home = tmp_path / "home"
    with running_server(home) as running, connect(running.url, token=running.token) as first:
        first.topics.create("app.old")
        first.topics.create("app.odd")
    bench = bench_of(home)
    for name, texts in (("app.old", STORED), ("app.odd", [*ODD, '"good"'])):
        bench.publish(bench.directory.get("default", name), [text.encode() for text in texts])
    bench.committer.close()
    bench.engine.close()
    with running_server(home) as running:
        yield running


def test_stored_ones_are_text_with_a_mark_and_harm_no_other(stored: RunningServer) -> None:
    with connect(stored.url, token=stored.token) as client:
        old = client.topic("app.old")
        for page in (old.consume(), old.consume(group="g", lease_ms=60_000)):
            messages = page["messages"]
            assert [one.get("unreadable") is None for one in messages] == [True, False, True, True, True]
            assert messages[1]["payload"] == STORED[1]
            assert [messages[at]["payload"] for at in (0, 2, 4)] == [{"n": 0}, {"n": 2}, {"n": 4}]
        leases = [str(message["lease"]) for message in messages]
        assert old.nack("g", [leases[1]], dead=True, reason="too long")["dead"] == 1
        assert old.ack("g", [leases[0], *leases[2:]])["acked"] == 4
        assert old.groups()[0]["lag"] == 0

        seen: list[Any] = []
        with old.consumer(group="loop") as consumer:
            for message in consumer:
                seen.append(message["payload"])
                if len(seen) == len(STORED):
                    break
        assert (seen[0], seen[1], seen[4]) == ({"n": 0}, STORED[1], {"n": 4})


def test_what_is_no_value_of_python_is_text_and_never_another_value(stored: RunningServer) -> None:
    with connect(stored.url, token=stored.token) as client:
        odd = client.topic("app.odd")
        messages = odd.consume(group="g", lease_ms=60_000)["messages"]
        assert [one.get("unreadable") is None for one in messages] == [False] * 4 + [True, True]
        assert [one["payload"] for one in messages[:4]] == ODD[:4]
        assert messages[5]["payload"] == "good"
        assert odd.nack("g", [str(one["lease"]) for one in messages], dead=True)["dead"] == 6
    shown = tidegate_here("topic", "consume", "app.odd", "--json", home=stored.home)
    # `Infinity` is no JSON: other programs could not read the line.
    lines = [json.loads(line, parse_constant=pytest.fail) for line in shown.stdout.splitlines()]
    assert [line["payload"] for line in lines[:4]] == ODD[:4]
    answer = tidegate_here("topic", "redrive", "app.odd", "--yes", "--json", home=stored.home)
    assert json.loads(answer.stdout) == {"sent": 1, "leftOut": 4, "refused": 1}


@pytest.mark.parametrize("payload", ["9" * 5_000, "[" * 100_000])
def test_the_command_line_refuses_a_payload_that_it_cannot_read(server: RunningServer, payload: str) -> None:
    answer = tidegate_here("topic", "publish", "app.any", payload, home=server.home)
    assert answer.returncode == 1
    assert "Payload 1 is not JSON" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_what_is_no_json_breaks_no_answer(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running_server(home) as running, connect(running.url, token=running.token) as first:
        first.topics.create("app.broken")
    broken = [
        b'{"a":',
        b'"abc',
        b"1]}",
        b"1,2",
        b'1},{"payload":2',
        b"NaN",
        b'"\xff"',
        b"[" * 9_000 + b"]" * 9_000,
    ]
    bench = bench_of(home)
    payloads = [part for payload in broken for part in (b'"good"', payload)]
    bench.publish(bench.directory.get("default", "app.broken"), payloads)
    bench.committer.close()
    bench.engine.close()
    with running_server(home) as running, connect(running.url, token=running.token) as client:
        topic = client.topic("app.broken")
        for _ in range(2):
            messages = topic.consume(group="g", lease_ms=60_000)["messages"]
            assert len(messages) == len(payloads)
            assert [one["payload"] for one in messages] == [
                "good" if payload == b'"good"' else payload.decode(errors="replace") for payload in payloads
            ]
            assert ["unreadable" in one for one in messages] == [False, True] * len(broken)
            leases = [str(one["lease"]) for one in messages]
            topic.nack("g", leases)
        page = topic.consume(group="g", lease_ms=60_000)["messages"]
        leases = [str(one["lease"]) for one in page]
        assert topic.nack("g", leases[1::2], dead=True)["dead"] == len(broken)
        assert topic.ack("g", leases[::2])["acked"] == len(broken)
        letters = client.topic("app.broken.dead").consume()["messages"]
        assert ["unreadable" in letter for letter in letters] == [True] * len(broken)


def test_an_agent_fails_on_them_alone(stored: RunningServer) -> None:
    done: list[int] = []
    with connect(stored.url, token=stored.token) as client:
        agent = client.topic("app.old").agent("ai", workers=1)

        def work(message: Any) -> None:
            if message.get("unreadable") or isinstance(message["payload"], list):
                raise ValueError("not for me")
            done.append(message["payload"]["n"])
            if len(done) == 3:
                agent.stop()

        agent.run(work)
    assert done == [0, 2, 4]


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[RunningServer]:
    """Start a server whose topic app.old has four messages, the second with a damaged payload."""
    home = tmp_path / "home"
    with running_server(home) as running, connect(running.url, token=running.token) as first:
        first.topics.create("app.old")
    bench = bench_of(home)
    topic = bench.directory.get("default", "app.old")
    columns = (TableColumn("id", "BIGINT"),)
    table = Table(7, "default", "app", "rows", TableKind.SHARED, columns, ("id",), 0)

    def stage(staging: Staging) -> None:
        number = bench.schemas.stage_number(staging, topic.id, table, 0)
        payloads = [*encode_full([(0,)]), b"\xc1", *encode_full([(2,), (3,)])]
        origin = Origin("INSERT", "app.rows", "full", CODEC_FULL, number)
        bench.log.stage_append(staging, topic, 0, [None] * 4, payloads, origin)

    bench.committer.submit(stage).result(60)
    bench.committer.close()
    bench.engine.close()
    with running_server(home) as running:
        yield running


def test_a_damaged_payload_is_delivered_alone_with_a_mark(damaged: RunningServer) -> None:
    with connect(damaged.url, token=damaged.token) as client:
        old = client.topic("app.old")
        start: Any = "earliest"
        ids: list[Any] = []
        for group in (None, None, None, "g", "g", "g"):
            page = old.consume("earliest" if group else start, group=group)
            start = {"offsets": page["nextOffsets"]}
            for message in page["messages"]:
                is_damaged = message["offset"] == 1
                assert ("offset 1" in message.get("unreadable", "")) is is_damaged
                assert (message["payload"] is None) is is_damaged
                assert message["source"] == "app.rows"
                ids.append(-1 if is_damaged else message["payload"]["id"])
                if is_damaged and group is not None:
                    assert old.nack("g", [str(message["lease"])], dead=True)["dead"] == 1
                elif group is not None:
                    assert old.ack("g", [str(message["lease"])])["acked"] == 1
        assert ids == [0, -1, 2, 3] * 2
        assert old.groups()[0]["lag"] == 0


def test_an_answer_that_cannot_mark_a_damaged_payload_fails_and_leases_it_alone(
    damaged: RunningServer,
) -> None:
    with connect(damaged.url, token=damaged.token) as client:
        old = client.topic("app.old")
        with pytest.raises(StorageCorrupt, match="offset 1"):
            old.consume_arrow({"offset": 1})
        with pytest.raises(StorageCorrupt, match="offset 1"):
            client.sql("CONSUME FROM app.old GROUP 'sql' FROM OFFSET 1")
        assert [one["payload"]["id"] for one in old.consume(group="sql")["messages"]] == [2, 3]
    shown = tidegate_here("topic", "consume", "app.old", home=damaged.home).stdout.splitlines()
    assert ["unreadable: Damaged bytes in topic 'app.old'" in line for line in shown] == [
        False,
        True,
        False,
        False,
    ]


def test_an_agent_outlives_an_error_that_is_no_utf_8(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    # What is captured goes to another process as UTF-8 when tests run side by side.
    caplog.set_level(logging.CRITICAL, "tidegate.agent")
    with connect(server.url, token=server.token) as client:
        topic = client.topics.create("app.halves")
        topic.publish([{"payload": '"\\ud800"'}, {"payload": '"fine"'}])
        agent = topic.agent("ai", workers=1, retry=Retry(attempts=1))

        def work(message: Any) -> None:
            text = json.loads(message["payload"])
            if text == "fine":
                agent.stop()
            else:
                raise ValueError(f"what is {text}?")

        agent.run(work)
        (letter,) = client.topic("app.halves.dead").consume()["messages"]
        assert letter["payload"]["reason"] == "ValueError: what is \\ud800?"


def test_an_agent_outlives_a_damaged_payload(damaged: RunningServer) -> None:
    done: list[int] = []
    with connect(damaged.url, token=damaged.token) as client:
        agent = client.topic("app.old").agent("ai", workers=1)

        def work(message: Any) -> None:
            if message.get("unreadable"):
                raise ValueError("not for me")
            done.append(message["payload"]["id"])
            if len(done) == 3:
                agent.stop()

        agent.run(work)
    assert done == [0, 2, 3]


def test_dead_letters_that_the_topic_refuses_are_stepped_over(stored: RunningServer) -> None:
    with connect(stored.url, token=stored.token) as client:
        old = client.topic("app.old")
        leases = [str(message["lease"]) for message in old.consume(group="g")["messages"]]
        assert old.nack("g", leases, dead=True, reason="no")["dead"] == 5
        words = ("topic", "redrive", "app.old", "--yes")
        answer = tidegate_here(*words, home=stored.home)
        assert answer.returncode == 0, answer.stderr
        text = " ".join(answer.stdout.split())
        assert text.startswith("Sent 3 letters to app.old again; app.old.dead keeps them as well.")
        assert "Left out: 1 letter without a message to send." in text
        assert "Refused by app.old: 1 letter; the first: Message 0 is not readable for every client" in text
        assert client.topics.show("app.old")["messages"] == 8
        again = json.loads(tidegate_here(*words, "--json", home=stored.home).stdout)
        assert again == {"sent": 0, "leftOut": 0, "refused": 0}
        shown = tidegate_here("topic", "consume", "app.old", "--json", home=stored.home)
        lines = [json.loads(line) for line in shown.stdout.splitlines()]
        assert [line["payload"] for line in lines if "unreadable" in line] == [STORED[1]]
