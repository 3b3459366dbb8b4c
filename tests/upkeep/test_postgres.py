"""A home whose catalog is in PostgreSQL: restored into an empty database, never over one that is in use."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

from tests.upkeep.homes import ACTOR, make_home, opened_topics
from tidegate.catalog.database import Catalog, CatalogPlace
from tidegate.model.access import Role
from tidegate.model.clock import SystemClock
from tidegate.storage.home import Home
from tidegate.testing.postgres import Postgres


def _run(home: Path, *words: str, catalog_url: str | None = None) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("TIDEGATE_")}
    environ = {} if catalog_url is None else {"TIDEGATE_CATALOG_URL": catalog_url}
    command = [sys.executable, "-m", "tidegate", *words, "--home", str(home), "--json"]
    return subprocess.run(command, capture_output=True, text=True, env={**clean, **environ}, check=False)


def _knows(url: str, token: str) -> str:
    catalog = Catalog.open(CatalogPlace(url), SystemClock(), random_bytes=secrets.token_bytes)
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
    catalog = Catalog.open(CatalogPlace(url), SystemClock(), random_bytes=secrets.token_bytes)
    catalog.people.ensure_admin(home.read_token(), home.home_id)
    catalog.people.add_user(ACTOR, "default", "alice", frozenset({Role.WRITER}))
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
