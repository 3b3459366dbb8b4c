from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidegate as front
from tests.cli.calls import on_a_terminal, tidegate
from tidegate.errors import Forbidden, TokenRevoked, UserDisabled
from tidegate.testing.server import RunningServer, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("user") / "home") as running:
        yield running


@pytest.fixture
def home(server: RunningServer) -> Path:
    return server.home


def roles_of(name: str, home: Path) -> list[str]:
    answer = tidegate("user", "show", name, "--json", home=home)
    assert answer.returncode == 0, answer.stderr
    roles: list[str] = json.loads(answer.stdout)["roles"]
    return sorted(roles)


def test_a_new_user_is_a_writer(home: Path) -> None:
    answer = tidegate("user", "add", "walter", home=home)
    assert answer.returncode == 0, answer.stderr
    assert "tidegate user token walter" in answer.stdout
    assert roles_of("walter", home) == ["StreamDataWriter"]


def test_roles_are_named_short_or_in_full_and_more_than_one(home: Path) -> None:
    words = ("--role", "reader", "--role", "AdminPanelManagement")
    assert tidegate("user", "add", "rita", *words, home=home).returncode == 0
    assert roles_of("rita", home) == ["AdminPanelManagement", "StreamDataReader"]
    assert tidegate("user", "role", "rita", "--role", "admin", home=home).returncode == 0
    assert roles_of("rita", home) == ["StreamDataAdmin"]


def test_a_role_that_is_none_is_refused_with_those_that_are(home: Path) -> None:
    answer = tidegate("user", "add", "boris", "--role", "boss", home=home)
    assert answer.returncode == 1
    assert "'boss' is not a role" in answer.stderr
    assert "reader, writer, admin" in answer.stderr
    assert tidegate("user", "show", "boris", home=home).returncode == 1


def test_a_token_is_printed_alone_and_lets_its_owner_in(home: Path, server: RunningServer) -> None:
    tidegate("user", "add", "tom", home=home)
    answer = tidegate("user", "token", "tom", "--label", "ci", "--days", "2", home=home)
    token = answer.stdout.removesuffix("\n")
    assert token.startswith("tg_")
    assert token.split() == [token]
    assert token not in answer.stderr
    assert "shown once" in answer.stderr
    with front.connect(server.url, token=token) as client:
        me = client.me()
        assert (me["user"], me["tenant"], me["instanceAdmin"]) == ("tom", "default", False)
        with pytest.raises(Forbidden):
            client.users.list()


def test_tokens_are_listed_without_their_secrets_and_one_can_be_revoked(
    home: Path, server: RunningServer
) -> None:
    tidegate("user", "add", "rosa", home=home)
    made = json.loads(tidegate("user", "token", "rosa", "--no-end", "--json", home=home).stdout)
    assert made["expiresAt"] is None
    listed = tidegate("user", "tokens", "rosa", "--json", home=home).stdout
    assert [entry["id"] for entry in json.loads(listed)["tokens"]] == [made["id"]]
    assert made["token"] not in listed
    assert made["id"] in tidegate("user", "tokens", "rosa", home=home).stdout
    assert tidegate("user", "revoke", "rosa", made["id"], home=home).returncode == 0
    with (
        pytest.raises(TokenRevoked),
        front.connect(server.url, token=made["token"], retry_seconds=0) as client,
    ):
        client.me()
    again = tidegate("user", "revoke", "rosa", "0123456789abcdef", home=home)
    assert again.returncode == 1


def test_days_and_no_end_exclude_each_other(home: Path) -> None:
    answer = tidegate("user", "token", "admin", "--days", "1", "--no-end", home=home)
    assert (answer.returncode, answer.stdout) == (2, "")


def test_a_disabled_user_is_kept_out_until_enabled(home: Path, server: RunningServer) -> None:
    tidegate("user", "add", "dora", home=home)
    token = tidegate("user", "token", "dora", home=home).stdout.strip()
    assert tidegate("user", "disable", "dora", home=home).returncode == 0
    with front.connect(server.url, token=token, retry_seconds=0) as client:
        with pytest.raises(UserDisabled):
            client.me()
        assert tidegate("user", "enable", "dora", home=home).returncode == 0
        assert client.me()["user"] == "dora"


