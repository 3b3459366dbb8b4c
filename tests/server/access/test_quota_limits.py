"""Quotas over HTTP: two tenants on one server, what one of them may not, and what nobody loses by it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tests.catalog.conftest import ADMIN as ACTOR
from tests.server.accounts import Office, Person, refusal
from tests.server.group_client import Group, leases, publish
from tests.server.live_client import Tables, live
from tidegate.testing.server import RunningServer, running_server

WAIT_SECONDS = 60.0
AT_ONCE = 12
ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}
FROM_START: dict[str, Any] = {"from": "earliest"}
ADMIN, PANEL = "StreamDataAdmin", "AdminPanelManagement"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    environ = {"TIDEGATE_QUOTAS_DISK_INTERVAL_SECONDS": "0.2"}
    with running_server(tmp_path_factory.mktemp("quotas") / "home", environ=environ) as running:
        yield running


def limit(office: Office, tenant: str, **limits: int | None) -> dict[str, Any]:
    answer: dict[str, Any] = office.ask("PATCH", f"/api/v1/tenants/{tenant}/quota", json=limits)
    return answer


def limit_user(office: Office, person: Person, **limits: int | None) -> None:
    where = {"X-Tenant": person.tenant}
    office.ask("PATCH", f"/api/v1/users/{person.name}/quota", json=limits, headers=where)


def new_topic(person: Person, **more: Any) -> httpx.Response:
    return person.http.post("/api/v1/topics", json={"name": f"app.t{next(_numbers)}", **more})


def made_topic(person: Person) -> str:
    answer = new_topic(person)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["name"])


def send(person: Person, topic: str, payload: object, **headers: str) -> httpx.Response:
    body = {"messages": [{"payload": payload}]}
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return person.http.post(f"/api/v1/topics/{topic}/publish", json=body, headers=sent)


def run(person: Person, sql: str) -> httpx.Response:
    return person.http.post("/api/v1/sql", json={"sql": sql})


def details(answer: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = answer.json()["error"]["details"]
    return found


def used(person: Person, quota: str) -> dict[str, Any]:
    found: dict[str, Any] = person.http.get("/api/v1/quota").json()["tenant"][quota]
    return found


def until(ask: Callable[[], httpx.Response], status: int) -> httpx.Response:
    """Ask until the answer has a status."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        answer = ask()
        if answer.status_code == status:
            return answer
        assert time.monotonic() < deadline, answer.text


@pytest.fixture
def acme(office: Office) -> Person:
    """An administrator of the data of a tenant of their own."""
    return office.person(ADMIN, tenant=office.tenant())


@pytest.fixture
def umbrella(office: Office) -> Person:
    return office.person(ADMIN, tenant=office.tenant())


def test_requests_beyond_the_rate_get_429_and_pass_later(
    office: Office, acme: Person, umbrella: Person
) -> None:
    limit(office, acme.tenant, requestsPerSecond=1)
    refused = until(lambda: acme.http.get("/api/v1/me"), 429)
    assert refusal(refused) == (429, "RATE_QUOTA_REACHED")
    assert int(refused.headers["retry-after"]) >= 1
    expected = {"quota": "requests_per_second", "limit": 1, "used": 1, "account": f"Tenant '{acme.tenant}'"}
    assert expected.items() <= details(refused).items()
    assert all(umbrella.http.get("/api/v1/me").status_code == 200 for _ in range(20))
    until(lambda: acme.http.get("/api/v1/me"), 200)
    assert 'tidegate_http_refused_total{reason="quota"}' in office.admin.get("/metrics").text
    limit(office, acme.tenant, requestsPerSecond=None)
    assert all(acme.http.get("/api/v1/me").status_code == 200 for _ in range(20))


def test_one_user_uses_up_nothing_of_another(office: Office, acme: Person) -> None:
    loud, quiet = (office.person("reader", tenant=acme.tenant) for _ in range(2))
    limit_user(office, loud, requestsPerSecond=1)
    refused = until(lambda: loud.http.get("/api/v1/status"), 429)
    assert details(refused)["account"] == f"User '{loud.name}'"
    assert all(quiet.http.get("/api/v1/status").status_code == 200 for _ in range(20))


