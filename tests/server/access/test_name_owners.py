"""Producers and sink writers belong to the user who used them first: two writers and an administrator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.ingest.test_batch_commit import stream
from tests.server.accounts import Office, Person, refusal
from tidegate.server.http.responses import ARROW_STREAM
from tidegate.testing.server import running_server

ARROW = {"Content-Type": ARROW_STREAM}
QUERY = "8c18b11f-003b-426d-a6e3-25c55cc1f274"
_numbers = itertools.count()


@dataclass(frozen=True)
class Hall:
    """A topic, its publisher, another one, and an administrator of their tenant."""

    office: Office
    topic: str
    ada: Person
    eve: Person
    root: Person

    def post(self, person: Person, path: str, **more: Any) -> httpx.Response:
        return person.http.post(f"/api/v1/topics/{self.topic}/{path}", **more)

    def publish(self, person: Person, sequence: int, payload: Any) -> httpx.Response:
        body = {"messages": [{"payload": payload}], "producerId": "loader", "sequence": sequence}
        return self.post(person, "publish", json=body)

    def store(self, person: Person, batch: int, payload: str) -> httpx.Response:
        params = {"writer": QUERY, "batch": batch}
        return self.post(person, "parts", params=params, content=stream([payload]), headers=ARROW)

    def commit(self, person: Person, batch: int, *parts: str) -> httpx.Response:
        return self.post(person, "commit", json={"writer": QUERY, "batch": batch, "parts": parts})

    def payloads(self) -> list[Any]:
        answer = self.office.admin.post(f"/api/v1/topics/{self.topic}/consume", json={})
        return [message["payload"] for message in answer.json()["messages"]]


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    with running_server(tmp_path_factory.mktemp("owners") / "home") as server:
        office = Office(server)
        yield office
        office.close()


@pytest.fixture
def hall(office: Office) -> Hall:
    topic = f"app.owned_{next(_numbers)}"
    office.ask("POST", "/api/v1/topics", json={"name": topic})
    return Hall(office, topic, office.person("writer"), office.person("writer"), office.person("admin"))


def owned(answer: httpx.Response) -> None:
    """Check that an answer is refused because the name is another user's, with a way out."""
    assert refusal(answer) == (403, "OWNED_BY_ANOTHER"), answer.text
    assert "used it first" in answer.json()["error"]["hint"]


@pytest.mark.parametrize("attacker", ["eve", "root"])
def test_no_publish_of_another_user_silences_a_producer(hall: Hall, attacker: str) -> None:
    """Under the next number, a message of another would make the producer's own count as sent before."""
    other: Person = getattr(hall, attacker)
    assert hall.publish(hall.ada, 0, "first").status_code == 200
    owned(hall.publish(other, 1, "second"))
    params = {"producerId": "loader", "sequence": 1}
    owned(hall.post(other, "publish", params=params, content=stream(['"second"']), headers=ARROW))
    text = f"PUBLISH INTO {hall.topic} PRODUCER 'loader' SEQUENCE 1 VALUES ('\"second\"')"
    owned(other.http.post("/api/v1/sql", json={"sql": text}))
    for sequence in (1, 0):
        assert hall.publish(hall.ada, sequence, ("first", "second")[sequence]).status_code == 200
    assert hall.payloads() == ["first", "second"]


def test_every_token_of_a_user_continues_the_producers_of_that_user(hall: Hall) -> None:
    hall.publish(hall.ada, 0, "first")
    again = hall.office.token_of("default", hall.ada.name)
    assert hall.publish(again, 0, "first").status_code == 200
    assert hall.publish(again, 1, "second").status_code == 200
    assert hall.payloads() == ["first", "second"]


@pytest.mark.parametrize("attacker", ["eve", "root"])
def test_no_call_of_another_user_silences_a_sink(hall: Hall, attacker: str) -> None:
    """A commit of a high number would make every later batch of the sink count as committed."""
    other: Person = getattr(hall, attacker)
    part = hall.store(hall.ada, 0, '"first"').json()["part"]
    owned(hall.commit(other, 0, part))
    owned(hall.commit(other, 1_000_000))
    owned(hall.store(other, 1_000_000, '"evil"'))
    owned(hall.post(other, "abort", json={"writer": QUERY, "batch": 0, "parts": [part]}))
    assert hall.commit(hall.ada, 0, part).json()["committed"]
    owned(hall.commit(other, 0))
    owned(hall.commit(other, 1))
    again = hall.store(hall.ada, 1, '"second"').json()["part"]
    assert hall.commit(hall.ada, 1, again).json()["committed"]
    assert hall.payloads() == ["first", "second"]


def test_jump_of_batches_without_parts_is_refused(hall: Hall) -> None:
    refused = hall.commit(hall.ada, 1_000_000)
    assert refusal(refused) == (422, "REQUEST_INVALID")
    assert "has no parts and skips others" in refused.json()["error"]["message"]
    part = hall.store(hall.ada, 0, '"first"').json()["part"]
    assert hall.commit(hall.ada, 0, part).json()["committed"]


def test_users_of_one_name_in_two_tenants_share_no_names(office: Office, hall: Hall) -> None:
    """An administrator of the instance who publishes in a tenant is not that tenant's user `admin`."""
    tenant = office.tenant()
    where = {"X-Tenant": tenant}
    office.ask("POST", "/api/v1/users", json={"name": "admin", "roles": ["writer"]}, headers=where)
    local = office.token_of(tenant, "admin")
    office.ask("POST", "/api/v1/topics", json={"name": hall.topic}, headers=where)
    body = {"messages": [{"payload": 1}], "producerId": "loader", "sequence": 0}
    office.ask("POST", f"/api/v1/topics/{hall.topic}/publish", json=body, headers=where)
    owned(hall.publish(local, 1, 2))
