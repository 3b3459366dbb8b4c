"""Tokens under attack: guessed, replayed, revoked while they are in use, sent by another site, looked for."""

from __future__ import annotations

import base64
import contextlib
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.accounts import Office, Person, refusal
from tidegate.testing.server import RunningServer, running_server

COOKIE = "tidegate_session"
GUESSES_MAX = 5
# Far more than the buffers between two processes hold, so that a stream of it is under way while we act.
STREAM_MESSAGES = 48
MESSAGE_BYTES = 1_000_000


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """A server that writes down all it can, and on which nobody may guess often."""
    folder = tmp_path_factory.mktemp("tokens")
    environ = {"TIDEGATE_AUTH_GUESSES_MAX": "1000", "TIDEGATE_LOG_LEVEL": "debug"}
    with running_server(folder / "home", environ=environ) as server:
        office = Office(server)
        yield office
        office.close()


def tokens_path(person: Person) -> str:
    return f"/api/v1/users/{person.name}/tokens"


def test_a_token_is_shown_once_and_listed_without_its_text(office: Office) -> None:
    person = office.person("reader")
    made = office.ask("POST", tokens_path(person), json={"label": "night job", "lifetimeSeconds": 3600})
    office.secrets.append(made["token"])
    assert made["token"].startswith(f"tg_{made['id']}_")
    assert (made["label"], len(made["token"])) == ("night job", 63)
    listed = office.admin.get(tokens_path(person))
    (token,) = [token for token in listed.json()["tokens"] if token["id"] == made["id"]]
    assert (token["kind"], token["label"], token["endedAt"]) == ("token", "night job", None)
    assert token["createdAt"] < token["expiresAt"] == made["expiresAt"]
    assert made["token"] not in listed.text


@pytest.mark.parametrize(("body", "ends"), [({}, True), ({"lifetimeSeconds": None}, False)])
def test_a_token_ends_after_the_days_of_the_setting_unless_it_is_to_have_no_end(
    office: Office, body: dict[str, Any], ends: bool
) -> None:
    person = office.person("reader")
    made = office.ask("POST", tokens_path(person), json=body)
    office.secrets.append(made["token"])
    assert (made["expiresAt"] is not None) == ends
    assert office.client(made["token"]).get("/api/v1/me").json()["expiresAt"] == made["expiresAt"]


@pytest.mark.parametrize(
    "body",
    [
        {"label": "x" * 201},
        {"label": "two\nlines"},
        {"label": None},
        {"lifetimeSeconds": 0},
        {"lifetimeSeconds": -1},
        {"lifetimeSeconds": 1e300},
        {"lifetimeSeconds": "1h"},
        {"lifetimeSeconds": True},
        {"user": "admin"},
    ],
)
def test_a_wrong_wish_for_a_token_makes_none(office: Office, body: dict[str, Any]) -> None:
    person = office.person("reader")
    assert refusal(office.admin.post(tokens_path(person), json=body)) == (422, "REQUEST_INVALID")
    assert len(office.ask("GET", tokens_path(person))["tokens"]) == 1


def test_a_revoked_token_is_refused_at_once_and_others_of_the_user_go_on(office: Office) -> None:
    person = office.person("reader")
    other = office.token_of("default", person.name)
    assert {who.http.get("/api/v1/me").status_code for who in (person, other)} == {200}
    office.revoke(person)
    assert refusal(person.http.get("/api/v1/me")) == (401, "TOKEN_REVOKED")
    assert other.http.get("/api/v1/me").status_code == 200
    ended = {token["id"]: token["endedAt"] for token in office.ask("GET", tokens_path(person))["tokens"]}
    assert ended[person.token_id] is not None
    assert ended[other.token_id] is None


def test_a_token_of_another_user_is_not_found(office: Office) -> None:
    one, two = office.person("reader"), office.person("reader")
    for user, token in [(one.name, two.token_id), (one.name, "0" * 16), (one.name, "x"), ("nobody", "x")]:
        answer = office.admin.delete(f"/api/v1/users/{user}/tokens/{token}")
        assert answer.status_code == 404
    assert two.http.get("/api/v1/me").status_code == 200