def test_published_bytes_beyond_the_rate_get_429_at_every_door(office: Office, acme: Person) -> None:
    topic = made_topic(acme)
    writer = office.person("writer", tenant=acme.tenant)
    limit_user(office, writer, publishedBytesPerSecond=1)
    assert send(writer, topic, "x" * 100_000).status_code == 200  # a debt of more than a day
    refused = send(writer, topic, 1)
    assert refusal(refused) == (429, "RATE_QUOTA_REACHED")
    assert details(refused)["used"] > 99_000
    assert int(refused.headers["retry-after"]) > 86_400
    assert refusal(run(writer, f"PUBLISH INTO {topic} VALUES ('1')"))[0] == 429
    part = writer.http.post(
        f"/api/v1/topics/{topic}/parts?writer=w&batch=0", content=arrow_messages(["1"]), headers=ARROW
    )
    assert part.status_code == 429, part.text
    assert writer.http.get("/api/v1/me").status_code == 200
    assert send(acme, topic, 2).status_code == 200
    kept = acme.http.post(f"/api/v1/topics/{topic}/consume", json={"from": "earliest"}).json()["messages"]
    assert [message["payload"] for message in kept] == ["x" * 100_000, 2]


def test_sockets_and_subscriptions_are_requests(office: Office, acme: Person, server: RunningServer) -> None:
    run(acme, "CREATE NAMESPACE app")
    assert run(acme, "CREATE SHARED TABLE app.rooms (id BIGINT PRIMARY KEY)").status_code == 200
    reader = office.person("reader", tenant=acme.tenant)

    limit_user(office, reader, requestsPerSecond=1)

    async def subscribe_until_refused() -> None:
        async with live(server, reader.token) as socket:
            rows = "SELECT * FROM app.rooms"
            assert (await socket.subscribe(rows, "first"))["rows"] == []
            for number in range(10_000):
                await socket.send("subscribe", id=str(number), sql=rows)
                message = await socket.next()
                if message["type"] == "error":
                    assert message["error"]["code"] == "RATE_QUOTA_REACHED", message
                    assert message["id"] == str(number)
                    return
                await socket.snapshot()
                await socket.send("unsubscribe", id=str(number))
                assert (await socket.next())["type"] == "unsubscribed"
        raise AssertionError("nothing was refused")

    asyncio.run(subscribe_until_refused())


def test_an_administrator_of_the_instance_is_let_in_where_the_rate_is_used_up(
    office: Office, acme: Person
) -> None:
    limit(office, acme.tenant, requestsPerSecond=1)
    where = {"X-Tenant": acme.tenant}
    assert all(office.admin.get("/api/v1/topics", headers=where).status_code == 200 for _ in range(20))


def test_of_topics_created_at_once_as_many_are_made_as_there_may_be(
    office: Office, acme: Person, umbrella: Person
) -> None:
    made_topic(acme)
    limit(office, acme.tenant, topics=4)

    def create(number: int) -> httpx.Response:
        if number % 2:
            return run(acme, f"CREATE TOPIC app.sql{number}")
        return new_topic(acme)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(create, range(AT_ONCE)))
    assert sorted(answer.status_code // 100 for answer in answers) == [2] * 3 + [5] * (AT_ONCE - 3)
    refused = next(answer for answer in answers if answer.status_code == 507)
    assert refusal(refused) == (507, "QUOTA_REACHED")
    assert details(refused) == {"tenant": acme.tenant, "quota": "topics", "limit": 4, "used": 4}
    assert used(acme, "topics") == {"limit": 4, "used": 4}
    made_topic(umbrella)
    name = acme.http.get("/api/v1/topics").json()["topics"][0]["name"]
    assert refusal(acme.http.post("/api/v1/topics", json={"name": name})) == (409, "TOPIC_EXISTS")
    assert run(acme, f"CREATE TOPIC IF NOT EXISTS {name}").status_code == 200
    assert acme.http.delete(f"/api/v1/topics/{name}").status_code == 200
    made_topic(acme)


def test_of_tables_created_at_once_as_many_are_made_as_there_may_be(
    office: Office, acme: Person, umbrella: Person
) -> None:
    for person in (acme, umbrella):
        run(person, "CREATE NAMESPACE app")
    limit(office, acme.tenant, tables=3)
    kinds = itertools.cycle(("SHARED", "USER", "STREAM"))

    def create(number: int, kind: str) -> httpx.Response:
        lifetime = " WITH (ttl_seconds = 60)" if kind == "STREAM" else ""
        return run(acme, f"CREATE {kind} TABLE app.t{number} (id BIGINT PRIMARY KEY){lifetime}")

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(create, range(AT_ONCE), kinds))
    assert sorted(answer.status_code for answer in answers) == [200] * 3 + [507] * (AT_ONCE - 3)
    assert used(acme, "tables") == {"limit": 3, "used": 3}
    assert run(umbrella, "CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY)").status_code == 200


