from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.calls import CALL_SECONDS_MAX, on_a_terminal, tidegate
from tidegate.cli.commands.topic.publish_consume import LINES_PER_REQUEST_MAX
from tidegate.testing.server import RunningServer, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("cli") / "home") as running:
        yield running


@pytest.fixture
def home(server: RunningServer) -> Path:
    return server.home


def test_a_topic_is_created_filled_read_and_deleted(home: Path) -> None:
    assert tidegate("topic", "create", "app.life", "--partitions", "2", home=home).returncode == 0
    published = tidegate(
        "topic", "publish", "app.life", '{"a": 1}', '{"a": 2}', "--partition", "1", home=home
    )
    assert published.stdout == "Published 2 messages to app.life.\n"
    listed = tidegate("topic", "list", home=home)
    assert "app.life" in listed.stdout
    read = tidegate("topic", "consume", "app.life", "--json", home=home)
    messages = [json.loads(line) for line in read.stdout.splitlines()]
    assert [(m["partition"], m["offset"], m["payload"]) for m in messages] == [
        (1, 0, {"a": 1}),
        (1, 1, {"a": 2}),
    ]
    assert tidegate("topic", "delete", "app.life", "--yes", home=home).returncode == 0
    assert tidegate("topic", "show", "app.life", home=home).returncode == 1


def test_lines_from_stdin_are_published_in_order(home: Path) -> None:
    tidegate("topic", "create", "app.lines", home=home)
    lines = "".join(f'{{"n": {number}}}\n' for number in range(250))
    answer = tidegate("topic", "publish", "app.lines", "-", "--key", "k", home=home, stdin=lines)
    assert answer.stdout == "Published 250 messages to app.lines.\n"
    read = tidegate("topic", "consume", "app.lines", "--json", "--limit", "1000", home=home)
    assert [json.loads(line)["payload"]["n"] for line in read.stdout.splitlines()] == list(range(250))
    tail = tidegate("topic", "consume", "app.lines", "--from", "248", "--json", home=home)
    assert [json.loads(line)["key"] for line in tail.stdout.splitlines()] == ["k", "k"]


def test_a_line_that_is_not_json_is_named(home: Path) -> None:
    tidegate("topic", "create", "app.bad", home=home)
    answer = tidegate("topic", "publish", "app.bad", "-", home=home, stdin='{"a": 1}\n{"a": \n')
    assert answer.returncode == 1
    assert "Line 2 is not JSON" in answer.stderr
    assert "Nothing was published." in answer.stderr
    bare = tidegate("topic", "publish", "app.bad", "1", "hello", home=home)
    assert "Payload 2 is not JSON" in bare.stderr
    assert "quotes of its own" in bare.stderr


def test_a_bad_line_after_others_tells_how_many_were_published(home: Path) -> None:
    tidegate("topic", "create", "app.partly", home=home)
    lines = "1\n" * LINES_PER_REQUEST_MAX + "hello\n2\n"
    answer = tidegate("topic", "publish", "app.partly", "-", home=home, stdin=lines)
    assert answer.returncode == 1
    held = json.loads(tidegate("topic", "show", "app.partly", "--json", home=home).stdout)["messages"]
    assert 0 < held <= LINES_PER_REQUEST_MAX
    assert f"Published: {held:,} messages, up to line {held}; nothing after it." in answer.stderr


def test_a_topic_is_not_deleted_where_nobody_can_be_asked(home: Path) -> None:
    tidegate("topic", "create", "app.kept", home=home)
    for words in (("topic", "delete", "app.kept"), ("topic", "delete", "app.kept", "--json")):
        answer = tidegate(*words, home=home, stdin="y\n")
        assert answer.returncode == 2
        assert "--yes" in answer.stderr
    assert tidegate("topic", "show", "app.kept", home=home).returncode == 0