def test_the_token_of_the_home_is_not_revoked_over_http(office: Office) -> None:
    (home,) = [t for t in office.ask("GET", "/api/v1/users/admin/tokens")["tokens"] if t["kind"] == "home"]
    answer = office.admin.delete(f"/api/v1/users/admin/tokens/{home['id']}")
    assert refusal(answer) == (422, "REQUEST_INVALID")
    assert office.admin.get("/api/v1/me").status_code == 200


def test_a_wait_for_messages_ends_when_its_token_is_revoked(office: Office) -> None:
    office.ask("POST", "/api/v1/topics", json={"name": "quiet.topic"})
    person = office.person("reader")
    assert person.http.get("/api/v1/me").status_code == 200
    answers: list[httpx.Response] = []

    def wait() -> None:
        asked = {"waitMs": 60_000}
        answers.append(person.http.post("/api/v1/topics/quiet.topic/consume", json=asked, timeout=120))

    waiting = threading.Thread(target=wait)
    waiting.start()
    # The wait has begun once the server counts it; before that the revocation would be a plain refusal.
    while waiting.is_alive() and not re.search(r"polls_waiting 1", office.admin.get("/metrics").text):
        time.sleep(0.05)
    office.revoke(person)
    waiting.join(90)
    assert [refusal(answer) for answer in answers] == [(401, "TOKEN_REVOKED")]


