"""Leases belong to the user who fetched, over real HTTP: two readers, and an administrator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

import tidegate
from tests.server.accounts import Office, Person, refusal
from tests.server.group_client import Group, leases, offsets, publish
from tidegate.errors import Forbidden
from tidegate.testing.server import RunningServer, running_server

_numbers = itertools.count()


@dataclass(frozen=True)
class Room:
    """A topic with messages, the reader who consumes, another reader, and an administrator."""

    server: RunningServer
    office: Office
    topic: str
    alice: Person
    mallory: Person
    root: Person

    def member(self, person: Person, member: str | None = None) -> Group:
        return Group(person.http, self.topic, "g", member)

    def sql(self, person: Person, text: str) -> httpx.Response:
        return person.http.post("/api/v1/sql", json={"sql": text})


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    with running_server(tmp_path_factory.mktemp("leases") / "home") as server:
        office = Office(server)
        yield office
        office.close()


@pytest.fixture
def room(office: Office) -> Room:
    topic = f"app.leases_{next(_numbers)}"
    office.ask("POST", "/api/v1/topics", json={"name": topic})
    publish(office.admin, topic, 4)
    people = (office.person("reader"), office.person("reader"), office.person("admin"))
    return Room(office.server, office, topic, *people)


def forbidden(answer: httpx.Response) -> dict[str, Any]:
    """Return the error of an answer that is refused because of the user."""
    assert refusal(answer) == (403, "FORBIDDEN"), answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert "topic.ack_others" in error["message"] and "another user" in error["hint"]
    return error


def untouched(room: Room, held: list[dict[str, Any]]) -> None:
    """Check that the holder still holds everything."""
    shown = room.member(room.alice).shown()
    assert (shown["lag"], shown["inFlight"], shown["waiting"]) == (4, len(held), 0)
    assert room.member(room.mallory, "m").take() == []
    assert room.member(room.alice).done("extend", leases=leases(held))["extended"] == len(held)


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
def test_another_user_who_knows_the_lease_ids_is_refused(room: Room, verb: str) -> None:
    held = room.member(room.alice).take()
    for member in (None, room.alice.name, "m"):
        answer = room.member(room.mallory, member).ask(verb, leases=leases(held))
        # A named member that does not hold the lease has lost it, whoever asks.
        assert refusal(answer) == ((409, "LEASE_LOST") if member == "m" else (403, "FORBIDDEN"))
    forbidden(room.member(room.mallory).ask(verb, leases=leases(held)))
    untouched(room, held)


@pytest.mark.parametrize(
    "body",
    [{}, {"delayMs": 60_000}, {"release": True}, {"dead": True}],
    ids=["now", "later", "release", "dead"],
)
def test_another_user_can_send_nothing_back(room: Room, body: dict[str, Any]) -> None:
    held = room.member(room.alice).take()
    forbidden(room.member(room.mallory).ask("nack", leases=leases(held), **body))
    untouched(room, held)


@pytest.mark.parametrize("named", [None, "rd"])
def test_another_user_who_takes_the_name_of_a_member_cannot_acknowledge_up_to_an_offset(
    room: Room, named: str | None
) -> None:
    """`"member": "rd"`: the name of a member is no secret, and the groups endpoint shows it."""
    room.member(room.alice, named).take()
    thief = room.member(room.mallory, named or room.alice.name)
    forbidden(thief.ask("ack", acks=[{"partition": 0, "uptoOffset": 3}]))
    assert room.member(room.alice).shown()["inFlight"] == 4
    assert room.member(room.alice, named).done("ack", acks=[{"partition": 0, "uptoOffset": 3}])["acked"] == 4


def test_statements_are_refused_as_the_endpoints_are(room: Room) -> None:
    held = room.member(room.alice).take()
    lease = held[0]["lease"]
    for text in (
        f"ACK {room.topic} GROUP 'g' LEASES ('{lease}')",
        f"ACK {room.topic} GROUP 'g' MEMBER '{room.alice.name}' UPTO OFFSET 3",
        f"NACK {room.topic} GROUP 'g' LEASES ('{lease}')",
        f"NACK {room.topic} GROUP 'g' LEASES ('{lease}') DEAD",
        f"EXTEND {room.topic} GROUP 'g' LEASES ('{lease}') LEASE '1 hour'",
    ):
        forbidden(room.sql(room.mallory, text))
    untouched(room, held)
    assert room.sql(room.alice, f"ACK {room.topic} GROUP 'g' LEASES ('{lease}')").status_code == 200


def test_a_list_with_one_lease_of_another_user_is_refused_whole(room: Room) -> None:
    (own, *_) = room.member(room.mallory, "m").take(1)
    others = room.member(room.alice).take()
    for verb in ("ack", "nack", "extend"):
        forbidden(room.member(room.mallory).ask(verb, leases=[own["lease"], others[0]["lease"]]))
    assert room.member(room.mallory).done("ack", leases=[own["lease"]])["acked"] == 1


def test_members_of_one_name_and_two_users_acknowledge_their_own(room: Room) -> None:
    first, second = room.member(room.alice, "worker"), room.member(room.mallory, "worker")
    assert offsets(first.take(2)) == [0, 1]
    assert offsets(second.take(2)) == [2, 3]
    done = second.done("ack", acks=[{"partition": 0, "uptoOffset": 3}])
    assert done == {"acked": 2, "position": {"0": 0}}
    assert first.done("ack", acks=[{"partition": 0, "uptoOffset": 3}])["acked"] == 2


def test_every_token_of_a_user_acts_on_the_leases_of_that_user(room: Room) -> None:
    held = room.member(room.alice).take()
    again = room.office.token_of("default", room.alice.name)
    other = Group(again.http, room.topic)
    assert other.done("extend", leases=leases(held[:1]))["extended"] == 1
    assert other.done("nack", leases=leases(held[1:2]))["nacked"] == 1
    assert other.done("ack", leases=leases(held[2:]))["acked"] == 2


@pytest.mark.parametrize("who", ["root", "instance"])
def test_an_administrator_acts_on_the_leases_of_all(room: Room, who: str) -> None:
    root = Group(room.root.http if who == "root" else room.office.admin, room.topic)
    held = room.member(room.alice, "rd").take()
    assert root.done("extend", leases=leases(held[:1]))["extended"] == 1
    assert root.done("nack", leases=leases(held[:1]), dead=True)["dead"] == 1
    assert root.done("ack", leases=leases(held[1:2]))["acked"] == 1
    named = Group(root.http, room.topic, member="rd")
    assert named.done("ack", acks=[{"partition": 0, "uptoOffset": 3}])["acked"] == 2


def test_an_administrator_who_extends_leaves_the_lease_to_its_user(room: Room) -> None:
    held = room.member(room.alice).take()
    assert Group(room.root.http, room.topic).done("extend", leases=leases(held))["extended"] == 4
    forbidden(room.member(room.mallory).ask("ack", leases=leases(held)))
    assert room.member(room.alice).done("ack", leases=leases(held))["acked"] == 4


def test_execute_as_does_not_make_another_holder(room: Room) -> None:
    """It chooses whose rows are meant, and takes no statement about messages."""
    held = room.member(room.alice).take()
    text = f"ACK {room.topic} GROUP 'g' LEASES ('{held[0]['lease']}')"
    for acting_as in (room.alice.name, room.mallory.name):
        for person in (room.mallory, room.root):
            refused = room.sql(person, f"EXECUTE AS '{acting_as}' ({text})")
            assert refusal(refused) == (422, "SQL_UNSUPPORTED")
    untouched(room, held)


def test_users_of_one_name_in_two_tenants_are_two_users(office: Office, room: Room) -> None:
    """An administrator of the instance who acts in another tenant is not that tenant's user of the name."""
    tenant = office.tenant()
    where = {"X-Tenant": tenant}
    office.ask("POST", "/api/v1/users", json={"name": "admin", "roles": ["reader"]}, headers=where)
    local = office.token_of(tenant, "admin")
    office.ask("POST", "/api/v1/topics", json={"name": room.topic}, headers=where)
    visiting = office.client(office.server.token, X_Tenant=tenant)
    publish(visiting, room.topic, 1)
    held = Group(visiting, room.topic, member="admin").take()
    forbidden(Group(local.http, room.topic).ask("ack", leases=leases(held)))
    forbidden(Group(local.http, room.topic).ask("ack", acks=[{"partition": 0, "uptoOffset": 0}]))
    assert Group(visiting, room.topic).done("ack", leases=leases(held))["acked"] == 1


