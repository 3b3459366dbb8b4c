"""Settings: what wins over what, and how wrong ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.errors import SettingInvalid
from tidegate.settings import describe_settings, load_settings


def test_later_sources_win_and_the_origin_is_known(tmp_path: Path) -> None:
    (tmp_path / "tidegate.toml").write_text("[server]\nport = 1000\nhost = '0.0.0.0'\n[query]\nthreads = 3\n")
    settings = load_settings(
        tmp_path, {"TIDEGATE_SERVER_PORT": "2000", "TIDEGATE_HOME": "/x", "PATH": "y"}, {"query.threads": 4}
    )
    assert (settings.server.port, settings.server.host, settings.query.threads) == (2000, "0.0.0.0", 4)
    assert settings.origin("server.port") == "environment TIDEGATE_SERVER_PORT"
    assert settings.origin("server.host") == str(tmp_path / "tidegate.toml")
    assert settings.origin("query.threads") == "flag"
    assert settings.origin("storage.sync_writes") == "default"


def test_every_setting_can_be_set_by_variable() -> None:
    for note in describe_settings():
        settings = load_settings(None, {note.environment: str(note.default)})
        assert settings.value(note.key) == note.default
        assert settings.origin(note.key) == f"environment {note.environment}"


@pytest.mark.parametrize(
    ("file", "variables", "flags", "says"),
    [
        ("[server]\nprot = 1\n", {}, {}, "did you mean 'server.port'"),
        ("port = 1\n", {}, {}, "settings stand in sections"),
        ("[server\n", {}, {}, "not TOML"),
        ("[server]\nport = 'x'\n", {}, {}, "'x' is not a whole number"),
        ("[server]\nport = true\n", {}, {}, "True is not a whole number"),
        ("[server]\nport = 70000\n", {}, {}, "above the most, 65535"),
        ("", {"TIDEGATE_SERVER_PROT": "1"}, {}, "did you mean 'TIDEGATE_SERVER_PORT'"),
        ("", {"TIDEGATE_STORAGE_SYNC_WRITES": "maybe"}, {}, "'maybe' is not true or false"),
        ("", {}, {"server.port": -1}, "below the least, 0"),
    ],
)
def test_wrong_settings_are_refused_with_their_place(
    tmp_path: Path, file: str, variables: dict[str, str], flags: dict[str, object], says: str
) -> None:
    (tmp_path / "tidegate.toml").write_text(file)
    with pytest.raises(SettingInvalid, match=says):
        load_settings(tmp_path, variables, flags)


def test_a_flag_that_was_not_given_changes_nothing() -> None:
    assert load_settings(None, {}, {"server.port": None}).origin("server.port") == "default"
