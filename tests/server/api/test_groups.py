"""Consumer groups over real HTTP: leases, acknowledgements, dead letters, long polls, resets."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
import pyarrow as pa
import pytest

from tests.server.group_client import Group, code, leases, offsets, publish
from tidegate.model.wire.topics import TopicChangeResponse

ARROW = "application/vnd.apache.arrow.stream"


def test_two_members_get_different_messages_and_ack_their_own(http: httpx.Client, pair: Any) -> None:
    """Case 18: B's ack never drops what A holds."""
    a, b = pair
    publish(http, a.topic, 6)
    first, second = a.take(3), b.take(3)
    assert offsets(first) == [0, 1, 2] and offsets(second) == [3, 4, 5]
    assert [message["deliveries"] for message in first] == [1, 1, 1]
    assert b.done("ack", acks=[{"partition": 0, "uptoOffset": 5}]) == {"acked": 3, "position": {"0": 0}}
    assert a.take() == []
    assert a.done("ack", leases=leases(first)[:2])["position"] == {"0": 2}
    assert a.done("ack", acks=[{"partition": 0, "uptoOffset": 2}]) == {"acked": 1, "position": {"0": 6}}
    assert a.shown()["lag"] == 0


def test_lease_that_ran_out_comes_again_and_its_first_holder_cannot_ack(
    http: httpx.Client, pair: Any
) -> None:
    """Case 18: who comes back late cannot ack another's lease; the rest of the list is done."""
    a, b = pair
    publish(http, a.topic, 2)
    also = a.take(1)
    held = a.take(1, leaseMs=60)
    again = b.take(1, waitMs=20_000)
    assert offsets(again) == [1] and again[0]["deliveries"] == 2
    late = a.ask("ack", leases=leases(held) + leases(also))
    assert late.status_code == 409 and code(late) == "LEASE_LOST"
    details = late.json()["error"]["details"]
    assert details["leases"] == leases(held) and details["acked"] == 1
    assert b.done("ack", leases=leases(again)) == {"acked": 1, "position": {"0": 2}}


def test_named_member_cannot_act_on_what_another_holds(http: httpx.Client, pair: Any) -> None:
    """Case 18: B's ack never drops what A holds; a text that is no lease is lost, and the others are done."""
    a, b = pair
    publish(http, a.topic, 2)
    (first, second) = a.take(2)
    for verb in ("ack", "nack", "extend"):
        answer = b.ask(verb, leases=[first["lease"]])
        assert answer.status_code == 409 and code(answer) == "LEASE_LOST", verb
    mixed = a.ask("ack", leases=["nonsense", first["lease"], "0.zz.1"])
    assert mixed.status_code == 409
    details = mixed.json()["error"]["details"]
    assert (details["leases"], details["acked"]) == (["nonsense", "0.zz.1"], 1)
    nobody = Group(http, a.topic)
    assert nobody.done("ack", leases=[second["lease"]]) == {"acked": 1, "position": {"0": 2}}


def test_extended_lease_is_kept(http: httpx.Client, pair: Any) -> None:
    a, b = pair
    publish(http, a.topic, 2)
    held = a.take(1, leaseMs=5000)
    assert a.done("extend", leases=leases(held), leaseMs=600_000)["extended"] == 1
    # One that is taken later for as long, and not extended, is the first to come again.
    assert offsets(a.take(1, leaseMs=5000)) == [1]
    assert offsets(b.take(2, waitMs=60_000)) == [1]
    assert a.done("ack", leases=leases(held))["acked"] == 1
    assert a.done("extend", leases=[])["extended"] == 0


def test_nacked_message_comes_again_after_its_delay(http: httpx.Client, pair: Any) -> None:
    a, b = pair
    publish(http, a.topic, 3)
    long, short, rest = leases(a.take(3))
    done = {"nacked": 1, "dead": 0}
    assert a.done("nack", leases=[long], delayMs=3_600_000, reason="not now") == done
    assert b.take(1) == []
    assert a.done("nack", leases=[short], delayMs=200, reason="soon") == done
    again = b.take(1, waitMs=20_000)
    assert offsets(again) == [1] and again[0]["deliveries"] == 2
    assert a.done("nack", leases=[rest], release=True) == done
    assert [(m["offset"], m["deliveries"]) for m in b.take(1)] == [(2, 1)]


