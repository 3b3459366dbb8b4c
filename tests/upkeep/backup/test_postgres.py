"""A home whose catalog is in PostgreSQL: restored into an empty database, never over one that is in use."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.catalog.postgres import Postgres
from tests.upkeep.backup.homes import ACTOR, load_catalog, make_home, no_report, opened_catalog, opened_topics
from tests.warm import command_line
from tidegate.catalog.database import Catalog
from tidegate.catalog.database_url import DatabaseAddress
from tidegate.errors import StorageFailed
from tidegate.model.access import Role
from tidegate.model.clock import SystemClock
from tidegate.storage.home.home import Home
from tidegate.upkeep.backup.restore import restore


def _run(home: Path, *words: str, catalog_url: str | None = None) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("TIDEGATE_")}
    environ = {} if catalog_url is None else {"TIDEGATE_CATALOG_URL": catalog_url}
    command = command_line(*words, "--home", str(home), "--json")
    return subprocess.run(command, capture_output=True, text=True, env={**clean, **environ}, check=False)


def _knows(url: str, token: str) -> str:
    catalog = Catalog.open(DatabaseAddress(url), SystemClock(), random_bytes=secrets.token_bytes)
    try:
        return catalog.tokens.find(token).user
    finally:
        catalog.close()


def test_the_catalog_goes_where_the_settings_say_and_only_into_an_empty_database(
    postgres: Postgres, tmp_path: Path
) -> None:
    url = postgres.create_database()
    home = make_home(tmp_path / "home")
    (home.path / "tidegate.toml").write_text(f'[catalog]\nurl = "{url}"\n')
    with opened_topics(home.engine_path) as topics:
        topics.publish(3)
    catalog = Catalog.open(DatabaseAddress(url), SystemClock(), random_bytes=secrets.token_bytes)
    catalog.accounts.ensure_admin(home.read_token(), home.home_id)
    catalog.accounts.add_user(ACTOR, "default", "alice", frozenset({Role.WRITER}))
    token = catalog.tokens.make(ACTOR, "default", "alice", lifetime_seconds=None).text
    catalog.close()
    file = str(tmp_path / "b.tar")
    made = _run(home.path, "backup", file)
    assert made.returncode == 0, made.stderr

    # The database of the first home, named by its settings, is in use.
    refused = _run(tmp_path / "new", "restore", file)
    assert json.loads(refused.stderr)["error"]["code"] == "CATALOG_UNUSABLE"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar", "home"]
    assert _knows(url, token) == "alice"

    other = postgres.create_database()
    restored = _run(tmp_path / "new", "restore", file, catalog_url=other)
    assert restored.returncode == 0, restored.stderr
    assert _knows(other, token) == "alice"
    assert not Home.existing(tmp_path / "new").catalog_path.exists()

    restored = _run(tmp_path / "local", "restore", file, catalog_url="")
    assert restored.returncode == 0, restored.stderr
    assert _knows(f"sqlite:///{Home.existing(tmp_path / 'local').catalog_path}", token) == "alice"


KILLED = """
import os, sys
from pathlib import Path
from tidegate.cli.commands.backup import HomeCatalog
from tidegate.upkeep.backup.restore import restore
home = Path(sys.argv[2])
restore(Path(sys.argv[1]), home, HomeCatalog(home), lambda *_: None, lambda: os.kill(os.getpid(), 9))
"""


def _backed_up(tmp_path: Path) -> tuple[str, str]:
    """Return a backup of a home, and a token that its catalog knows."""
    home = make_home(tmp_path / "home")
    with opened_topics(home.engine_path) as topics:
        topics.publish(3)
    with opened_catalog(home) as catalog:
        catalog.accounts.add_user(ACTOR, "default", "alice", frozenset({Role.WRITER}))
        token = catalog.tokens.make(ACTOR, "default", "alice", lifetime_seconds=None).text
    made = _run(home.path, "backup", str(tmp_path / "b.tar"))
    assert made.returncode == 0, made.stderr
    return str(tmp_path / "b.tar"), token


def test_a_restore_that_is_killed_before_its_home_appears_is_done_again(
    postgres: Postgres, tmp_path: Path
) -> None:
    file, token = _backed_up(tmp_path)
    url, new = postgres.create_database(), tmp_path / "new"
    environ = {**os.environ, "TIDEGATE_CATALOG_URL": url}
    killed = subprocess.run([sys.executable, "-c", KILLED, file, str(new)], env=environ, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not new.exists()
    assert _knows(url, token) == "alice", "the database is not filled: the test kills too early"

    elsewhere = _run(tmp_path / "elsewhere", "restore", file, catalog_url=url)
    assert json.loads(elsewhere.stderr)["error"]["code"] == "CATALOG_UNUSABLE"
    again = _run(new, "restore", file, catalog_url=url)
    assert again.returncode == 0, again.stderr
    assert _knows(url, token) == "alice"
    assert Home.existing(new).home_id == Home.existing(tmp_path / "home").home_id

    # Now it is in use, whatever became of the home.
    shutil.rmtree(new)
    refused = _run(new, "restore", file, catalog_url=url)
    assert json.loads(refused.stderr)["error"]["code"] == "CATALOG_UNUSABLE"
    assert _knows(url, token) == "alice"


def test_a_restore_that_was_killed_is_not_done_again_over_what_was_written_since(
    postgres: Postgres, tmp_path: Path
) -> None:
    file, token = _backed_up(tmp_path)
    url, new = postgres.create_database(), tmp_path / "new"
    environ = {**os.environ, "TIDEGATE_CATALOG_URL": url}
    subprocess.run([sys.executable, "-c", KILLED, file, str(new)], env=environ, check=False)
    catalog = Catalog.open(DatabaseAddress(url), SystemClock(), random_bytes=secrets.token_bytes)
    catalog.accounts.add_user(ACTOR, "default", "bob", frozenset({Role.WRITER}))
    catalog.close()
    refused = _run(new, "restore", file, catalog_url=url)
    assert json.loads(refused.stderr)["error"]["code"] == "CATALOG_UNUSABLE"
    assert _knows(url, token) == "alice"


def test_a_restore_that_fails_before_its_home_appears_leaves_the_database_empty(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, token = _backed_up(tmp_path)
    url = postgres.create_database()
    monkeypatch.setenv("TIDEGATE_CATALOG_URL", url)

    def fail() -> None:
        assert _knows(url, token) == "alice"
        raise OSError(5, "the disk said no")

    with pytest.raises(StorageFailed, match="the disk said no"):
        restore(Path(file), tmp_path / "new", load_catalog, no_report, fail)
    assert not list(tmp_path.glob("new*"))
    restored = _run(tmp_path / "elsewhere", "restore", file, catalog_url=url)
    assert restored.returncode == 0, restored.stderr
    assert _knows(url, token) == "alice"
