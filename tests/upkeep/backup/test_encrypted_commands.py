"""`tidegate backup --key` and `tidegate restore --key`: only the key gets a home out of the file."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.calls import tidegate
from tests.upkeep.backup.homes import ACTOR, make_home, opened_catalog, opened_topics, tree
from tidegate.model.access import Role
from tidegate.storage.home.home import Home
from tidegate.testing.server import running_server
from tidegate.upkeep.backup.encryption import HEADER_BYTES, make_key

SECRET_LINE = "# a line that nobody else may read\n"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = make_home(tmp_path / "home")
    with opened_topics(made.engine_path) as topics:
        topics.publish(50)
    (made.pipelines_path / "readings.py").write_text(SECRET_LINE)
    (made.pipelines_path / "hourly.py.stopped").write_text(SECRET_LINE)
    return made


@pytest.fixture
def key(tmp_path: Path) -> Path:
    make_key(tmp_path / "key", secrets.token_bytes(32))
    return tmp_path / "key"


def _answer(*words: str, home: Path) -> dict[str, Any]:
    answer = tidegate(*words, "--json", home=home)
    assert answer.returncode == 0, answer.stderr
    content: dict[str, Any] = json.loads(answer.stdout)
    return content


def _refusal(*words: str, home: Path) -> tuple[str, str]:
    """Return the code and the message of a refused restore, which must have left nothing."""
    answer = tidegate("restore", *words, "--json", home=home)
    assert answer.returncode == 1, answer.stdout
    error = json.loads(answer.stderr)["error"]
    assert not list(home.parent.glob(f"{home.name}*"))
    return error["code"], error["message"]


def _status(url: str, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.get(f"{url}/api/v1/topics", headers=headers, trust_env=False, timeout=30).status_code


def test_a_running_home_is_encrypted_and_restored_with_its_key(tmp_path: Path) -> None:
    made = _answer("backup", "--make-key", str(tmp_path / "key"), home=tmp_path / "no home needed")
    assert (made["file"], len(made["keyId"])) == (str(tmp_path / "key"), 16)
    file = tmp_path / "b.tar"
    with running_server(tmp_path / "home") as server:
        (server.home / "pipelines" / "readings.py").write_text(SECRET_LINE)
        (server.home / "lake" / "large").write_bytes(secrets.token_bytes(1 << 20))
        before = _answer("backup", str(file), "--key", str(tmp_path / "key"), home=server.home)
    assert (before["bytes"], before["encrypted"]) == (file.stat().st_size, True)
    content = file.read_bytes()
    assert SECRET_LINE.encode() not in content
    assert server.token.encode() not in content
    after = _answer("restore", str(file), "--key", str(tmp_path / "key"), home=tmp_path / "new")
    assert (after["files"], after["pipelines"]) == (before["files"], ["readings"])
    assert tree(tmp_path / "new")["lake/large"] == tree(server.home)["lake/large"]
    assert (tmp_path / "new" / "pipelines" / "readings.py").read_text() == SECRET_LINE


def test_without_the_right_key_there_is_no_home(home: Home, key: Path, tmp_path: Path) -> None:
    file, plain, new = tmp_path / "b.tar", tmp_path / "plain.tar", tmp_path / "in" / "new"
    new.parent.mkdir()
    _answer("backup", str(file), "--key", str(key), home=home.path)
    _answer("backup", str(plain), home=home.path)
    make_key(tmp_path / "other", secrets.token_bytes(32))
    refused = "BACKUP_UNUSABLE"
    assert _refusal(str(file), home=new)[0] == refused
    assert "another key" in _refusal(str(file), "--key", str(tmp_path / "other"), home=new)[1]
    assert "not encrypted" in _refusal(str(plain), "--key", str(key), home=new)[1]
    assert _refusal(str(file), "--key", str(tmp_path / "none"), home=new)[0] == "BACKUP_KEY_UNUSABLE"
    key.chmod(0o640)
    assert _refusal(str(file), "--key", str(key), home=new)[0] == "BACKUP_KEY_UNUSABLE"
    answer = tidegate("backup", str(tmp_path / "c.tar"), "--key", str(key), "--json", home=home.path)
    assert json.loads(answer.stderr)["error"]["code"] == "BACKUP_KEY_UNUSABLE"
    assert not (tmp_path / "c.tar").exists()


def test_a_changed_or_cut_file_leaves_no_home(home: Home, key: Path, tmp_path: Path) -> None:
    file, new = tmp_path / "b.tar", tmp_path / "in" / "new"
    new.parent.mkdir()
    _answer("backup", str(file), "--key", str(key), home=home.path)
    whole = file.read_bytes()
    for at in (0, HEADER_BYTES - 1, HEADER_BYTES, len(whole) // 2, len(whole) - 1):
        changed = bytearray(whole)
        changed[at] ^= 1
        file.write_bytes(changed)
        assert _refusal(str(file), "--key", str(key), home=new)[0] == "BACKUP_UNUSABLE"
    file.write_bytes(whole[:-1])
    assert _refusal(str(file), "--key", str(key), home=new)[0] == "BACKUP_UNUSABLE"
    file.write_bytes(whole)
    assert _answer("restore", str(file), "--key", str(key), home=new)["files"]


def test_a_restore_says_who_is_let_in_and_what_starts(home: Home, tmp_path: Path) -> None:
    with opened_catalog(home) as catalog:
        catalog.accounts.add_user(ACTOR, "default", "alice", frozenset({Role.READER}))
        catalog.accounts.add_user(ACTOR, "default", "barred", frozenset({Role.READER}))
        for user in ("alice", "alice", "barred"):
            token = catalog.tokens.make(ACTOR, "default", user, lifetime_seconds=None)
        catalog.accounts.change_user(ACTOR, "default", "barred", enabled=False)
        ended = catalog.tokens.make(ACTOR, "default", "alice", lifetime_seconds=None)
        catalog.tokens.revoke(ACTOR, "default", "alice", ended.id)
        admin = catalog.tokens.find(home.read_token())
        catalog.tokens.use_link(catalog.tokens.make_link(admin, 3_600).code, 3_600)
        catalog.tokens.make_link(admin, 3_600)
    assert token
    _answer("backup", str(tmp_path / "b.tar"), home=home.path)
    answer = tidegate("restore", str(tmp_path / "b.tar"), home=tmp_path / "new")
    assert "Valid again: 3 tokens, 1 browser session, 1 one-time link." in answer.stdout
    assert "--new-tokens" in answer.stdout
    assert "Starts with it: readings." in answer.stdout
    answer = tidegate("restore", str(tmp_path / "b.tar"), "--new-tokens", home=tmp_path / "other")
    assert "the new token in" in answer.stdout
    counted = _answer("restore", str(tmp_path / "b.tar"), "--new-tokens", home=tmp_path / "third")
    assert (counted["tokens"], counted["sessions"], counted["links"]) == (1, 0, 0)


def test_new_tokens_end_all_but_the_new_one(home: Home, tmp_path: Path) -> None:
    with opened_catalog(home) as catalog:
        catalog.accounts.add_user(ACTOR, "default", "alice", frozenset({Role.READER}))
        alice = catalog.tokens.make(ACTOR, "default", "alice", lifetime_seconds=None).text
        admin = catalog.tokens.find(home.read_token())
        session = catalog.tokens.use_link(catalog.tokens.make_link(admin, 3_600).code, 3_600).text
        code = catalog.tokens.make_link(admin, 3_600).code
    _answer("backup", str(tmp_path / "b.tar"), home=home.path)
    old = home.read_token()
    _answer("restore", str(tmp_path / "b.tar"), home=tmp_path / "same")
    _answer("restore", str(tmp_path / "b.tar"), "--new-tokens", home=tmp_path / "new")
    new = Home.existing(tmp_path / "new").read_token()
    assert new != old
    with running_server(tmp_path / "same") as server:
        assert [_status(server.url, token) for token in (old, alice)] == [200, 200]
    with running_server(tmp_path / "new") as server:
        assert server.token == new
        assert [_status(server.url, token) for token in (new, old, alice, session)] == [200, 401, 401, 401]
        entered = httpx.get(f"{server.url}/enter", params={"code": code}, trust_env=False, timeout=30)
        assert "set-cookie" not in entered.headers
        headers = {"Authorization": f"Bearer {new}"}
        events = httpx.get(f"{server.url}/api/v1/audit", headers=headers, trust_env=False, timeout=30).json()
        (restored,) = [event for event in events["events"] if event["action"] == "backup.restore"]
        assert (restored["outcome"], restored["details"]["tokens"]) == ("done", "ended")


def test_a_key_is_made_alone(home: Home, key: Path, tmp_path: Path) -> None:
    words = ("backup", str(tmp_path / "b.tar"), "--make-key", str(tmp_path / "second"))
    assert tidegate(*words, home=home.path).returncode == 2
    assert tidegate("backup", home=home.path).returncode == 2
    answer = tidegate("backup", "--make-key", str(key), home=home.path)
    assert (answer.returncode, "already exists" in answer.stderr) == (1, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "key"]
