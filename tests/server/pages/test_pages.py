"""One-time links and pages: a browser gets in once, sees what runs, and leaves."""

from __future__ import annotations

import base64
import hashlib
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import trustme

from tests.browser import start_browser
from tests.server.accounts import Office, Person, refusal
from tidegate.testing.server import RunningServer, running_server

COOKIE = "tidegate_session"
PAGE = {"Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"}


@pytest.fixture(scope="module")
def office(server: RunningServer) -> Iterator[Office]:
    office = Office(server)
    yield office
    office.close()


def make_link(person: Person | httpx.Client) -> str:
    http = person.http if isinstance(person, Person) else person
    made = http.post("/api/v1/links")
    assert made.status_code == 201, made.text
    return str(made.json()["url"])


def code_of(url: str) -> str:
    return parse_qs(urlsplit(url).query)["code"][0]


def enter(office: Office, url: str, **headers: str) -> httpx.Response:
    return office.client().post("/enter", data={"code": code_of(url)}, headers=headers)


def test_a_link_lets_a_browser_in_once_as_whoever_made_it(office: Office) -> None:
    person = office.person("reader", tenant=office.tenant())
    url = make_link(person)
    assert url.startswith(f"{office.server.url}/enter?code=")
    answer = enter(office, url)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "Path=/", "SameSite=strict"} <= set(cookie.split("; "))
    assert "Secure" not in cookie, "a browser would not send it back over plain HTTP"
    browser = office.client(cookie=f"{COOKIE}={answer.cookies[COOKIE]}")
    said = browser.get("/api/v1/me").json()
    assert (said["tenant"], said["user"], said["roles"]) == (person.tenant, person.name, ["StreamDataReader"])
    assert said["expiresAt"] is not None
    assert refusal(enter(office, url)) == (401, "LINK_WRONG")


def test_the_cookie_is_sent_over_tls_alone_where_people_use_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    pair = authority.issue_cert("127.0.0.1")
    pair.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "pair.pem"))
    trust = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
    names = ("TIDEGATE_SERVER_TLS_CERTIFICATE_FILE", "TIDEGATE_SERVER_TLS_KEY_FILE")
    environ = dict.fromkeys(names, str(tmp_path / "pair.pem"))
    with running_server(tmp_path / "home", environ=environ, verify=trust) as server:
        office = Office(server, trust)
        url = make_link(office.admin)
        assert url.startswith("https://127.0.0.1:")
        assert "Secure" in enter(office, url).headers["set-cookie"].split("; ")
        office.close()


def test_looking_at_a_link_does_not_use_it_up(office: Office) -> None:
    url = make_link(office.admin)
    for method in ("GET", "GET", "HEAD"):
        seen = office.client().request(method, url)
        assert (seen.status_code, "set-cookie" in seen.headers) == (200, False)
    assert code_of(url) in office.client().get(url).text
    assert enter(office, url).status_code == 303


@pytest.mark.parametrize(
    ("sent", "kind", "expected"),
    [
        (b"code=never-made", "application/x-www-form-urlencoded", (401, "LINK_WRONG")),
        (b"code=" + b"c" * 2000, "application/x-www-form-urlencoded", (401, "LINK_WRONG")),
        (b"code=%00%ff", "application/x-www-form-urlencoded", (400, "REQUEST_MALFORMED")),
        (b"code=\xff", "application/x-www-form-urlencoded", (400, "REQUEST_MALFORMED")),
        (b"colour=red", "application/x-www-form-urlencoded", (401, "LINK_WRONG")),
        (b"", "application/x-www-form-urlencoded", (401, "LINK_WRONG")),
        (b"code=" + b"c" * 5000, "application/x-www-form-urlencoded", (413, "BODY_TOO_LARGE")),
        (b'{"code": "x"}', "application/json", (415, "CONTENT_TYPE_UNSUPPORTED")),
    ],
)
def test_a_wrong_form_opens_nothing(
    office: Office, sent: bytes, kind: str, expected: tuple[int, str]
) -> None:
    answer = office.client().post("/enter", content=sent, headers={"Content-Type": kind})
    assert refusal(answer) == expected
    assert "set-cookie" not in answer.headers