def test_of_groups_that_begin_at_once_as_many_are_made_as_there_may_be(
    office: Office, acme: Person, umbrella: Person
) -> None:
    topics = [made_topic(acme) for _ in range(3)]
    Group(acme.http, topics[0], "first").take()
    limit(office, acme.tenant, groups=4)

    def consume(number: int) -> httpx.Response:
        topic = topics[number % 3]
        if number % 2:
            return run(acme, f"CONSUME FROM {topic} GROUP 'g{number}'")
        return Group(acme.http, topic, f"g{number}").ask("consume")

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(consume, range(AT_ONCE)))
    assert sorted(answer.status_code for answer in answers) == [200] * 3 + [507] * (AT_ONCE - 3)
    refused = next(answer for answer in answers if answer.status_code == 507)
    assert details(refused) == {"tenant": acme.tenant, "quota": "groups", "limit": 4, "used": 4}
    shown = [acme.http.get(f"/api/v1/topics/{topic}/groups").json()["groups"] for topic in topics]
    assert sum(map(len, shown)) == 4
    Group(acme.http, topics[0], "first").take()
    Group(umbrella.http, made_topic(umbrella)).take()
    assert acme.http.delete(f"/api/v1/topics/{topics[0]}/groups/first").status_code == 200
    Group(acme.http, topics[1], "late").take()


def test_a_dead_letter_finds_its_topic_when_no_topic_is_left(office: Office, acme: Person) -> None:
    topic = made_topic(acme)
    limit(office, acme.tenant, topics=1, groups=1)
    publish(acme.http, topic, 1)
    group = Group(acme.http, topic)
    taken = group.done("consume", **FROM_START)["messages"]
    assert group.done("nack", leases=leases(taken), dead=True)["dead"] == 1
    assert used(acme, "topics") == {"limit": 1, "used": 2}
    letters = acme.http.post(f"/api/v1/topics/{topic}.dead/consume", json={"from": "earliest"}).json()
    assert len(letters["messages"]) == 1
    assert new_topic(acme).status_code == 507


def arrow_messages(payloads: list[str]) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"payload": payloads})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@dataclass(frozen=True)
class FullTenant:
    """A tenant that has stored something at every door, and then got a quota that is less than that."""

    person: Person
    topic: str
    tables: Tables
    group: Group
    leases: list[str]
    part: str
    used: int
    first: httpx.Response

    def send_again(self) -> httpx.Response:
        return send(self.person, self.topic, "x" * 30_000, Idempotency_Key="once")

    def publish_again(self) -> httpx.Response:
        return run(self.person, f"PUBLISH INTO {self.topic} PRODUCER 'p' SEQUENCE 0 VALUES ('1')")

    def store_part(self, payload: str) -> httpx.Response:
        path = f"/api/v1/topics/{self.topic}/parts?writer=w&batch=0"
        return self.person.http.post(path, content=arrow_messages([payload]), headers=ARROW)


@pytest.fixture
def full(office: Office, acme: Person) -> FullTenant:
    topic, tables = made_topic(acme), Tables(acme.http)
    tables.run("CREATE NAMESPACE app")
    tables.run("CREATE SHARED TABLE app.rows (id BIGINT PRIMARY KEY, text TEXT)")
    tables.run("CREATE STREAM TABLE app.typing (room TEXT) WITH (ttl_seconds = 3600)")
    tables.run("INSERT INTO app.rows (id, text) VALUES (1, 'a'), (2, 'b')")
    tables.run(f"ALTER TOPIC {topic} ADD SOURCE app.rows ON INSERT")
    group = Group(acme.http, topic)
    empty = FullTenant(acme, topic, tables, group, [], "", 0, httpx.Response(0))
    first = empty.send_again()
    assert (first.status_code, empty.publish_again().status_code) == (200, 200)
    part = empty.store_part("1").json()["part"]
    taken = leases(group.done("consume", limit=1, **FROM_START)["messages"])
    disk = limit(office, acme.tenant, diskBytes=20_000)["diskBytes"]
    assert (disk["limit"], disk["used"] > 30_000) == (20_000, True)
    return replace(empty, first=first, part=part, leases=taken, used=disk["used"])


