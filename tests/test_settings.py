"""Settings: what wins over what, and how wrong ones are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.paths import ROOT
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
        ("port = 1\n", {}, {}, "settings belong in sections"),
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


# Numbers that need no unit: what they count is their name.
COUNTED = {"server.port", "query.threads", "tracing.sample_ratio"}
UNITS: tuple[str, ...] = (
    "_seconds",
    "_seconds_max",
    "_seconds_min",
    "_ms",
    "_ms_max",
    "_bytes",
    "_bytes_max",
    "_bytes_min",
)
UNITS += ("_mb", "_hours", "_days_max", "_days_default", "_ms_default", "_max")


def test_every_number_has_bounds_and_its_unit_in_its_name() -> None:
    numbers = [note for note in describe_settings() if note.kind in ("int", "float")]
    assert len(numbers) > 20
    for note in numbers:
        assert note.key in COUNTED or note.key.endswith(UNITS), note.key
        assert note.low is not None, note.key
        assert note.high is not None, note.key
        assert note.low <= float(str(note.default)) <= note.high, note.key
    for note in describe_settings():
        assert note.doc.endswith((".", "off.")), note.key


def test_every_setting_is_read_somewhere() -> None:
    """An option that is accepted and ignored is a defect."""
    source = ROOT / "src" / "tidegate"
    code = "\n".join(file.read_text() for file in source.rglob("*.py") if file.parent.name != "settings")
    for note in describe_settings():
        assert re.search(rf"\.{note.key.split('.')[1]}\b", code), f"nothing reads {note.key}"


@pytest.mark.parametrize(("key", "value"), [("log.format", "xml"), ("log.level", "loud")])
def test_a_word_that_is_not_known_is_refused_with_those_that_are(key: str, value: str) -> None:
    with pytest.raises(SettingInvalid, match="it is one of"):
        load_settings(None, {}, {key: value})


def test_a_secret_is_not_shown() -> None:
    settings = load_settings(None, {"TIDEGATE_CATALOG_URL": "postgresql://u:hush@h/d"})
    assert settings.shown("catalog.url") == "(set)"
    assert settings.shown("server.port") == 8787
    assert "hush" not in repr(settings)