def test_message_that_keeps_failing_becomes_a_dead_letter(http: httpx.Client, pair: Any) -> None:
    """Case 18: after n deliveries they go to the dead-letter topic with the reason."""
    a, _ = pair
    publish(http, a.topic, 1, key="k")
    for delivery in range(1, 17):
        (message,) = a.take(1)
        assert message["deliveries"] == delivery
        gone = a.done("nack", leases=[message["lease"]], reason=f"try {delivery}")
        assert gone == {"nacked": 1, "dead": 1 if delivery == 16 else 0}
    assert a.take(1) == [] and a.shown()["lag"] == 0
    dead = http.post(f"/api/v1/topics/{a.topic}.dead/consume", json={}).json()["messages"]
    assert [(m["key"], m["op"], m["source"]) for m in dead] == [("k", "DEAD", a.topic)]
    payload = dead[0]["payload"]
    assert payload["reason"] == "try 16" and payload["payload"] == {"n": 0}
    origin = payload["origin"]
    assert (origin["topic"], origin["partition"], origin["offset"], origin["group"]) == (a.topic, 0, 0, "g")
    assert origin["messageId"] == message["messageId"] and origin["deliveries"] == 16


def test_dead_at_once_when_its_consumer_says_so(http: httpx.Client, pair: Any) -> None:
    a, _ = pair
    publish(http, a.topic, 2)
    (message, other) = a.take(2)
    assert a.done("nack", leases=[message["lease"]], dead=True, reason="no such user")["dead"] == 1
    assert a.done("ack", leases=[other["lease"]])["position"] == {"0": 2}


def test_first_consume_fixes_the_position_even_when_empty(http: httpx.Client, pair: Any) -> None:
    """Case 19: a group's position wins over FROM; without a group a read changes nothing."""
    a, _ = pair
    publish(http, a.topic, 3)
    assert a.take(**{"from": "latest"}) == []
    publish(http, a.topic, 2)
    stateless = http.post(f"/api/v1/topics/{a.topic}/consume", json={"from": "earliest"}).json()["messages"]
    assert offsets(stateless) == [0, 1, 2, 3, 4] and stateless[0]["lease"] is None
    assert offsets(a.take(**{"from": "earliest"})) == [3, 4]


def test_acks_that_cannot_be_are_refused(http: httpx.Client, pair: Any) -> None:
    """Case 19: past the end, to a partition that is not there: a clear error. Backwards: no-op."""
    a, _ = pair
    publish(http, a.topic, 3)
    unknown = a.ask("ack", acks=[{"partition": 0, "uptoOffset": 0}])
    assert unknown.status_code == 404 and code(unknown) == "GROUP_NOT_FOUND"
    held = a.take()
    beyond = a.ask("ack", acks=[{"partition": 0, "uptoOffset": 3}])
    assert beyond.status_code == 416 and beyond.json()["error"]["details"]["latest"] == 3
    elsewhere = a.ask("ack", acks=[{"partition": 7, "uptoOffset": 0}])
    assert elsewhere.status_code == 404 and code(elsewhere) == "PARTITION_NOT_FOUND"
    assert a.done("ack", acks=[{"partition": 0, "uptoOffset": 2}])["acked"] == 3
    assert a.done("ack", acks=[{"partition": 0, "uptoOffset": 0}]) == {"acked": 0, "position": {"0": 3}}
    twice = a.ask("ack", leases=leases(held)[:1])
    assert code(twice) == "LEASE_LOST"


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("ack", {}),
        ("ack", {"acks": [], "leases": []}),
        ("ack", {"acks": [{"uptoOffset": 1}, {"uptoOffset": 2}]}),
        ("nack", {"leases": [], "delayMs": -1}),
        ("nack", {"leases": [], "reason": "x" * 3000}),
        ("nack", {"leases": [], "release": True, "dead": True}),
        ("extend", {"leases": [], "leaseMs": 0}),
        ("extend", {"leases": [], "leaseMs": 10**12}),
        ("consume", {"leaseMs": 0}),
        ("consume", {"limit": 0}),
        ("consume", {"waitMs": -1}),
        ("consume", {"from": "middle"}),
        ("reset", {"to": "nowhere"}),
        ("reset", {"to": {"offset": 1, "after": 2}}),
        ("consume", {"group": ""}),
        ("consume", {"group": "a\u0000b"}),
        ("consume", {"group": "x" * 300}),
        ("consume", {"member": ""}),
        ("consume", {"colour": "red"}),
    ],
)
def test_wrong_requests_are_refused_with_a_reason(
    http: httpx.Client, new_topic: Callable[..., str], verb: str, body: dict[str, Any]
) -> None:
    group = Group(http, new_topic())
    publish(http, group.topic, 1)
    group.take(1)
    answer = group.ask(verb, **body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]["message"]