def test_a_stream_is_cut_and_not_finished_when_its_token_is_revoked(office: Office) -> None:
    office.ask("POST", "/api/v1/topics", json={"name": "long.topic"})
    path = "/api/v1/topics/long.topic"
    for _ in range(STREAM_MESSAGES // 16):
        messages = [{"payload": "x" * MESSAGE_BYTES} for _ in range(16)]
        office.ask("POST", f"{path}/publish", json={"messages": messages})
    person, other = office.person("reader"), office.person("reader")
    asked = {"partition": 0, "from": 0, "to": STREAM_MESSAGES}
    with person.http.stream("POST", f"{path}/read", json=asked) as answer:
        assert answer.status_code == 200
        chunks = answer.iter_raw(65_536)
        next(chunks)
        office.revoke(person)
        with pytest.raises(httpx.RemoteProtocolError):
            for _ in chunks:
                pass
    whole = other.http.post(f"{path}/read", json=asked)
    assert len(whole.content) > STREAM_MESSAGES * MESSAGE_BYTES


def test_a_link_that_is_sent_twice_lets_one_in(office: Office) -> None:
    url = str(office.ask("POST", "/api/v1/links")["url"])
    code = url.partition("code=")[2]
    office.secrets.append(code)
    answers: list[httpx.Response] = []

    def use() -> None:
        answers.append(office.client().post("/enter", data={"code": code}))

    racers = [threading.Thread(target=use) for _ in range(8)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(60)
    assert sorted(answer.status_code for answer in answers) == [303] + [401] * 7
    office.secrets.extend(answer.cookies[COOKIE] for answer in answers if COOKIE in answer.cookies)


def signed_in(office: Office, person: Person, **headers: str) -> httpx.Client:
    """Return the browser of someone who used a link."""
    code = person.http.post("/api/v1/links").json()["url"].partition("code=")[2]
    session = office.client().post("/enter", data={"code": code}).cookies[COOKIE]
    office.secrets += [code, session]
    return office.client(cookie=f"theme=dark; {COOKIE}={session}", **headers)


def test_a_disabled_tenant_keeps_tokens_sessions_and_links_out(office: Office) -> None:
    tenant = office.tenant()
    person = office.person("reader", tenant=tenant)
    browser = signed_in(office, person)
    code = person.http.post("/api/v1/links").json()["url"].partition("code=")[2]
    office.secrets.append(code)
    assert browser.get("/api/v1/me").status_code == 200
    office.ask("POST", f"/api/v1/tenants/{tenant}/disable")
    for http in (person.http, browser):
        assert refusal(http.get("/api/v1/me")) == (403, "TENANT_DISABLED")
    used = office.client().post("/enter", data={"code": code})
    assert (used.status_code in (401, 403), COOKIE in used.cookies) == (True, False)


def test_another_site_cannot_use_the_cookie_of_a_browser(office: Office) -> None:
    browser = signed_in(office, office.person("admin"))
    topic = {"name": "made.by.cookie"}
    origins: list[dict[str, str]] = [
        {},
        {"Origin": "null"},
        {"Origin": "https://elsewhere.example"},
        {"Origin": f"{office.server.url}.elsewhere.example"},
        {"Origin": office.server.url.replace("127.0.0.1", "localhost")},
        {"Origin": office.server.url.replace("http:", "https:")},
        {"Origin": "http://elsewhere.example", "Host": "elsewhere.example"},
        {"Referer": office.server.url},
    ]
    for headers in origins:
        answer = browser.post("/api/v1/topics", json=topic, headers=headers)
        assert refusal(answer) == (403, "ORIGIN_REFUSED"), headers
        for method in ("PATCH", "DELETE", "PUT"):
            assert browser.request(method, "/api/v1/topics/any", headers=headers).status_code == 403
    assert browser.get("/api/v1/topics").status_code == 200
    own = {"Origin": office.server.url}
    assert browser.post("/api/v1/topics", json=topic, headers=own).status_code == 201


def test_behind_a_proxy_with_tls_pages_of_the_public_address_alone_may_act(tmp_path: Path) -> None:
    public = {"TIDEGATE_SERVER_PUBLIC_URL": "https://gate.example"}
    with running_server(tmp_path / "home", environ=public) as server:
        office = Office(server)
        browser = signed_in(office, office.person("admin"))
        topic = {"name": "made.by.cookie"}
        for origin, host in (
            ("http://gate.example", "gate.example"),
            ("https://gate.example:8443", "gate.example"),
            ("https://elsewhere.example", "elsewhere.example"),
            ("null", "gate.example"),
        ):
            answer = browser.post("/api/v1/topics", json=topic, headers={"Origin": origin, "Host": host})
            assert refusal(answer) == (403, "ORIGIN_REFUSED"), origin
        own = {"Origin": "https://gate.example", "Host": "gate.example"}
        assert browser.post("/api/v1/topics", json=topic, headers=own).status_code == 201
        office.close()


def test_a_session_is_a_cookie_alone_and_a_token_a_header_alone(office: Office) -> None:
    person = office.person("reader")
    session = str(signed_in(office, person).headers["cookie"]).rpartition("=")[2]
    for _ in range(2):  # looked up, and cached
        assert office.client(cookie=f"{COOKIE}={session}").get("/api/v1/me").status_code == 200
        assert refusal(office.client(session).get("/api/v1/me")) == (401, "TOKEN_WRONG")
        assert person.http.get("/api/v1/me").status_code == 200
        planted = office.client(cookie=f"{COOKIE}={person.token}").get("/api/v1/me")
        assert refusal(planted) == (401, "TOKEN_WRONG")
    home = office.client(cookie=f"{COOKIE}={office.server.token}").get("/api/v1/me")
    assert refusal(home) == (401, "TOKEN_WRONG")


def test_a_session_makes_no_tokens_and_no_links(office: Office) -> None:
    person = office.person("AdminPanelManagement", tenant=office.tenant())
    browser = signed_in(office, person, origin=office.server.url)
    tokens = f"/api/v1/users/{person.name}/tokens"
    for path, body in ((tokens, {"label": "for ever", "lifetimeSeconds": None}), ("/api/v1/links", None)):
        answer = browser.post(path, json=body)
        assert refusal(answer) == (403, "SESSION_INSUFFICIENT")
        assert "tidegate user token" in answer.json()["error"]["hint"]
    assert {token["kind"] for token in browser.get(tokens).json()["tokens"]} == {"token", "session"}
    assert person.http.post(tokens, json={"label": "with the token itself"}).status_code == 201


def test_a_bearer_token_counts_and_not_the_cookie_beside_it(office: Office) -> None:
    browser = signed_in(office, office.person("admin"), authorization="Bearer wrong")
    assert refusal(browser.get("/api/v1/me")) == (401, "TOKEN_WRONG")


@pytest.mark.parametrize(
    "given",
    [
        "Basic {basic}",
        "{token}",
        "Digest {token}",
        "Bearer",
        "Bearer {token} {token}",
        "Bearer Bearer {token}",
        "Bearer {upper}",
    ],
)
def test_a_token_in_another_form_is_refused(office: Office, given: str) -> None:
    token = office.person("reader").token
    basic = base64.b64encode(f"admin:{office.server.token}".encode()).decode()
    text = given.format(basic=basic, token=token, upper=token.upper())
    assert refusal(office.client(authorization=text).get("/api/v1/me")) == (401, "TOKEN_WRONG")
    assert office.client(authorization=f"bearer  {token}").get("/api/v1/me").status_code == 200


def test_a_token_in_the_address_lets_nobody_in(office: Office) -> None:
    answer = office.client().get(f"/api/v1/me?token={office.server.token}&access_token={office.server.token}")
    assert refusal(answer) == (401, "TOKEN_MISSING")


def test_no_secret_is_in_the_log_or_anywhere_else_on_the_disk(office: Office) -> None:
    person = office.person("AdminPanelManagement")
    browser = signed_in(office, person)
    code = person.http.post("/api/v1/links").json()["url"].partition("code=")[2]
    office.secrets.append(code)
    # 1. secrets wherever a caller may put them, also where they do not belong
    browser.get("/enter", params={"code": code})
    browser.get(f"/api/v1/topics/{person.token}")
    browser.get("/nowhere", params={"token": person.token}, headers={"X-Request-Id": person.token})
    office.client(f"{person.token}x").get("/api/v1/me")
    office.client(authorization=f"Basic {person.token}").get(f"/{person.token}")
    person.http.post("/api/v1/sql", json={"sql": f"SELECT '{person.token}' FROM nowhere"})
    person.http.post("/api/v1/users", json={"name": person.token, "roles": [person.token]})
    # 2. every file: logs, the catalog and its journal, the engine
    folder = office.server.home.parent
    log = (folder / "home.server.log").read_text()
    assert "/api/v1/me" in log, "the log tells of requests, or this looks at nothing"
    contents = dict(contents_below(folder))
    assert any(file.name.startswith("catalog.db") for file in contents)
    assert len(office.secrets) > 10
    for file, content in contents.items():
        for secret in office.secrets:
            # An id may be told; what stands behind it may not.
            hidden = secret[20:]
            assert hidden.encode() not in content, file


def contents_below(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield every file but the admin's token; those, too, into which others are merged meanwhile."""
    seen: set[Path] = set()
    while new := [file for file in folder.rglob("*") if file.is_file() and file not in seen]:
        seen.update(new)
        for file in new:
            with contextlib.suppress(FileNotFoundError):
                if file.name != "admin.token":
                    yield file, file.read_bytes()


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    environ = {"TIDEGATE_AUTH_GUESSES_MAX": str(GUESSES_MAX)}
    folder: Path = tmp_path_factory.mktemp("guesses")
    with running_server(folder / "home", environ=environ) as server:
        yield server


def test_someone_who_guesses_is_slowed_down_and_locks_nobody_out(strict: RunningServer) -> None:
    office = Office(strict)
    known = office.person("reader")
    unseen = office.token_of("default", known.name)
    assert known.http.get("/api/v1/me").status_code == 200
    for number in range(GUESSES_MAX):
        assert refusal(office.client(f"guess{number}").get("/api/v1/me")) == (401, "TOKEN_WRONG")
    for _ in range(3):
        answer = office.client("guess").get("/api/v1/me")
        assert refusal(answer) == (429, "TOO_MANY_GUESSES")
        assert 1 <= int(answer.headers["retry-after"]) <= 60
    # A right token passes, seen before or not: behind one proxy everybody has one address.
    for http in (unseen.http, known.http, office.admin):
        assert http.get("/api/v1/me").status_code == 200
    office.close()


def test_another_text_in_admin_token_ends_the_old_one_at_the_next_start(home: Path) -> None:
    with running_server(home) as server:
        old = server.token
    fresh = "fresh-" + old
    (home / "admin.token").write_text(f"{fresh}\n")
    with running_server(home) as server:
        office = Office(server)
        assert server.token == fresh
        assert office.admin.get("/api/v1/me").json()["instanceAdmin"] is True
        assert refusal(office.client(old).get("/api/v1/me")) == (401, "TOKEN_REVOKED")
        office.close()