def test_a_full_tenant_stores_nothing_more_at_any_door(full: FullTenant) -> None:
    topic, tables = full.topic, full.tables
    statements = [
        f"PUBLISH INTO {topic} VALUES ('1')",
        "INSERT INTO app.rows (id, text) VALUES (3, 'c')",
        "INSERT INTO app.rows (id, text) SELECT id + 10, text FROM app.rows",
        "UPSERT INTO app.rows (id, text) VALUES (1, 'c')",
        "UPDATE app.rows SET text = 'c' WHERE id = 1",
        "UPDATE app.rows SET text = 'c'",
        "INSERT INTO app.typing (room) VALUES ('a')",
    ]
    grows = [run(full.person, sql) for sql in statements]
    grows += [send(full.person, topic, 1), full.store_part("2")]
    assert [refusal(answer) for answer in grows] == [(507, "QUOTA_REACHED")] * len(grows)
    told = {"tenant": full.person.tenant, "quota": "disk_bytes", "limit": 20_000, "used": full.used}
    assert all(details(answer) == told for answer in grows)
    assert tables.run("SELECT id, text FROM app.rows ORDER BY id") == [[1, "a"], [2, "b"]]
    assert tables.run("SELECT count(*) FROM app.typing") == [[0]]
    assert full.person.http.get(f"/api/v1/topics/{topic}").json()["messages"] == 2


def test_a_full_tenant_repeats_and_finishes_what_it_began(full: FullTenant) -> None:
    again = full.send_again()
    assert (again.status_code, again.json()) == (200, full.first.json())
    assert full.publish_again().status_code == 200
    batch = {"writer": "w", "batch": 0, "parts": [full.part]}
    done = full.person.http.post(f"/api/v1/topics/{full.topic}/commit", json=batch)
    assert (done.status_code, done.json()["messages"]) == (200, 1), done.text
    late = full.store_part("1")
    assert (late.status_code, late.json()["part"]) == (200, None)


def test_a_full_tenant_consumes_and_removes_and_has_room_again(full: FullTenant, umbrella: Person) -> None:
    person, topic = full.person, full.topic
    assert full.group.done("nack", leases=full.leases, dead=True)["dead"] == 1
    assert full.group.take(limit=1)
    assert run(person, "DELETE FROM app.rows WHERE id = 1").status_code == 200
    assert send(umbrella, made_topic(umbrella), 1).status_code == 200
    for name in (topic, f"{topic}.dead"):
        assert person.http.post(f"/api/v1/topics/{name}/clear").status_code == 200
    until(lambda: send(person, topic, 1), 200)
    assert run(person, "INSERT INTO app.rows (id, text) VALUES (3, 'c')").status_code == 200


def test_streams_and_the_lake_count_as_disk(office: Office, acme: Person, server: RunningServer) -> None:
    before = used(acme, "diskBytes")["used"]
    lake = server.home / "tenants" / acme.tenant / "lake" / "t"
    lake.mkdir(parents=True)
    (lake / "part-0.parquet").write_bytes(b"x" * 50_000)
    tables = Tables(acme.http)
    tables.run("CREATE NAMESPACE app")
    tables.run("CREATE STREAM TABLE app.typing (room TEXT) WITH (ttl_seconds = 3600, durability = 'fsync')")
    tables.run("INSERT INTO app.typing (room) VALUES (?)", "x" * 20_000)
    limit(office, acme.tenant, diskBytes=60_000)
    refused = until(lambda: run(acme, "INSERT INTO app.typing (room) VALUES ('a')"), 507)
    assert details(refused)["used"] >= before + 70_000
    metrics = office.admin.get("/metrics").text
    assert f'tidegate_tenant_disk_bytes{{tenant="{acme.tenant}"}}' in metrics
    (lake / "part-0.parquet").unlink()
    until(lambda: run(acme, "INSERT INTO app.typing (room) VALUES ('a')"), 200)


def test_a_limit_below_what_is_used_removes_nothing(office: Office, acme: Person) -> None:
    topics = [made_topic(acme) for _ in range(3)]
    assert limit(office, acme.tenant, topics=1)["topics"] == {"limit": 1, "used": 3}
    assert new_topic(acme).status_code == 507
    assert all(send(acme, topic, 1).status_code == 200 for topic in topics)


