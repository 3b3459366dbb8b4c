from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.calls import tidegate
from tidegate.testing.server import RunningServer, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("tenant") / "home") as running:
        assert tidegate("tenant", "create", "acme", home=running.home).returncode == 0
        yield running


@pytest.fixture
def home(server: RunningServer) -> Path:
    return server.home


def test_a_tenant_is_created_listed_disabled_and_enabled(home: Path) -> None:
    made = tidegate("tenant", "create", "umbrella", home=home)
    assert made.returncode == 0, made.stderr
    assert "tidegate user add NAME --tenant umbrella" in made.stdout
    for verb, enabled in (("disable", False), ("enable", True)):
        assert tidegate("tenant", verb, "umbrella", home=home).returncode == 0
        listed = json.loads(tidegate("tenant", "list", "--json", home=home).stdout)["tenants"]
        assert {entry["name"]: entry["enabled"] for entry in listed}["umbrella"] is enabled
    assert "umbrella" in tidegate("tenant", "list", home=home).stdout
    again = tidegate("tenant", "create", "umbrella", home=home)
    assert again.returncode == 1


def test_topics_of_a_tenant_are_not_those_of_another(home: Path) -> None:
    assert tidegate("topic", "create", "app.own", "--tenant", "acme", home=home).returncode == 0
    published = tidegate("topic", "publish", "app.own", "1", "--tenant", "acme", home=home)
    assert published.returncode == 0, published.stderr
    assert "app.own" in tidegate("topic", "list", "--tenant", "acme", home=home).stdout
    assert "app.own" not in tidegate("topic", "list", home=home).stdout
    assert tidegate("topic", "show", "app.own", home=home).returncode == 1


def test_the_tenant_is_named_before_the_noun_after_the_verb_or_by_a_variable(home: Path) -> None:
    added = tidegate("user", "add", "carl", "--tenant", "acme", home=home)
    assert added.returncode == 0, added.stderr
    assert "user token carl --tenant acme" in added.stdout
    for answer in (
        tidegate("--tenant", "acme", "user", "list", home=home),
        tidegate("user", "list", "--tenant", "acme", home=home),
        tidegate("user", "list", home=home, environ={"TIDEGATE_TENANT": "acme"}),
        tidegate("user", "list", "--tenant", "acme", home=home, environ={"TIDEGATE_TENANT": "default"}),
    ):
        assert "carl" in answer.stdout, answer.stderr
    assert "carl" not in tidegate("user", "list", home=home).stdout


def test_a_tenant_that_is_not_there_is_refused(home: Path) -> None:
    answer = tidegate("topic", "list", "--tenant", "nowhere", home=home)
    assert answer.returncode == 1
    assert "There is no tenant 'nowhere'" in answer.stderr


@pytest.mark.parametrize("words", [("tenant", "list"), ("doctor",), ("open",), ("pipeline", "list")])
def test_what_is_about_the_instance_takes_no_tenant(words: tuple[str, ...], home: Path) -> None:
    assert tidegate(*words, "--tenant", "acme", home=home).returncode == 2
    before = tidegate("--tenant", "acme", *words, home=home)
    assert before.returncode == 2
    assert "takes no --tenant" in before.stderr


def test_someone_of_a_tenant_sees_their_own_and_names_no_other(
    home: Path, server: RunningServer, tmp_path: Path
) -> None:
    words = ("--tenant", "acme")
    assert tidegate("user", "add", "anna", "--role", "admin", *words, home=home).returncode == 0
    token = tidegate("user", "token", "anna", *words, home=home).stdout.strip()
    environ = {"TIDEGATE_URL": server.url, "TIDEGATE_TOKEN": token}
    nowhere = tmp_path / "none"
    made = tidegate("topic", "create", "anna.own", home=nowhere, environ=environ)
    assert made.returncode == 0, made.stderr
    assert "anna.own" in tidegate("topic", "list", *words, home=home).stdout
    other = tidegate("topic", "list", "--tenant", "default", home=nowhere, environ=environ)
    assert other.returncode == 1
    assert "There is no tenant 'default'" in other.stderr
    assert tidegate("tenant", "list", home=nowhere, environ=environ).returncode == 1


def test_quotas_are_shown_set_and_given_back_to_the_settings(home: Path) -> None:
    shown = tidegate("tenant", "quota", "acme", home=home)
    assert (shown.returncode, "disk-bytes" in shown.stdout) == (0, True), shown.stderr
    options = ("--set", "topics=7", "--set", "disk-bytes=20_000_000", "--json")
    quota = json.loads(tidegate("tenant", "quota", "acme", *options, home=home).stdout)
    assert (quota["topics"]["limit"], quota["diskBytes"]["limit"]) == (7, 20_000_000)
    assert quota["own"] == ["topics", "diskBytes"]
    text = tidegate("tenant", "quota", "acme", home=home).stdout
    assert "its own" in text
    assert "20 MB" in text
    again = tidegate("tenant", "quota", "acme", "--set", "topics=default", "--json", home=home)
    assert json.loads(again.stdout)["own"] == ["diskBytes"]
    assert tidegate("tenant", "quota", "acme", "--set", "disk-bytes=0", home=home).returncode == 0
    assert tidegate("tenant", "quota", "nobody", home=home).returncode == 1


def test_the_quota_of_a_user_is_one_of_rates(home: Path) -> None:
    assert tidegate("user", "add", "dora", "--tenant", "acme", home=home).returncode == 0
    where = ("dora", "--tenant", "acme", "--json")
    changed = tidegate("user", "quota", *where, "--set", "requests-per-second=20", home=home)
    assert json.loads(changed.stdout)["requestsPerSecond"]["limit"] == 20
    assert json.loads(tidegate("user", "quota", *where, home=home).stdout)["own"] == ["requestsPerSecond"]
    for wrong in ("topics=1", "requests-per-second", "requests-per-second=-1", "requests-per-second=many"):
        refused = tidegate("user", "quota", *where, "--set", wrong, home=home)
        assert refused.returncode == 2, wrong