def test_lease_without_a_group_is_refused(http: httpx.Client, new_topic: Callable[..., str]) -> None:
    answer = http.post(f"/api/v1/topics/{new_topic()}/consume", json={"leaseMs": 5})
    assert answer.status_code == 422


def test_cleared_topic_tells_the_group_once_what_it_missed(http: httpx.Client, pair: Any) -> None:
    """Case 20: a group goes on at the earliest and says how many it missed."""
    a, _ = pair
    publish(http, a.topic, 10)
    a.done("ack", leases=leases(a.take(4)))
    cleared = http.post(f"/api/v1/topics/{a.topic}/clear")
    assert cleared.json() == {"cleared": 10}
    publish(http, a.topic, 2)
    answer = a.done("consume")
    assert offsets(answer["messages"]) == [10, 11] and answer["missed"] == {"0": 6}
    assert "missed" not in a.done("consume")
    late = Group(http, a.topic, "late").done("consume", **{"from": {"offset": 4}})
    assert offsets(late["messages"]) == [10, 11] and late["missed"] == {"0": 6}
    stateless = http.post(f"/api/v1/topics/{a.topic}/consume", json={"from": {"offset": 3}})
    assert stateless.status_code == 416 and stateless.json()["error"]["details"]["earliest"] == 10
    assert a.shown()["missed"] == 6


def test_reset_moves_the_group_and_takes_its_leases(http: httpx.Client, pair: Any) -> None:
    a, _ = pair
    publish(http, a.topic, 5)
    held = a.take(3)
    assert a.done("reset", to={"offset": 1}) == {"position": {"0": 1}}
    assert code(a.ask("ack", leases=leases(held)[:1])) == "LEASE_LOST"
    assert offsets(a.take()) == [1, 2, 3, 4]
    assert a.done("reset", to="latest") == {"position": {"0": 5}}
    assert a.take() == []
    assert a.done("reset", to="earliest") == {"position": {"0": 0}}
    assert a.ask("reset", to={"offset": 99}).status_code == 416
    assert Group(http, a.topic, "other").ask("reset", to="earliest").status_code == 404


def test_reset_to_a_time(http: httpx.Client, pair: Any) -> None:
    a, _ = pair
    publish(http, a.topic, 2)
    a.take()
    time.sleep(0.05)
    publish(http, a.topic, 2)
    times = [m["ts"] for m in http.post(f"/api/v1/topics/{a.topic}/consume", json={}).json()["messages"]]
    assert a.done("reset", to={"timestamp": times[2]}) == {"position": {"0": 2}}


def test_deleted_group_begins_anew(http: httpx.Client, pair: Any) -> None:
    a, _ = pair
    publish(http, a.topic, 2)
    held = a.take()
    assert http.delete(f"/api/v1/topics/{a.topic}/groups/g").json() == {"deleted": "g"}
    assert http.delete(f"/api/v1/topics/{a.topic}/groups/g").status_code == 404
    assert code(a.ask("ack", leases=leases(held))) == "GROUP_NOT_FOUND"
    assert offsets(a.take()) == [0, 1]
    assert code(a.ask("ack", leases=leases(held))) == "LEASE_LOST"


def test_group_takes_partitions_in_turn(http: httpx.Client, new_topic: Callable[..., str]) -> None:
    """Case 21: CONSUME without PARTITION takes from all partitions in turn."""
    group = Group(http, new_topic(3))
    for partition in range(3):
        publish(http, group.topic, 4, partition=partition)
    seen = [group.take(1)[0]["partition"] for _ in range(6)]
    assert sorted(seen[:3]) == [0, 1, 2] and sorted(seen[3:]) == [0, 1, 2]
    assert {m["partition"] for m in group.take(partition=2)} == {2}


