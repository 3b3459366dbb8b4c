"""Completion as shells ask for it: variables in, words on stdout."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.calls import CALL_SECONDS_MAX, tidegate
from tests.warm import command_line
from tidegate.testing.server import RunningServer, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("words") / "home") as running:
        home = running.home
        for topic in ("app.events", "app.errors", "other.one"):
            assert tidegate("topic", "create", topic, home=home).returncode == 0
        for group in ("billing", "backup", "audit"):
            taken = tidegate("topic", "consume", "app.events", "--group", group, "--ack", home=home)
            assert taken.returncode == 0, taken.stderr
        assert tidegate("tenant", "create", "acme", home=home).returncode == 0
        assert tidegate("topic", "create", "acme.own", "--tenant", "acme", home=home).returncode == 0
        assert tidegate("user", "add", "alice", home=home).returncode == 0
        for file in ("hourly.py", "daily.py.stopped"):
            (home / "pipelines" / file).write_text("", encoding="utf-8")
        yield running


@pytest.fixture
def home(server: RunningServer) -> Path:
    return server.home


def offered(line: str, home: Path, **environ: str) -> list[str]:
    """Return what bash would offer behind a line; a blank at its end begins a new word."""
    typed = line.split()
    index = len(typed) if line.endswith(" ") else len(typed) - 1
    asked = {"_TIDEGATE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(index)}
    answer = tidegate(home=home, environ={**asked, **environ})
    assert (answer.returncode, answer.stderr) == (0, "")
    return answer.stdout.split()


def test_nouns_verbs_and_flags_are_offered(home: Path) -> None:
    assert {"topic", "user", "tenant", "doctor", "open"} <= set(offered("tidegate ", home))
    assert {"create", "consume", "list"} <= set(offered("tidegate topic ", home))
    assert offered("tidegate topic con", home) == ["consume"]
    assert {"--home", "--json", "--tenant", "--follow"} <= set(offered("tidegate topic consume --", home))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tidegate topic show ", ["app.errors", "app.events", "other.one"]),
        ("tidegate topic show app.e", ["app.errors", "app.events"]),
        ("tidegate topic consume oth", ["other.one"]),
        ("tidegate topic show --tenant acme ", ["acme.own"]),
        ("tidegate --tenant acme topic show ", ["acme.own"]),
        ("tidegate user show ", ["admin", "alice"]),
        ("tidegate tenant disable ", ["acme", "default"]),
        ("tidegate topic list --tenant ac", ["acme"]),
        ("tidegate pipeline show ", ["daily", "hourly"]),
        ("tidegate pipeline start d", ["daily"]),
        ("tidegate topic consume app.events --from ", ["earliest", "latest"]),
        ("tidegate topic consume app.events --group ", ["audit", "backup", "billing"]),
        ("tidegate topic ack app.events --group b", ["backup", "billing"]),
        ("tidegate topic reset other.one --group ", []),
        ("tidegate topic reset app.events --to e", ["earliest"]),
        ("tidegate job list --state f", ["failed"]),
        ("tidegate audit --action tenant.cr", ["tenant.create"]),
    ],
)
def test_names_come_from_the_server_that_runs(line: str, words: list[str], home: Path) -> None:
    assert offered(line, home) == words


def test_roles_are_offered_in_both_forms(home: Path) -> None:
    words = offered("tidegate user add x --role ", home)
    assert words[:3] == ["reader", "writer", "admin"]
    assert "AdminPanelManagement" in words
    assert offered("tidegate user role alice --role wr", home) == ["writer"]


def test_tokens_of_the_named_user_are_offered(home: Path) -> None:
    tidegate("user", "token", "alice", home=home)
    (offer,) = offered("tidegate user revoke alice ", home)
    assert offer in tidegate("user", "tokens", "alice", home=home).stdout
    assert offered("tidegate user revoke admin nope", home) == []


def test_a_home_on_the_line_is_the_one_that_is_asked(home: Path, tmp_path: Path) -> None:
    assert offered(f"tidegate --home {home} topic show oth", tmp_path / "none") == ["other.one"]
    assert offered(f"tidegate topic show --home {tmp_path} ", home) == []


def test_the_variable_names_the_tenant(home: Path) -> None:
    assert offered("tidegate topic show ", home, TIDEGATE_TENANT="acme") == ["acme.own"]


def test_without_a_server_nothing_is_offered_and_nothing_is_said(tmp_path: Path) -> None:
    for line in ("tidegate topic show ", "tidegate user show ", "tidegate topic list --tenant "):
        assert offered(line, tmp_path / "none") == []
    stale = {"TIDEGATE_URL": "http://127.0.0.1:1", "TIDEGATE_TOKEN": "a-token-that-is-long-enough"}
    assert offered("tidegate topic show ", tmp_path / "none", **stale) == []


def test_a_wrong_token_offers_nothing(home: Path, server: RunningServer, tmp_path: Path) -> None:
    wrong = {"TIDEGATE_URL": server.url, "TIDEGATE_TOKEN": "a-token-that-is-long-enough"}
    assert offered("tidegate topic show ", tmp_path / "none", **wrong) == []


def test_zsh_and_fish_get_the_same_words_in_their_own_form(home: Path) -> None:
    line = "tidegate topic show app."
    zsh = {"_TIDEGATE_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": line}
    assert tidegate(home=home, environ=zsh).stdout.strip() == (
        '_arguments \'*: :(("app.errors"\n"app.events"))\''
    )
    fish = {"_TIDEGATE_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": line}
    words = tidegate(home=home, environ={**fish, "_TYPER_COMPLETE_FISH_ACTION": "get-args"})
    assert words.stdout.split() == ["app.errors", "app.events"]
    asked = {**fish, "_TYPER_COMPLETE_FISH_ACTION": "is-args"}
    assert tidegate(home=home, environ=asked).returncode == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_asks_us(shell: str, home: Path) -> None:
    answer = tidegate(home=home, environ={"_TIDEGATE_COMPLETE": f"source_{shell}"})
    assert answer.returncode == 0
    assert f"_TIDEGATE_COMPLETE=complete_{shell}" in answer.stdout


def program(folder: Path) -> Path:
    """Make a `tidegate` for a shell's PATH; the warm one, which has time for names, cannot see its shell."""
    folder.mkdir()
    script = folder / "tidegate"
    cold, warm = shlex.join([sys.executable, "-m", "tidegate"]), shlex.join(command_line())
    text = f'#!/bin/sh\n[ -n "$_TIDEGATE_COMPLETE" ] && exec {warm} "$@"\nexec {cold} "$@"\n'
    script.write_text(text, encoding="utf-8")
    script.chmod(0o755)
    return folder


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_after_the_installation(home: Path, tmp_path: Path) -> None:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("TIDEGATE_")}
    path = f"{program(tmp_path / 'bin')}:{os.environ['PATH']}"
    environ = {**clean, "HOME": str(tmp_path), "PATH": path, "TIDEGATE_HOME": str(home)}

    def bash(script: str) -> str:
        answer = subprocess.run(
            ["bash", "--norc", "-c", script],
            env=environ,
            capture_output=True,
            text=True,
            timeout=CALL_SECONDS_MAX,
            check=False,
        )
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    # Not the last command: bash would become it, and no shell would be left to be found.
    assert "installed" in bash("tidegate --install-completion; true")
    assert "complete -o default" in bash("tidegate --show-completion; true")
    said = bash(
        "source ~/.bashrc; COMP_WORDS=(tidegate topic show app.); COMP_CWORD=3; "
        '_tidegate_completion tidegate; echo "${COMPREPLY[@]}"'
    )
    assert said.split() == ["app.errors", "app.events"]