def test_a_form_without_its_length_is_not_read(office: Office) -> None:
    def endless() -> Iterator[bytes]:
        yield b"code=x"

    form = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = office.client().post("/enter", content=endless(), headers=form)
    assert refusal(answer) == (400, "REQUEST_MALFORMED")


def test_a_form_of_another_site_signs_nobody_in(office: Office) -> None:
    url = make_link(office.admin)
    for origin in ("https://elsewhere.example", "null"):
        assert refusal(enter(office, url, Origin=origin)) == (403, "ORIGIN_REFUSED")
    assert enter(office, url, Origin=office.server.url).status_code == 303


def test_a_link_ends_with_the_token_it_was_made_with(office: Office) -> None:
    person = office.person("reader")
    url = make_link(person)
    office.revoke(person)
    assert refusal(enter(office, url)) == (401, "LINK_WRONG")


def test_a_session_ends_with_the_token_that_made_its_link(office: Office) -> None:
    person = office.person("reader", lifetime_seconds=600)
    answer = enter(office, make_link(person))
    (age,) = re.findall(r"Max-Age=(\d+)", answer.headers["set-cookie"])
    assert 0 < int(age) <= 600
    browser = office.client(cookie=f"{COOKIE}={answer.cookies[COOKIE]}")
    ends = [http.get("/api/v1/me").json()["expiresAt"] for http in (person.http, browser)]
    assert ends[0] == ends[1]
    office.revoke(person)
    assert refusal(browser.get("/api/v1/me")) == (401, "TOKEN_REVOKED")


def test_a_session_makes_no_links(office: Office) -> None:
    session = enter(office, make_link(office.person("reader"))).cookies[COOKIE]
    browser = office.client(cookie=f"{COOKIE}={session}", origin=office.server.url)
    assert refusal(browser.post("/api/v1/links")) == (403, "SESSION_INSUFFICIENT")
    assert refusal(office.client(session).post("/api/v1/links")) == (401, "TOKEN_WRONG")


def test_a_link_made_while_acting_elsewhere_is_for_oneself_at_home(office: Office) -> None:
    tenant = office.tenant()
    where = {"X-Tenant": tenant}
    office.ask("POST", "/api/v1/users", json={"name": "admin", "roles": ["reader"]}, headers=where)
    url = office.ask("POST", "/api/v1/links", headers=where)["url"]
    session = enter(office, url).cookies[COOKIE]
    said = office.client(cookie=f"{COOKIE}={session}").get("/api/v1/me").json()
    assert (said["tenant"], said["user"], said["instanceAdmin"]) == ("default", "admin", True)


def test_a_session_is_listed_and_can_be_revoked_like_a_token(office: Office) -> None:
    person = office.person("reader")
    session = enter(office, make_link(person)).cookies[COOKIE]
    browser = office.client(cookie=f"{COOKIE}={session}")
    assert browser.get("/api/v1/me").status_code == 200
    tokens = office.ask("GET", f"/api/v1/users/{person.name}/tokens")["tokens"]
    (listed,) = [token for token in tokens if token["kind"] == "session"]
    office.ask("DELETE", f"/api/v1/users/{person.name}/tokens/{listed['id']}")
    assert refusal(browser.get("/api/v1/me")) == (401, "TOKEN_REVOKED")


def test_leaving_ends_the_session_for_good(office: Office) -> None:
    person = office.person("reader")
    session = enter(office, make_link(person)).cookies[COOKIE]
    browser = office.client(cookie=f"{COOKIE}={session}")
    assert refusal(browser.post("/leave")) == (403, "ORIGIN_REFUSED")
    left = browser.post("/leave", headers={"Origin": office.server.url})
    assert left.status_code == 200
    assert re.search(rf'{COOKIE}="?"?; .*Max-Age=0', left.headers["set-cookie"])
    assert refusal(browser.get("/api/v1/me")) == (401, "TOKEN_REVOKED")
    assert person.http.get("/api/v1/me").status_code == 200, "the token itself goes on"


def test_leaving_takes_no_bearer_token(office: Office) -> None:
    person = office.person("reader")
    assert refusal(person.http.post("/leave")) == (422, "REQUEST_INVALID")
    assert person.http.get("/api/v1/me").status_code == 200