def test_added_partitions_lose_no_message_of_a_group(
    http: httpx.Client, new_topic: Callable[..., str]
) -> None:
    group = Group(http, new_topic(1))
    group.take(100, **{"from": "latest"})
    answer = http.patch(f"/api/v1/topics/{group.topic}", json={"partitions": 3, "retentionSeconds": 60})
    changed = msgspec.json.decode(answer.content, type=TopicChangeResponse)
    assert len(changed.partitions) == 3 and "order of a key" in (changed.notice or "")
    for partition in range(3):
        publish(http, group.topic, 1, partition=partition)
    assert sorted(m["partition"] for m in group.take(100, **{"from": "latest"})) == [0, 1, 2]
    fewer = http.patch(f"/api/v1/topics/{group.topic}", json={"partitions": 2})
    assert fewer.status_code == 422
    kept = http.patch(f"/api/v1/topics/{group.topic}", json={"retentionSeconds": None}).json()
    assert kept["retentionSeconds"] is None and kept["notice"] is None
    assert http.patch(f"/api/v1/topics/{group.topic}", json={}).status_code == 422
    assert http.patch(f"/api/v1/topics/{group.topic}", json={"retentionSeconds": 0}).status_code == 422


def test_description_of_a_group_tells_who_holds_what(http: httpx.Client, pair: Any) -> None:
    a, b = pair
    publish(http, a.topic, 6)
    held = a.take(2)
    b.take(1)
    a.done("ack", leases=leases(held)[:1])
    shown = a.shown()
    assert (shown["lag"], shown["inFlight"], shown["waiting"], shown["missed"]) == (5, 2, 0, 0)
    assert {m["member"]: m["holds"] for m in shown["members"]} == {"a": 1, "b": 1}
    (part,) = shown["partitions"]
    assert (part["start"], part["position"], part["next"], part["end"]) == (0, 1, 3, 6)
    assert part["lastDelivered"]["offset"] == 2 and part["lastAcked"]["offset"] == 0


def test_description_of_a_group_has_its_counters(http: httpx.Client, pair: Any) -> None:
    def counted() -> list[int]:
        shown = a.shown()
        return [shown[name] for name in ("delivered", "redelivered", "acked", "nacked")]

    a, b = pair
    publish(http, a.topic, 6)
    held = a.take(2)
    a.done("ack", leases=leases(held)[:1])
    assert counted() == [2, 0, 1, 0]
    b.done("nack", leases=leases(b.take(1)))
    assert counted() == [3, 0, 1, 1]
    b.take(1)
    assert counted() == [4, 1, 1, 1]


def test_arrow_answer_carries_leases(http: httpx.Client, pair: Any) -> None:
    a, _ = pair
    publish(http, a.topic, 3, key="k")
    answer = http.post(
        f"/api/v1/topics/{a.topic}/consume", json={"group": "g", "member": "a"}, headers={"Accept": ARROW}
    )
    table = pa.ipc.open_stream(io.BytesIO(answer.content)).read_all()
    assert table.column("deliveries").to_pylist() == [1, 1, 1]
    assert table.column("payload").to_pylist() == ['{"n":0}', '{"n":1}', '{"n":2}']
    assert table.schema.metadata[b"tidegate.nextOffsets"] == b'{"0":3}'
    assert a.done("ack", leases=table.column("lease").to_pylist())["acked"] == 3


def test_group_whose_name_has_a_slash_is_deleted(http: httpx.Client, new_topic: Callable[..., str]) -> None:
    group = Group(http, new_topic(), group="team/service ü")
    group.take()
    answer = http.delete(f"/api/v1/topics/{group.topic}/groups/team%2Fservice%20%C3%BC")
    assert (answer.status_code, answer.json()) == (200, {"deleted": "team/service ü"})


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (f"{ARROW}", ARROW),
        (f"{ARROW}, application/json", ARROW),
        (f"{ARROW};q=0.1, application/json;q=0.9", "application/json"),
        (f"{ARROW};q=0", "application/json"),
        (f"{ARROW};q=x", ARROW),
    ],
)
def test_arrow_is_given_where_it_is_wanted_most(
    http: httpx.Client, new_topic: Callable[..., str], accept: str, kind: str
) -> None:
    answer = http.post(f"/api/v1/topics/{new_topic()}/consume", json={}, headers={"Accept": accept})
    assert answer.headers["content-type"] == kind


def test_reader_that_names_no_offset_is_not_told_that_the_log_was_cut(
    http: httpx.Client, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()

    def clear() -> None:
        for _ in range(60):
            publish(http, topic, 3)
            http.post(f"/api/v1/topics/{topic}/clear")

    with ThreadPoolExecutor(1) as pool:
        clearing = pool.submit(clear)
        statuses: set[int] = set()
        while not (statuses and clearing.done()):
            statuses.add(http.post(f"/api/v1/topics/{topic}/consume", json={"limit": 10}).status_code)
        clearing.result()
    assert statuses == {200}