@pytest.mark.parametrize("token", ["0" * 15 + "1", ""], ids=["wrong", "none"])
def test_a_lease_id_with_other_random_bits_holds_nothing(room: Room, token: str) -> None:
    held = room.member(room.alice).take()
    partition, digits, offset = held[0]["lease"].split(".")
    assert len(digits) == 32
    guess = f"{partition}.{digits[:16]}{token}.{offset}"
    for verb in ("ack", "nack", "extend"):
        assert refusal(room.member(room.mallory).ask(verb, leases=[guess])) == (409, "LEASE_LOST")
        assert refusal(room.member(room.alice).ask(verb, leases=[guess])) == (409, "LEASE_LOST")
    untouched(room, held)


def test_two_fetches_share_no_random_bits(room: Room) -> None:
    alice = room.member(room.alice)
    tokens = {alice.take(1)[0]["lease"].split(".")[1][16:] for _ in range(4)}
    assert len(tokens) == 4


def test_the_python_client_says_that_a_lease_is_another_users(room: Room) -> None:
    held = room.member(room.alice).take()
    message: Any = held[0]
    with tidegate.connect(room.server.url, token=room.mallory.token) as client:
        topic, name = client.topic(room.topic), room.alice.name
        with (
            pytest.raises(Forbidden, match=r"topic\.ack_others"),
            topic.consumer("g", member=name) as consumer,
        ):
            consumer.ack(message)
    untouched(room, held)
