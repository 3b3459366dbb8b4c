"""The audit trail and jobs, as a tenant's administrators see them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.accounts import Office, refusal
from tidegate.catalog.audit import Actor
from tidegate.testing.server import RunningServer

AUDIT = "/api/v1/audit"
JOBS = "/api/v1/jobs"
BACKUPS = "/api/v1/backups"


@pytest.fixture(scope="module")
def office(server: RunningServer) -> Iterator[Office]:
    office = Office(server)
    yield office
    office.close()


@pytest.fixture
def boss(office: Office) -> httpx.Client:
    """Someone who looks after a tenant of their own."""
    return office.person("AdminPanelManagement", tenant=office.tenant()).http


def events(boss: httpx.Client, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = boss.get(AUDIT, params=query).json()["events"]
    return found


def test_what_is_done_to_people_is_written_down_with_who_and_which_request(boss: httpx.Client) -> None:
    me = boss.get("/api/v1/me").json()
    boss.post("/api/v1/users", json={"name": "ann"}, headers={"X-Request-Id": "req-1"})
    boss.patch("/api/v1/users/ann", json={"roles": ["reader"]})
    made = boss.post("/api/v1/users/ann/tokens", json={"label": "laptop"}).json()
    boss.delete(f"/api/v1/users/ann/tokens/{made['id']}")
    boss.delete("/api/v1/users/ann")
    told = [(e["action"], e["subject"], e["outcome"]) for e in events(boss, user=me["user"])]
    token = f"user/ann/token/{made['id']}"
    assert told == [
        ("user.delete", "user/ann", "done"),
        ("token.revoke", token, "done"),
        ("token.create", token, "done"),
        ("user.change", "user/ann", "done"),
        ("user.create", "user/ann", "done"),
    ]
    (created,) = events(boss, action="user.create", user=me["user"])
    assert (created["tenant"], created["user"], created["requestId"]) == (me["tenant"], me["user"], "req-1")
    assert made["token"] not in boss.get(AUDIT).text


def test_a_topic_that_is_made_or_cannot_be_is_written_down(boss: httpx.Client) -> None:
    for _ in range(2):
        boss.post("/api/v1/topics", json={"name": "audit.topic"})
    failed, made = events(boss, action="topic.create")
    assert (made["outcome"], made["subject"]) == ("done", "topic/audit.topic")
    assert (failed["outcome"], failed["details"]["error"]) == ("failed", "TOPIC_EXISTS")


def test_a_topic_that_cannot_be_leaves_nothing_in_the_trail(boss: httpx.Client) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"name": "x" * 90_000}, "NAME_INVALID"),
        ({"name": "no good"}, "NAME_INVALID"),
        ({"name": "audit.parts", "partitions": 0}, "REQUEST_INVALID"),
        ({"name": "audit.parts", "partitions": 10**12}, "REQUEST_INVALID"),
    ]
    for body, code in wrong:
        assert refusal(boss.post("/api/v1/topics", json=body)) == (422, code)
    assert events(boss, action="topic.create") == []


def test_a_topic_that_is_asked_for_again_under_its_key_is_written_down_once(boss: httpx.Client) -> None:
    key = {"Idempotency-Key": "topic-once"}
    answers = [boss.post("/api/v1/topics", json={"name": "audit.once"}, headers=key) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [201] * 3
    assert len({answer.text for answer in answers}) == 1
    other = boss.post("/api/v1/topics", json={"name": "audit.other"}, headers=key)
    assert refusal(other) == (409, "IDEMPOTENCY_KEY_REUSED")
    (event,) = events(boss, action="topic.create")
    assert (event["outcome"], event["subject"]) == ("done", "topic/audit.once")


def test_the_end_of_a_backup_is_in_the_trail_of_the_instance(office: Office) -> None:
    elsewhere = {"X-Tenant": office.tenant()}
    first = office.ask("POST", BACKUPS, json={}, headers=elsewhere)["id"]
    office.ask("DELETE", f"{BACKUPS}/{first}", headers=elsewhere)
    second = office.ask("POST", BACKUPS, json={}, headers=elsewhere)["id"]
    body = {"file": "/b.tar", "bytes": 7}
    office.ask("POST", f"{BACKUPS}/{second}/finish", json=body, headers=elsewhere)
    gone = office.admin.delete(f"{BACKUPS}/{second}", headers=elsewhere)
    assert refusal(gone) == (404, "BACKUP_NOT_FOUND")
    finished, _, gave_up, _ = events(office.admin, limit=4)
    for event, subject in ((finished, second), (gave_up, first)):
        assert (event["action"], event["outcome"]) == ("backup.change", "done")
        assert (event["user"], event["subject"]) == ("admin", f"backup/{subject}")
    assert finished["details"] == body
    assert gave_up["details"] == {"gaveUp": True}
    others = {event["action"] for event in office.ask("GET", AUDIT, headers=elsewhere)["events"]}
    assert "backup.change" not in others


def test_backups_are_counted_as_jobs(office: Office) -> None:
    def counted() -> dict[str, float]:
        lines = office.admin.get("/metrics").text.splitlines()
        samples = [line.rpartition(" ") for line in lines if line.startswith("tidegate_jobs_")]
        return {name: float(value) for name, _, value in samples}

    running, done, failed = (
        "tidegate_jobs_running",
        'tidegate_jobs_finished_total{outcome="done"}',
        'tidegate_jobs_finished_total{outcome="failed"}',
    )
    before = counted()
    first = office.ask("POST", BACKUPS, json={})["id"]
    assert counted()[running] == before[running] + 1
    office.ask("DELETE", f"{BACKUPS}/{first}")
    second = office.ask("POST", BACKUPS, json={})["id"]
    office.ask("POST", f"{BACKUPS}/{second}/finish", json={"file": "/b.tar", "bytes": 7})
    after = counted()
    assert after[running] == before[running]
    assert (after[done] - before[done], after[failed] - before[failed]) == (1, 1)


def test_the_trail_is_read_in_pages_newest_first_and_skips_nothing(boss: httpx.Client) -> None:
    for number in range(5):
        boss.post("/api/v1/users", json={"name": f"user{number}"})
    whole = [event["id"] for event in events(boss)]
    assert whole == sorted(whole, reverse=True)
    seen: list[int] = []
    after: str | None = None
    while True:
        page = boss.get(AUDIT, params={"limit": 2, **({"after": after} if after else {})}).json()
        seen += [event["id"] for event in page["events"]]
        after = page["next"]
        if after is None:
            break
    assert seen == whole


def test_a_tenant_sees_its_own_trail_alone(office: Office, boss: httpx.Client) -> None:
    other = office.person("AdminPanelManagement", tenant=office.tenant()).http
    other.post("/api/v1/users", json={"name": "only-there"})
    assert "only-there" in other.get(AUDIT).text
    assert "only-there" not in boss.get(AUDIT).text
    assert "only-there" not in office.admin.get(AUDIT, params={"limit": 1000}).text


@pytest.mark.parametrize(
    "query", ["actoin=user.create", "user=", "action=%00", "after=abc", f"user={'u' * 201}"]
)
def test_a_wrong_question_about_the_trail_is_refused(boss: httpx.Client, query: str) -> None:
    assert refusal(boss.get(f"{AUDIT}?{query}")) == (422, "REQUEST_INVALID")


def test_a_job_is_shown_with_its_history_and_listed_newest_first(office: Office) -> None:
    tenant = office.tenant()
    person = office.person("admin", tenant=tenant)
    actor = Actor(tenant, person.name)
    with office.catalog() as catalog:
        first = catalog.jobs.create(actor, tenant, "count", "topic/a", {"rows": 3})
        second = catalog.jobs.create(actor, tenant, "copy", "topic/b")
        claimed = catalog.jobs.claim(first.id, "worker-1", 60.0)
        assert claimed is not None
        catalog.jobs.progress(claimed, 0.5, "half")
        catalog.jobs.finish(claimed, {"rows": 3})
    shown = person.http.get(f"{JOBS}/{first.id}").json()
    assert (shown["kind"], shown["subject"], shown["state"]) == ("count", "topic/a", "done")
    assert (shown["progress"], shown["attempts"], shown["createdBy"]) == (1.0, 1, person.name)
    assert (shown["details"], shown["result"], shown["error"]) == ({"rows": 3}, {"rows": 3}, None)
    assert shown["createdAt"] <= shown["startedAt"] <= shown["finishedAt"]
    states = [step["state"] for step in shown["history"]]
    assert (states[0], states[-1]) == ("queued", "done")
    listed = person.http.get(JOBS).json()["jobs"]
    assert [job["id"] for job in listed] == [second.id, first.id]
    for query, ids in [("kind=copy", [second.id]), ("state=done", [first.id]), ("kind=copy&state=done", [])]:
        assert [job["id"] for job in person.http.get(f"{JOBS}?{query}").json()["jobs"]] == ids


def test_a_failed_job_says_why(office: Office) -> None:
    tenant = office.tenant()
    person = office.person("admin", tenant=tenant)
    with office.catalog() as catalog:
        job = catalog.jobs.create(Actor(tenant, person.name), tenant, "count", "topic/a")
        claimed = catalog.jobs.claim(job.id, "worker-1", 60.0)
        assert claimed is not None
        catalog.jobs.fail(claimed, {"code": "STORAGE_FULL", "message": "no room"})
    shown = person.http.get(f"{JOBS}/{job.id}").json()
    assert (shown["state"], shown["error"]["code"]) == ("failed", "STORAGE_FULL")


@pytest.mark.parametrize("query", ["state=sleeping", "sate=done", "kind=", "limit=-1"])
def test_a_wrong_question_about_jobs_is_refused(boss: httpx.Client, query: str) -> None:
    assert refusal(boss.get(f"{JOBS}?{query}")) == (422, "REQUEST_INVALID")


@pytest.mark.parametrize("job", ["0" * 24, "nonsense", "a" * 5000])
def test_an_unknown_job_is_not_found(boss: httpx.Client, job: str) -> None:
    assert refusal(boss.get(f"{JOBS}/{job}")) == (404, "JOB_NOT_FOUND")