def test_a_user_is_not_removed_where_nobody_can_be_asked(home: Path) -> None:
    tidegate("user", "add", "kim", home=home)
    for flags in ((), ("--json",)):
        answer = tidegate("user", "remove", "kim", *flags, home=home, stdin="y\n")
        assert answer.returncode == 2
        assert "--yes" in answer.stderr
    code, said = on_a_terminal("user", "remove", "kim", home=home, typed="n\n")
    assert (code, "Nothing was removed." in said) == (1, True)
    assert tidegate("user", "show", "kim", home=home).returncode == 0
    assert tidegate("user", "remove", "kim", "--yes", home=home).returncode == 0
    gone = tidegate("user", "show", "kim", home=home)
    assert gone.returncode == 1
    assert "There is no user 'kim'" in gone.stderr


def test_a_user_goes_with_the_rows_and_the_name_is_not_given_again_silently(home: Path) -> None:
    tidegate(
        "sql", "CREATE NAMESPACE erase; CREATE USER TABLE erase.notes (id BIGINT PRIMARY KEY)", home=home
    )
    assert tidegate("user", "add", "nina", home=home).returncode == 0
    insert = "EXECUTE AS 'nina' (INSERT INTO erase.notes VALUES (1), (2))"
    assert tidegate("sql", insert, home=home).returncode == 0
    kept = tidegate("user", "remove", "nina", "--yes", home=home)
    assert "tidegate user remove nina --with-rows" in kept.stdout
    refused = tidegate("user", "add", "nina", home=home)
    assert refused.returncode == 1
    assert "erase.notes" in refused.stderr
    assert "--take-rows" in refused.stderr
    assert tidegate("user", "add", "nina", "--take-rows", home=home).returncode == 0
    code, said = on_a_terminal("user", "remove", "nina", "--with-rows", home=home, typed="n\n")
    assert (code, "Nothing was removed." in said, "remove their rows" in said) == (1, True, True)
    gone = tidegate("user", "remove", "nina", "--with-rows", "--yes", home=home)
    assert (gone.returncode, "2 rows" in gone.stdout, "erase.notes" in gone.stdout) == (0, True, True)
    again = tidegate("user", "remove", "nina", "--with-rows", "--yes", "--json", home=home)
    assert json.loads(again.stdout) == {
        "removed": "nina",
        "userRemoved": False,
        "rows": 0,
        "logs": 0,
        "tables": [],
    }
    assert tidegate("user", "add", "nina", home=home).returncode == 0


def test_the_first_administrator_stays(home: Path) -> None:
    for words in (("remove", "admin", "--yes"), ("disable", "admin"), ("role", "admin", "--role", "reader")):
        answer = tidegate("user", *words, home=home)
        assert answer.returncode == 1, words
    assert roles_of("admin", home) == ["AdminPanelManagement"]


def test_the_audit_trail_tells_who_did_what_the_newest_first(home: Path) -> None:
    tidegate("user", "add", "first", home=home)
    tidegate("user", "add", "second", home=home)
    words = ("audit", "--action", "user.create", "--user", "admin", "--limit", "2")
    events = json.loads(tidegate(*words, "--json", home=home).stdout)["events"]
    assert [(event["subject"], event["outcome"]) for event in events] == [
        ("user/second", "done"),
        ("user/first", "done"),
    ]
    drawn = tidegate(*words, home=home).stdout
    assert drawn.index("user/second") < drawn.index("user/first")
    assert "No events." in tidegate("audit", "--user", "nobody", home=home).stdout


def test_jobs_are_listed_and_one_that_is_not_there_is_refused(home: Path) -> None:
    listed = tidegate("job", "list", "--json", home=home)
    assert listed.returncode == 0, listed.stderr
    assert isinstance(json.loads(listed.stdout)["jobs"], list)
    shown = tidegate("job", "show", "nope", home=home)
    assert shown.returncode == 1
    assert "tidegate job list" in shown.stderr


def test_a_users_own_token_is_used_with_an_address(
    home: Path, server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tidegate("user", "add", "wendy", home=home)
    token = tidegate("user", "token", "wendy", home=home).stdout.strip()
    words = {"TIDEGATE_URL": server.url, "TIDEGATE_TOKEN": token}
    answer = tidegate("user", "list", home=tmp_path / "none", environ=words)
    assert answer.returncode == 1
    assert "wendy" in answer.stderr
    assert "TIDEGATE_TOKEN" not in os.environ