def test_without_a_session_a_browser_is_told_how_to_get_in(office: Office) -> None:
    for path in ("/", "/docs", "/nowhere", "/enter"):
        answer = office.client().get(path, headers=PAGE)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert "tidegate open" in answer.text
        assert answer.headers["content-type"].startswith("text/html")
    assert refusal(office.client().get("/")) == (401, "TOKEN_MISSING")
    assert refusal(office.client().get("/api/v1/topics", headers=PAGE)) == (401, "TOKEN_MISSING")


def test_a_worthless_cookie_is_taken_back_and_a_good_one_is_not(office: Office) -> None:
    stale = office.client(cookie=f"{COOKIE}=tg_0000000000000000_{'x' * 43}")
    assert "Max-Age=0" in stale.get("/", headers=PAGE).headers["set-cookie"]
    session = enter(office, make_link(office.admin)).cookies[COOKIE]
    browser = office.client(cookie=f"{COOKIE}={session}")
    assert "set-cookie" not in browser.get("/enter", headers=PAGE).headers
    assert browser.get("/", headers=PAGE).status_code == 200


def test_every_page_forbids_scripts_frames_caches_and_other_sites(office: Office) -> None:
    session = enter(office, make_link(office.admin)).cookies[COOKIE]
    browser = office.client(cookie=f"{COOKIE}={session}")
    pages = [browser.get("/"), browser.get(make_link(office.admin)), office.client().get("/", headers=PAGE)]
    pages.append(browser.post("/leave", headers={"Origin": office.server.url}))
    for answer in pages:
        policy = answer.headers["content-security-policy"]
        style = re.search(r"<style>(.*?)</style>", answer.text, re.DOTALL)
        assert style is not None
        digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
        assert f"default-src 'none'; style-src 'sha256-{digest}'; form-action 'self'" in policy
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_no_text_becomes_markup(office: Office) -> None:
    seen = office.client().get("/enter", params={"code": '"><script>alert(1)</script>'})
    assert seen.status_code == 200
    assert "<script" not in seen.text
    assert "&quot;&gt;&lt;script&gt;" in seen.text


def test_a_long_list_is_cut_on_the_page(office: Office) -> None:
    person = office.person("admin", tenant=office.tenant())
    for number in range(103):
        person.http.post("/api/v1/topics", json={"name": f"many.t{number:03}"})
    seen = person.http.get("/").text
    assert ("many.t099" in seen, "many.t100" in seen, "And 3 more." in seen) == (True, False, True)


def test_a_person_gets_in_looks_around_and_leaves(office: Office, tmp_path: Path) -> None:
    tenant = office.tenant()
    person = office.person("AdminPanelManagement", tenant=tenant)
    person.http.post("/api/v1/topics", json={"name": "shop.orders", "partitions": 3})
    messages = [{"payload": number} for number in range(7)]
    person.http.post("/api/v1/topics/shop.orders/publish", json={"messages": messages})
    url = make_link(person)
    with start_browser(tmp_path) as page:
        # 1. nobody yet
        page.open(office.server.url)
        assert "tidegate open" in page.text
        # 2. the link, its button, and the page behind it
        page.open(url)
        assert page.cookies() == {}
        page.press("button")
        assert page.path == "/"
        cookie = page.cookies()[COOKIE]
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert f"Signed in as {person.name} in the tenant {tenant}" in page.text
        assert re.search(r"shop\.orders\s+3\s+7", page.text)
        # 3. small screens scroll no page sideways; the style is not refused by our own policy
        for dark in (False, True):
            page.resize(360, 740, dark=dark)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
            page.screenshot(tmp_path / f"home-{'dark' if dark else 'light'}.png")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 24, 31)"
        assert not [text for text in page.complaints() if "Content Security Policy" in text]
        # 4. out, by the form of the page itself
        page.press("form[action='/leave'] button")
        assert "Signed out" in page.text
        assert page.cookies() == {}
        # 5. the link does not work twice
        page.open(url)
        page.press("button")
        assert "How to get in" in page.text
        assert page.cookies() == {}
