from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.calls import tidegate
from tidegate.cli.main import wants_json
from tidegate.storage.home.home import Home

# Each of these takes longer to load than all else that --help needs.
HEAVY = ("pyarrow", "pyspark", "pandas", "numpy", "httpx", "rocksdict", "duckdb", "deltalake")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_help_loads_nothing_heavy(home: Path) -> None:
    answer = tidegate("--help", home=home, environ={"PYTHONPROFILEIMPORTTIME": "1"})
    assert answer.returncode == 0
    assert "pipeline" in answer.stdout
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in answer.stderr.splitlines()}
    assert "tidegate" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_the_command_line_loads_nothing_heavy() -> None:
    code = (
        f"import sys, tidegate.cli.main; print([name for name in {(*HEAVY, 'rich')} if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_version_is_printed(home: Path) -> None:
    answer = tidegate("--version", home=home, cold=True)
    assert (answer.returncode, answer.stdout.split()[0]) == (0, "tidegate")


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "crate", "a"),
        ("topic", "create"),
        ("topic", "create", "a", "--partitions", "none"),
        ("topic", "consume", "a", "--limit", "0"),
        ("--no-such-flag",),
        ("pipeline", "run", "no_such_file.py"),
    ],
)
def test_wrong_usage_is_exit_code_2_with_a_hint(words: tuple[str, ...], home: Path) -> None:
    answer = tidegate(*words, home=home)
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr.startswith("Error: ")
    assert "--help'" in answer.stderr


@pytest.mark.parametrize("words", [(), ("topic",), ("pipeline",), ("user",), ("tenant",), ("job",)])
def test_without_a_verb_the_help_is_printed_once(words: tuple[str, ...], home: Path) -> None:
    answer = tidegate(*words, home=home)
    assert answer.returncode == 2
    assert (answer.stdout + answer.stderr).count("Usage:") == 1


def test_wrong_usage_can_be_json(home: Path) -> None:
    answer = tidegate("topic", "crate", "--json", home=home)
    assert answer.returncode == 2
    assert json.loads(answer.stderr)["error"]["code"] == "USAGE"


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("topic", "list"),
        ("sql", "SELECT 1"),
        ("subscribe", "SELECT 1"),
        ("pipeline", "list"),
        ("user", "list"),
        ("user", "token", "alice"),
        ("tenant", "list"),
        ("job", "list"),
        ("audit",),
        ("open",),
    ],
)
def test_without_a_server_commands_say_how_to_start_one(words: tuple[str, ...], home: Path) -> None:
    answer = tidegate(*words, home=home)
    assert answer.returncode == 1
    assert answer.stdout == ""
    assert "No Tidegate server" in answer.stderr
    for part in ("'tidegate up'", "--home", "TIDEGATE_HOME", "TIDEGATE_URL", str(home)):
        assert part in answer.stderr.splitlines()[-1]
    assert "connect(" not in answer.stderr
    assert not home.exists()


def test_an_error_can_be_json_and_stdout_stays_empty(home: Path) -> None:
    for words in (("--json", "topic", "list"), ("topic", "list", "--json")):
        answer = tidegate(*words, home=home)
        assert answer.returncode == 1
        assert answer.stdout == ""
        assert json.loads(answer.stderr)["error"]["code"] == "SERVER_NOT_RUNNING"


def test_the_flag_wins_over_the_variable(home: Path, tmp_path: Path) -> None:
    answer = tidegate("topic", "list", "--home", str(tmp_path / "other"), home=home)
    assert str(tmp_path / "other") in answer.stderr


def test_settings_tell_their_origin(home: Path) -> None:
    home.mkdir()
    (home / "tidegate.toml").write_text("[server]\nport = 9001\n", encoding="utf-8")
    answer = tidegate("status", "--settings", "--json", home=home)
    settings = {entry["key"]: entry for entry in json.loads(answer.stdout)["settings"]}
    assert settings["server.port"]["value"] == 9001
    assert settings["server.port"]["origin"].endswith("tidegate.toml")
    assert settings["server.host"]["origin"] == "default"


def test_an_unknown_setting_stops_the_start(home: Path) -> None:
    home.mkdir()
    (home / "tidegate.toml").write_text("[server]\nprot = 9001\n", encoding="utf-8")
    for command, code in (("serve", 3), ("worker", 3), ("up", 1)):
        answer = tidegate(command, home=home)
        assert answer.returncode == code
        assert "did you mean 'server.port'" in answer.stderr


def test_a_port_out_of_range_is_exit_code_3_for_serve(home: Path) -> None:
    answer = tidegate("serve", "--port", "70000", home=home)
    assert answer.returncode == 3
    assert "server.port" in answer.stderr


def test_under_make_run_the_hint_for_a_taken_port_is_a_variable(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        environ = {"TIDEGATE_SERVER_PORT": str(port), "MAKELEVEL": "1"}
        answer = tidegate("up", "--demo", home=home, environ=environ)
    assert re.search(r"TIDEGATE_SERVER_PORT=\d+ make run", answer.stderr)


def test_a_damaged_home_is_told_to_restore_a_backup(home: Path) -> None:
    home.mkdir()
    (home / "layout.json").write_text("{", encoding="utf-8")
    answer = tidegate("serve", home=home)
    assert answer.returncode == 3
    assert "tidegate restore FILE" in answer.stderr


def test_a_damaged_catalog_is_told_to_restore_a_backup(home: Path) -> None:
    Home.open(home, lambda: "a-token-that-is-long-enough")
    (home / "catalog" / "catalog.db").write_bytes(b"x" * 20_000)
    answer = tidegate("serve", "--port", "0", home=home)
    assert answer.returncode == 3
    assert "tidegate restore FILE" in answer.stderr


def test_without_its_database_a_server_says_that_it_needs_it_to_start(home: Path) -> None:
    url = "postgresql://tide:secret@127.0.0.1:1/tide"
    answer = tidegate("serve", "--port", "0", home=home, environ={"TIDEGATE_CATALOG_URL": url})
    assert answer.returncode == 1
    assert "needs its catalog to start" in answer.stderr
    assert "secret" not in answer.stderr


def test_flags_have_no_type_in_the_help(home: Path) -> None:
    for words in (("--help",), ("topic", "--help"), ("topic", "publish", "--help")):
        said = tidegate(*words, home=home).stdout
        assert "--help" in said
        assert "bool" not in said
        assert "{PAYLOAD...}" not in said


def test_a_port_in_use_is_exit_code_3_for_serve_and_1_for_up(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for command, code in (("serve", 3), ("up", 1)):
            answer = tidegate(command, "--port", port, home=home)
            assert answer.returncode == code, answer.stderr
            assert f"Port {port} on 127.0.0.1 is taken" in answer.stderr
            assert "--port" in answer.stderr.splitlines()[-1]


def test_a_home_of_a_newer_layout_is_refused(home: Path) -> None:
    home.mkdir()
    (home / "layout.json").write_text('{"layout": 99}', encoding="utf-8")
    answer = tidegate("serve", home=home)
    assert answer.returncode == 3
    assert "layout 99" in answer.stderr


def test_json_after_two_dashes_is_a_payload() -> None:
    assert wants_json(["topic", "list", "--json"])
    assert not wants_json(["topic", "publish", "a", "--", "--json"])