def test_limits_are_shown_with_where_they_come_from(office: Office, acme: Person) -> None:
    topic = made_topic(acme)
    Group(acme.http, topic).take()
    limit(office, acme.tenant, topics=5, requestsPerSecond=1_000)
    limit_user(office, acme, publishedBytesPerSecond=10)
    quota = acme.http.get("/api/v1/quota").json()
    assert quota["tenant"]["own"] == ["requestsPerSecond", "topics"]
    assert quota["tenant"]["topics"] == {"limit": 5, "used": 1}
    assert quota["tenant"]["groups"] == {"limit": 0, "used": 1}
    assert quota["tenant"]["requestsPerSecond"]["used"] >= 1
    assert (quota["user"]["user"], quota["user"]["own"]) == (acme.name, ["publishedBytesPerSecond"])
    assert quota["user"]["publishedBytesPerSecond"] == {"limit": 10, "used": 0}
    shown = office.ask("GET", f"/api/v1/tenants/{acme.tenant}/quota")
    assert shown["topics"] == {"limit": 5, "used": 1}
    where = {"X-Tenant": acme.tenant}
    user = office.ask("GET", f"/api/v1/users/{acme.name}/quota", headers=where)
    assert user["publishedBytesPerSecond"]["limit"] == 10
    assert limit(office, acme.tenant, topics=None)["own"] == ["requestsPerSecond"]


@pytest.mark.parametrize("body", [{}, {"topics": -1}, {"topics": 2**53}, {"topics": 1.5}, {"rows": 1}])
def test_a_wrong_limit_is_refused(office: Office, acme: Person, body: dict[str, Any]) -> None:
    path = f"/api/v1/tenants/{acme.tenant}/quota"
    assert refusal(office.admin.patch(path, json=body)) == (422, "REQUEST_INVALID")


def test_a_tenants_own_administrator_changes_users_alone(office: Office, acme: Person) -> None:
    panel = office.person(PANEL, tenant=acme.tenant)
    assert refusal(panel.http.patch(f"/api/v1/tenants/{acme.tenant}/quota", json={"topics": 0}))[0] == 403
    user = f"/api/v1/users/{acme.name}/quota"
    assert panel.http.patch(user, json={"requestsPerSecond": 7}).json()["requestsPerSecond"]["limit"] == 7
    assert refusal(panel.http.patch(user, json={"topics": 1})) == (422, "REQUEST_INVALID")
    assert refusal(office.admin.patch(user, json={"requestsPerSecond": 1})) == (404, "USER_NOT_FOUND")
    assert refusal(acme.http.patch(user, json={"requestsPerSecond": 0}))[0] == 403
    events = panel.http.get("/api/v1/audit?action=user.change").json()["events"]
    assert events[0]["details"] == {"quota": {"requests_per_second": 7}}


def test_a_user_of_the_same_name_begins_without_the_quota(office: Office, acme: Person) -> None:
    where = {"X-Tenant": acme.tenant}
    limit_user(office, acme, requestsPerSecond=7)
    office.ask("DELETE", f"/api/v1/users/{acme.name}", headers=where)
    office.ask("POST", "/api/v1/users", json={"name": acme.name}, headers=where)
    path = f"/api/v1/users/{acme.name}/quota"
    until(lambda: office.admin.get(path, headers=where), 200)
    deadline = time.monotonic() + WAIT_SECONDS
    while office.ask("GET", path, headers=where)["own"] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert office.ask("GET", path, headers=where)["own"] == []


def test_a_change_beside_the_server_is_seen_and_a_restart_keeps_it(
    server: RunningServer, office: Office, acme: Person, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with office.catalog() as catalog:
        catalog.quotas.change_tenant(ACTOR, acme.tenant, {"topics": 1})
    deadline = time.monotonic() + WAIT_SECONDS
    while used(acme, "topics")["limit"] != 1:
        assert time.monotonic() < deadline
    home = tmp_path_factory.mktemp("again") / "home"
    settings = {"TIDEGATE_QUOTAS_TENANT_TABLES_MAX": "2", "TIDEGATE_QUOTAS_TENANT_TOPICS_MAX": "9"}
    with running_server(home, environ=settings) as first:
        other = Office(first)
        limit(other, "default", topics=3)
        other.close()
    with running_server(home, environ=settings) as again:
        other = Office(again)
        quota = other.ask("GET", "/api/v1/quota")["tenant"]
        other.close()
    assert (quota["topics"]["limit"], quota["tables"]["limit"], quota["own"]) == (3, 2, ["topics"])