def test_a_no_on_a_terminal_deletes_nothing(home: Path) -> None:
    tidegate("topic", "create", "app.spared", home=home)
    tidegate("topic", "publish", "app.spared", "1", home=home)
    code, said = on_a_terminal("topic", "delete", "app.spared", home=home, typed="n\n")
    assert code == 1
    assert "Delete topic app.spared and its 1 message?" in said
    assert "Nothing was deleted." in said
    assert tidegate("topic", "show", "app.spared", home=home).returncode == 0


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_reader_that_leaves_early_is_no_failure(flags: tuple[str, ...], home: Path) -> None:
    tidegate("topic", "create", "app.piped", home=home)
    lines = "".join(f'{{"n": {number}, "text": "{"x" * 300}"}}\n' for number in range(1000))
    tidegate("topic", "publish", "app.piped", "-", home=home, stdin=lines)
    words = [sys.executable, "-m", "tidegate", "topic", "consume", "app.piped", "--limit", "1000", *flags]
    pipe = subprocess.PIPE
    with subprocess.Popen([*words, "--home", str(home)], stdout=pipe, stderr=pipe, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline()
        child.stdout.close()
        said = child.stderr.read()
        assert (child.wait(CALL_SECONDS_MAX), said) == (0, "")


def test_a_start_that_is_none_lists_what_can_be_given(home: Path) -> None:
    answer = tidegate("topic", "consume", "app.any", "--from", "yesterday", home=home)
    assert answer.returncode == 1
    for word in ("earliest", "latest", "an offset", "a time"):
        assert word in answer.stderr


def test_an_unknown_topic_is_refused_with_a_hint(home: Path) -> None:
    answer = tidegate("topic", "publish", "app.nowhere", "1", home=home)
    assert answer.returncode == 1
    assert "There is no topic 'app.nowhere'" in answer.stderr
    assert "tidegate topic create app.nowhere" in answer.stderr


def test_a_topic_without_messages_says_so(home: Path) -> None:
    tidegate("topic", "create", "app.empty", home=home)
    answer = tidegate("topic", "consume", "app.empty", home=home)
    assert (answer.returncode, answer.stdout) == (0, "")
    assert "No messages" in answer.stderr


def test_following_prints_what_comes_until_ctrl_c(home: Path) -> None:
    tidegate("topic", "create", "app.follow", home=home)
    words = [sys.executable, "-m", "tidegate", "topic", "consume", "app.follow", "--follow", "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen([*words, "--home", str(home)], stdout=pipe, stderr=pipe, text=True) as child:
        assert child.stdout is not None
        for number in range(2):
            tidegate("topic", "publish", "app.follow", str(number), home=home)
            assert json.loads(child.stdout.readline())["payload"] == number
        child.send_signal(signal.SIGINT)
        rest, stderr = child.communicate(timeout=CALL_SECONDS_MAX)
    assert (child.returncode, rest, stderr) == (130, "", "")


def test_a_wrong_token_is_refused(home: Path, server: RunningServer) -> None:
    token = home / "admin.token"
    right = token.read_text(encoding="ascii")
    token.write_text("not-the-token-of-this-home\n", encoding="ascii")
    try:
        answer = tidegate("topic", "list", home=home)
    finally:
        token.write_text(right, encoding="ascii")
    assert answer.returncode == 1
    assert "token is not valid" in answer.stderr


def test_a_second_server_in_a_home_is_refused(home: Path, server: RunningServer) -> None:
    (home / "logs").mkdir(exist_ok=True)
    for command, code in (("serve", 3), ("up", 1)):
        answer = tidegate(command, "--port", "0", home=home)
        assert answer.returncode == code, answer.stderr
        assert f"A server runs already in {home} (process {server.child.pid})" in answer.stderr
    assert not (home / "logs" / "server.log").exists()


def test_a_picture_is_refused_before_the_watching_where_it_cannot_be_written(
    home: Path, tmp_path: Path
) -> None:
    for place in (tmp_path / "nowhere" / "x.svg", tmp_path):
        answer = tidegate("status", "--svg", str(place), home=home)
        assert answer.returncode == 2
        assert f"Cannot write {place}" in answer.stderr


def test_an_installed_pipeline_waits_for_the_worker(home: Path) -> None:
    file = home / "pipelines" / "hourly.py"
    file.write_text("", encoding="utf-8")
    try:
        listed = tidegate("pipeline", "list", home=home)
        shown = json.loads(tidegate("pipeline", "show", "hourly", "--json", home=home).stdout)
        drawn = tidegate("status", home=home)
    finally:
        file.unlink()
    assert "hourly" in listed.stdout
    assert "waiting for the worker" in listed.stdout
    assert shown["state"] == "waiting"
    assert "hourly" in drawn.stdout
    assert "No pipelines yet" in tidegate("pipeline", "list", home=home).stdout


def test_sql_answers_as_a_table_and_as_json(home: Path) -> None:
    table = tidegate("sql", "SELECT 1 AS one, 'x' AS name", home=home)
    assert table.returncode == 0, table.stderr
    assert "one" in table.stdout
    assert "1 row in" in table.stdout
    answer = json.loads(tidegate("sql", "SELECT 1 AS one", "--json", home=home).stdout)
    assert (answer["rows"], answer["rowCount"]) == ([[1]], 1)


def test_statements_from_a_pipe_end_at_the_first_that_fails(home: Path) -> None:
    answer = tidegate("sql", "--json", home=home, stdin="SELECT 1;\nSELECT nonsense;\nSELECT 3;")
    assert answer.returncode == 1
    assert [json.loads(line)["rows"] for line in answer.stdout.splitlines()] == [[[1]]]
    assert json.loads(answer.stderr)["error"]["details"]["statement"] == 2
    assert "This is statement 2 of 3. Statement 1 was run" in json.loads(answer.stderr)["error"]["hint"]
    assert json.loads(answer.stderr)["error"]["code"] == "SQL_INVALID"


def test_status_is_printed_once(home: Path, server: RunningServer) -> None:
    answer = tidegate("status", home=home)
    assert answer.returncode == 0, answer.stderr
    assert server.url in answer.stdout
    seen = json.loads(tidegate("status", "--json", home=home).stdout)
    assert seen["pid"] == server.child.pid


def test_a_dedup_key_is_stored_once(home: Path) -> None:
    made = tidegate("topic", "create", "app.once", "--dedup", "1 hour", home=home)
    assert "Dedup keys are kept for 1 h" in made.stdout
    keys = ("--dedup-key", "a", "--dedup-key", "b", "--dedup-key", "a")
    answer = tidegate("topic", "publish", "app.once", "1", "2", "3", *keys, home=home)
    assert answer.stdout == (
        "Published 2 messages to app.once. "
        "Dropped 1 duplicate: the first one is in partition 0 at offset 0.\n"
    )
    assert "1 duplicate dropped" in tidegate("topic", "show", "app.once", home=home).stdout
    again = tidegate("topic", "publish", "app.once", "4", "5", *keys[:4], home=home).stdout
    assert again.endswith("Dropped 2 duplicates: the first ones are at 0:0, 0:1 (partition:offset).\n")
    wrong = tidegate("topic", "publish", "app.once", "1", "2", *keys, home=home)
    assert (wrong.returncode, "once for each payload" in wrong.stderr) == (2, True)
