"""The page of the API: read and tried in a real browser, with nothing from anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.browser import Page, start_browser
from tidegate.server.openapi.swagger import POLICY, bundle_folder
from tidegate.testing.server import RunningServer

FILES = {
    "swagger-ui-bundle.js": "text/javascript",
    "start.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "style.css": "text/css",
}
APPEARS_SECONDS_MAX = 120.0


def test_the_page_and_its_files_come_with_their_types(http: httpx.Client) -> None:
    page = http.get("/docs")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for name, content_type in FILES.items():
        answer = http.get(f"/docs/{name}")
        assert answer.status_code == 200, name
        assert answer.headers["content-type"] == f"{content_type}; charset=utf-8"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert f'"/docs/{name}"' in page.text


def test_the_page_allows_only_this_server(http: httpx.Client) -> None:
    policy = http.get("/docs").headers["content-security-policy"]
    assert policy == POLICY
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "//" not in http.get("/docs").text.replace("</", "")


@pytest.mark.parametrize("path", ["/docs", "/docs/swagger-ui.css", "/docs/start.js", "/openapi.json"])
def test_what_a_browser_has_already_is_not_sent_again(http: httpx.Client, path: str) -> None:
    first = http.get(path)
    again = http.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    other = http.get(path, headers={"If-None-Match": '"something-else"'})
    assert (other.status_code, other.content) == (200, first.content)


@pytest.mark.parametrize(
    "name", ["nowhere.js", "..", "%2e%2e%2froutes.py", "__init__.py", "swagger_bundle.js"]
)
def test_no_other_file_is_served(http: httpx.Client, name: str) -> None:
    answer = http.get(f"/docs/{name}")
    assert answer.status_code == 404 or (name == ".." and answer.url.path == "/")


@pytest.mark.parametrize("path", ["/docs", "/docs/start.js", "/openapi.json"])
def test_nobody_reads_it_without_a_token(server: RunningServer, path: str) -> None:
    answer = httpx.get(f"{server.url}{path}", trust_env=False, timeout=60)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "TOKEN_MISSING"


def test_the_bundle_is_the_one_that_knows_openapi_3_1() -> None:
    script = (bundle_folder() / "swagger_bundle.js").read_text(encoding="utf-8")
    assert 'PACKAGE_VERSION:"5.' in script


def wait_for(page: Page, script: str) -> None:
    """Wait until some JavaScript is true; what is on the page appears bit by bit."""
    deadline = time.monotonic() + APPEARS_SECONDS_MAX
    while not page.evaluate(script):
        assert time.monotonic() < deadline, f"{script}\n{page.text}"
        time.sleep(0.05)


def within(operation: str, selector: str) -> str:
    """Name an element of one operation on the page."""
    name = f"operations-{operation.partition('.')[0]}-{operation}".replace(".", "\\\\.")
    return f'document.getElementById("{name}")?.querySelector("{selector}")'


@pytest.fixture
def signed_in(server: RunningServer, http: httpx.Client, tmp_path: Path) -> Callable[[Page], None]:
    def enter(page: Page) -> None:
        page.open(http.post("/api/v1/links").json()["url"])
        page.press("button")

    return enter


def test_a_browser_that_is_not_signed_in_is_told_how_to_get_in(server: RunningServer, tmp_path: Path) -> None:
    with start_browser(tmp_path) as page:
        page.open(f"{server.url}/docs")
        assert "tidegate open" in page.text
        assert "swagger" not in page.evaluate("document.documentElement.innerHTML")


def test_a_person_tries_a_call_on_the_page(
    server: RunningServer, http: httpx.Client, signed_in: Callable[[Page], None], tmp_path: Path
) -> None:
    http.delete("/api/v1/topics/app.events")
    with start_browser(tmp_path) as page:
        signed_in(page)
        page.events.clear()
        # 1. the page lists the operations
        page.open(f"{server.url}/docs")
        wait_for(page, f"!!{within('topic.create', '.opblock-summary-control')}")
        assert page.evaluate("document.querySelector('.opblock-tag-section') !== null")
        # 2. one is opened and sent with its example, by the session alone
        page.evaluate(f"{within('topic.create', '.opblock-summary-control')}.click()")
        wait_for(page, f"!!{within('topic.create', '.execute')}")
        # The example fills in a moment later; without it nothing would be sent.
        wait_for(page, f"!!{within('topic.create', 'textarea')}?.value")
        page.evaluate(f"{within('topic.create', '.execute')}.click()")
        wait_for(page, f"!!{within('topic.create', '.live-responses-table .response-col_status')}")
        page.evaluate(f"{within('topic.create', '.responses-wrapper')}.scrollIntoView()")
        page.screenshot(tmp_path / "docs.png")
        # 3. the topic is there, nothing was refused, and nobody else was asked
        assert http.get("/api/v1/topics/app.events").status_code == 200
        assert page.complaints() == []
        sent = [
            e["params"]["request"]["url"] for e in page.events if e["method"] == "Network.requestWillBeSent"
        ]
        assert {urlsplit(url).netloc for url in sent if not url.startswith("data:")} == {
            urlsplit(server.url).netloc
        }
