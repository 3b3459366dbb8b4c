"""What a command says when something is wrong: words that the caller can act on."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.calls import tidegate
from tidegate.testing.server import RunningServer, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("hints") / "home") as running:
        assert (
            tidegate("topic", "create", "app.events", "--partitions", "3", home=running.home).returncode == 0
        )
        assert tidegate("tenant", "create", "acme", home=running.home).returncode == 0
        yield running


@pytest.fixture
def home(server: RunningServer) -> Path:
    return server.home


def test_a_token_in_the_environment_is_used_with_the_server_of_the_home(home: Path) -> None:
    tidegate("user", "add", "walter", home=home)
    token = tidegate("user", "token", "walter", home=home).stdout.strip()
    answer = tidegate("user", "list", home=home, environ={"TIDEGATE_TOKEN": token})
    assert answer.returncode == 1
    assert "User 'walter' may not do this" in answer.stderr
    wrong = tidegate("topic", "list", home=home, environ={"TIDEGATE_TOKEN": "abc"})
    assert (wrong.returncode, "TIDEGATE_TOKEN" in wrong.stderr) == (1, True)
    named = tidegate("topic", "list", "--home", str(home), home=home, environ={"TIDEGATE_TOKEN": "abc"})
    assert named.returncode == 0, named.stderr


def test_what_is_for_the_instance_is_not_given_by_a_tenant(home: Path) -> None:
    tidegate("user", "add", "ann", "--role", "AdminPanelManagement", "--tenant", "acme", home=home)
    token = tidegate("user", "token", "ann", "--tenant", "acme", home=home).stdout.strip()
    answer = tidegate("tenant", "list", home=home, environ={"TIDEGATE_TOKEN": token})
    assert "administrators of the instance" in answer.stderr
    assert "can give it" not in answer.stderr


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("topic", "show", "app.event"), "app.events"),
        (("user", "show", "admni"), "admin"),
        (("topic", "list", "--tenant", "amce"), "acme"),
        (("audit", "--action", "tokn.create"), "token.create"),
    ],
)
def test_the_nearest_name_is_offered(words: tuple[str, ...], meant: str, home: Path) -> None:
    answer = tidegate(*words, home=home)
    assert answer.returncode in (1, 2)
    assert f"id you mean '{meant}'?" in answer.stderr


def test_no_name_is_offered_where_none_is_near_or_none_may_be_seen(home: Path) -> None:
    assert "mean" not in tidegate("topic", "show", "zzz", home=home).stderr
    tidegate("user", "add", "rita", "--role", "reader", home=home)
    token = tidegate("user", "token", "rita", home=home).stdout.strip()
    answer = tidegate("topic", "list", "--tenant", "amce", home=home, environ={"TIDEGATE_TOKEN": token})
    assert (answer.returncode, "mean" in answer.stderr) == (1, False)


def test_an_action_that_is_none_is_wrong_usage(home: Path) -> None:
    assert tidegate("audit", "--action", "tokn.create", home=home).returncode == 2
    assert tidegate("audit", "--action", "link.use", home=home).returncode == 0


def test_an_offset_without_a_partition_names_the_flag(home: Path) -> None:
    answer = tidegate("topic", "consume", "app.events", "--from", "99", home=home)
    assert (answer.returncode, "--partition N (0 to 2)" in answer.stderr) == (1, True)


def test_the_first_tenant_says_that_it_cannot_be_disabled(home: Path) -> None:
    answer = tidegate("tenant", "disable", "default", home=home)
    assert (answer.returncode, "cannot be disabled" in answer.stderr) == (1, True)


def test_https_to_a_plain_port_says_http(server: RunningServer) -> None:
    plain = server.url.removeprefix("http://")
    environ = {"TIDEGATE_URL": f"https://{plain}", "TIDEGATE_TOKEN": server.token}
    answer = tidegate("topic", "list", home=server.home, environ=environ)
    assert (answer.returncode, f"try http://{plain}" in answer.stderr) == (1, True)


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>Welcome</html>")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_page_of_something_else_is_asked_about(tmp_path: Path) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Page) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        environ = {"TIDEGATE_URL": f"http://127.0.0.1:{other.server_port}", "TIDEGATE_TOKEN": "abc"}
        answer = tidegate("topic", "list", "--json", home=tmp_path, environ=environ)
        other.shutdown()
    assert "address of a Tidegate server" in json.loads(answer.stderr)["error"]["hint"]


def test_a_file_that_is_no_backup_is_called_so(tmp_path: Path) -> None:
    for content in (b"", b"hello\n", b"x" * 5000):
        (tmp_path / "file").write_bytes(content)
        answer = tidegate("restore", str(tmp_path / "file"), home=tmp_path / "home")
        assert answer.returncode == 1
        if content:
            assert "not a backup of Tidegate" in answer.stderr
