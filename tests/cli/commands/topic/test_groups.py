"""Consumer groups on the command line: take, acknowledge, give back, look, move and forget."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.cli.calls import CALL_SECONDS_MAX, on_a_terminal, tidegate, tidegate_here
from tidegate.cli.commands.topic.groups import groups_view
from tidegate.testing.server import RunningServer, running_server

PIPE = subprocess.PIPE


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    few = {"TIDEGATE_TOPICS_DELIVERIES_MAX": "2"}
    with running_server(tmp_path_factory.mktemp("groups") / "home", environ=few) as running:
        yield running


@pytest.fixture
def home(server: RunningServer) -> Path:
    return server.home


def run(*words: str, home: Path) -> str:
    """Run a command that must succeed; give what it said."""
    answer = tidegate_here(*words, home=home)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def filled(topic: str, home: Path, *, count: int = 3, partitions: int = 1) -> None:
    run("topic", "create", topic, "--partitions", str(partitions), home=home)
    for partition in range(partitions):
        payloads = [json.dumps({"n": number}) for number in range(count)]
        run("topic", "publish", topic, *payloads, "--partition", str(partition), home=home)


def taken(topic: str, home: Path, *flags: str) -> list[dict[str, Any]]:
    said = run("topic", "consume", topic, "--group", "g", "--json", *flags, home=home)
    return [json.loads(line) for line in said.splitlines()]


def group(topic: str, home: Path) -> dict[str, Any]:
    found = json.loads(run("topic", "groups", topic, "--json", home=home))["groups"]
    (only,) = found
    return dict(only)


def test_what_was_printed_with_ack_does_not_come_again(home: Path) -> None:
    filled("work.acked", home)
    assert [m["offset"] for m in taken("work.acked", home, "--ack", "--limit", "2")] == [0, 1]
    assert [m["offset"] for m in taken("work.acked", home, "--ack")] == [2]
    answer = tidegate_here("topic", "consume", "work.acked", "--group", "g", "--ack", home=home)
    assert (answer.returncode, answer.stdout) == (0, "")
    assert "No messages for g in" in answer.stderr
    assert (group("work.acked", home)["lag"], group("work.acked", home)["inFlight"]) == (0, 0)


def test_without_ack_leases_are_printed_and_acknowledged_by_hand(home: Path) -> None:
    filled("work.leased", home)
    said = run("topic", "consume", "work.leased", "--group", "g", "--limit", "1", home=home)
    lease = said.partition("lease ")[2].split()[0]
    assert (group("work.leased", home)["lag"], group("work.leased", home)["inFlight"]) == (3, 1)
    said = run("topic", "ack", "work.leased", "--group", "g", "--lease", lease, home=home)
    assert said == "Acknowledged 1 message. g continues from 0:1.\n"
    again = tidegate_here("topic", "ack", "work.leased", "-g", "g", "--lease", lease, home=home)
    assert again.returncode == 1
    assert lease in again.stderr
    assert "acknowledged" in again.stderr


def test_what_runs_out_at_once_comes_once_and_is_no_dead_letter(home: Path) -> None:
    filled("work.brief", home)
    words = ("topic", "consume", "work.brief", "--group", "g", "--limit", "50")
    answer = tidegate_here(*words, "--lease", "1 ms", home=home)
    assert answer.stdout.count(" lease ") == 3
    assert answer.stderr == "Nothing was acknowledged; they come again in 1 ms. --ack acknowledges.\n"
    assert "work.brief.dead" not in run("topic", "list", home=home)
    said = tidegate_here(*words, home=home).stderr
    assert re.fullmatch(r"Nothing was acknowledged; they come again at 2\S+ \S+ UTC\. --ack .*\n", said)


def test_upto_names_the_partition_where_there_are_several(home: Path) -> None:
    filled("work.upto", home, partitions=2)
    taken("work.upto", home)
    bare = tidegate_here("topic", "ack", "work.upto", "-g", "g", "--upto", "1", home=home)
    assert bare.returncode == 1
    assert "--upto PARTITION:1" in bare.stderr
    words = ("topic", "ack", "work.upto", "-g", "g", "--upto", "0:1", "--upto", "1:0")
    assert run(*words, home=home) == "Acknowledged 3 messages. g continues from 0:2, 1:1.\n"
    beyond = tidegate_here("topic", "ack", "work.upto", "-g", "g", "--upto", "0:99", home=home)
    assert beyond.returncode == 1
    assert "99" in beyond.stderr


def test_what_is_given_back_comes_again_and_then_is_a_dead_letter(home: Path) -> None:
    filled("work.failing", home, count=1)
    (first,) = taken("work.failing", home)
    assert first["deliveries"] == 1
    words = ("topic", "nack", "work.failing", "-g", "g", "--lease")
    assert run(*words, first["lease"], home=home) == "Given back: 1 message.\n"
    said = run("topic", "consume", "work.failing", "-g", "g", home=home)
    assert "delivery 2" in said
    lease = said.partition("lease ")[2].split()[0]
    said = run(*words, lease, "--reason", "no such customer", home=home)
    assert "1 went to work.failing.dead" in said
    for verb in ("show", "groups"):
        assert "dead letters: 1 in work.failing.dead" in run("topic", verb, "work.failing", home=home)
        assert json.loads(run("topic", verb, "work.failing", "--json", home=home))["deadLetters"] == 1
    dead = json.loads(run("topic", "consume", "work.failing.dead", "--json", home=home))
    assert (dead["payload"]["reason"], dead["payload"]["payload"]) == ("no such customer", {"n": 0})


def test_where_nothing_failed_no_topic_of_dead_letters_is_to_be_made(home: Path) -> None:
    filled("work.fine", home, count=1)
    answer = tidegate_here("topic", "consume", "work.fine.dead", home=home)
    assert answer.returncode == 1
    assert "No message of work.fine has failed for good yet." in answer.stderr
    assert "create" not in answer.stderr
    assert "dead letters" not in run("topic", "show", "work.fine", home=home)


def test_a_delay_keeps_a_message_back(home: Path) -> None:
    filled("work.delayed", home, count=1)
    (first,) = taken("work.delayed", home)
    run("topic", "nack", "work.delayed", "-g", "g", "--lease", first["lease"], "--delay", "1 h", home=home)
    assert taken("work.delayed", home) == []
    assert group("work.delayed", home)["waiting"] == 1


def test_a_lease_is_extended(home: Path) -> None:
    filled("work.longer", home, count=1)
    (first,) = taken("work.longer", home, "--lease", "1 min")
    words = ("topic", "extend", "work.longer", "-g", "g", "--lease", first["lease"], "--for", "1 h")
    assert run(*words, home=home).startswith("1 message held until 2")


def test_a_group_is_moved_and_forgotten(home: Path) -> None:
    filled("work.moved", home, partitions=2)
    taken("work.moved", home, "--ack")
    words = ("topic", "reset", "work.moved", "-g", "g", "--to")
    assert "g continues from 0:0, 1:0." in run(*words, "earliest", home=home)
    bare = tidegate_here(*words, "2", home=home)
    assert bare.returncode == 1
    assert "--partition N (0 to 1) --to 2" in bare.stderr
    run(*words, "2", "--partition", "1", home=home)
    assert sorted((m["partition"], m["offset"]) for m in taken("work.moved", home)) == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 2),
    ]
    unasked = tidegate_here("topic", "forget", "work.moved", "-g", "g", home=home)
    assert unasked.returncode == 2
    assert "is forgotten" in run("topic", "forget", "work.moved", "-g", "g", "--yes", home=home)
    assert "No groups yet" in run("topic", "groups", "work.moved", home=home)


@pytest.mark.parametrize(
    "words",
    [
        ("ack", "--lease", "0.1f3c9a0b2c4d1000.0"),
        ("nack", "--lease", "0.1f3c9a0b2c4d1000.0"),
        ("reset", "--to", "earliest"),
        ("forget", "--yes"),
    ],
)
def test_a_group_that_is_not_there_is_named(words: tuple[str, ...], home: Path) -> None:
    if "work.none" not in run("topic", "list", home=home):
        filled("work.none", home, count=1)
    answer = tidegate_here("topic", words[0], "work.none", "--group", "nobody", *words[1:], home=home)
    assert answer.returncode == 1
    assert "no consumer group 'nobody'" in answer.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("consume", "t", "--ack"), "--group"),
        (("consume", "t", "--lease", "5 s"), "--group"),
        (("consume", "t", "--member", "m"), "--group"),
        (("consume", "t", "-g", "g", "--follow"), "--ack"),
        (("consume", "t", "--follow", "--wait", "5 s"), "--wait"),
        (("ack", "t"), "--group"),
        (("ack", "t", "-g", "g"), "--upto"),
        (("ack", "t", "-g", "g", "--upto", "1", "--lease", "x"), "--upto"),
        (("nack", "t", "-g", "g"), "--lease"),
        (("extend", "t", "-g", "g"), "--lease"),
        (("change", "t"), "--retention"),
        (("clear", "t"), "--yes"),
        (("publish", "t", "1", "--producer", "p"), "--sequence"),
    ],
)
def test_wrong_usage_names_the_option_and_is_exit_code_2(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    answer = tidegate_here("topic", *words, home=tmp_path)
    assert answer.returncode == 2
    assert said in answer.stderr
    assert f"See 'tidegate topic {words[0]} --help'." in answer.stderr


def test_a_reader_that_leaves_early_gives_the_rest_back(home: Path) -> None:
    run("topic", "create", "work.piped", home=home)
    payloads = [json.dumps({"n": number, "text": "x" * 2000}) for number in range(90)]
    run("topic", "publish", "work.piped", *payloads, home=home)
    words = [sys.executable, "-m", "tidegate", "topic", "consume", "work.piped", "-g", "g", "--ack", "--json"]
    with subprocess.Popen([*words, "--home", str(home)], stdout=PIPE, stderr=PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.readline()
        child.stdout.close()
        said = child.stderr.read()
        assert (child.wait(CALL_SECONDS_MAX), said) == (0, "")
    after = group("work.piped", home)
    assert after["inFlight"] == 0
    assert 0 < after["lag"] < 90
    assert taken("work.piped", home, "--limit", "1")[0]["deliveries"] == 1


def test_following_as_a_member_acknowledges_and_ctrl_c_leaves_nothing_held(home: Path) -> None:
    run("topic", "create", "work.follow", home=home)
    words = [sys.executable, "-m", "tidegate", "topic", "consume", "work.follow", "-g", "g", "--follow"]
    words += ["--ack", "--json", "--member", "ada", "--home", str(home)]
    with subprocess.Popen(words, stdout=PIPE, stderr=PIPE, text=True) as child:
        assert child.stdout is not None
        for number in range(2):
            run("topic", "publish", "work.follow", str(number), home=home)
            assert json.loads(child.stdout.readline())["payload"] == number
        child.send_signal(signal.SIGINT)
        rest, stderr = child.communicate(timeout=CALL_SECONDS_MAX)
    assert (child.returncode, rest, stderr) == (130, "", "")
    after = group("work.follow", home)
    assert (after["lag"], after["inFlight"]) == (0, 0)
    assert [member["member"] for member in after["members"]] == ["ada"]


def test_what_is_gone_before_a_group_had_it_is_told(home: Path) -> None:
    filled("work.gone", home)
    taken("work.gone", home, "--ack", "--limit", "1")
    assert "Removed 3 messages" in run("topic", "clear", "work.gone", "--yes", home=home)
    run("topic", "publish", "work.gone", "7", home=home)
    answer = tidegate_here("topic", "consume", "work.gone", "-g", "g", "--ack", home=home)
    assert "Missed 2 messages of partition 0" in answer.stderr
    assert "0:3" in answer.stdout


def test_a_question_is_asked_before_a_topic_is_cleared(home: Path) -> None:
    filled("work.kept", home)
    code, said = on_a_terminal("topic", "clear", "work.kept", home=home, typed="n\n")
    assert code == 1
    assert "Remove the 3 messages of topic work.kept?" in said
    assert json.loads(run("topic", "show", "work.kept", "--json", home=home))["messages"] == 3


def test_retention_and_partitions_are_set_and_changed(home: Path) -> None:
    words = ("topic", "create", "work.short", "--retention", "7 days", "--max-bytes", "10GB")
    assert "Messages go after 7 d and beyond 10 GB a partition." in run(*words, home=home)
    shown = json.loads(run("topic", "show", "work.short", "--json", home=home))
    assert (shown["retentionSeconds"], shown["retentionMaxBytes"]) == (604_800, 10_000_000_000)
    said = run("topic", "change", "work.short", "--max-bytes", "none", home=home)
    assert "Messages go after 7 d." in said
    said = run("topic", "change", "work.short", "--partitions", "3", home=home)
    assert "has 3 partitions" in said
    assert "key" in said.partition("\n")[2]
    fewer = tidegate_here("topic", "change", "work.short", "--partitions", "2", home=home)
    assert fewer.returncode == 1
    assert "fewer" in fewer.stderr


def test_a_topic_that_is_there_already_is_fine_where_that_is_said(home: Path) -> None:
    words = ("topic", "create", "work.twice", "--if-not-exists")
    assert run(*words, "--partitions", "2", "--retention", "7 days", home=home).startswith(
        "Topic work.twice created, with 2 partitions."
    )
    kept = "Topic work.twice already exists, with 2 partitions. Messages go after 7 d.\n"
    assert run(*words, home=home) == kept
    said = run(*words, "--partitions", "3", "--retention", "none", home=home)
    assert said.startswith(kept)
    assert "It has partitions 2 instead of 3, retention 7 d instead of none." in said
    wire = json.loads(run(*words, "--max-bytes", "1GB", "--json", home=home))
    assert (len(wire["partitions"]), "max-bytes none instead of 1.0 GB" in wire["notice"]) == (2, True)
    assert tidegate_here(*words[:3], home=home).returncode == 1


def test_a_producer_that_repeats_itself_stores_once(home: Path) -> None:
    run("topic", "create", "work.numbered", home=home)
    words = ("topic", "publish", "work.numbered", "1", "2", "--producer", "p", "--sequence", "0")
    for _ in range(2):
        assert "Next: --sequence 2." in run(*words, home=home)
    assert json.loads(run("topic", "show", "work.numbered", "--json", home=home))["messages"] == 2
    lines = tidegate(
        *("topic", "publish", "work.numbered", "-", "--producer", "p", "--sequence", "2"),
        home=home,
        stdin="3\n4\n",
    )
    assert lines.stdout == "Published 2 messages to work.numbered. Next: --sequence 4.\n"


def test_a_topic_shows_its_sources_and_groups(home: Path) -> None:
    run("sql", "CREATE NAMESPACE shop; CREATE SHARED TABLE shop.orders (id BIGINT PRIMARY KEY)", home=home)
    run("topic", "create", "shop.changes", home=home)
    run("sql", "ALTER TOPIC shop.changes ADD SOURCE shop.orders ON INSERT WHERE id > 5", home=home)
    run("sql", "INSERT INTO shop.orders VALUES (7)", home=home)
    said = run("topic", "consume", "shop.changes", "-g", "g", "--ack", home=home)
    assert "INSERT shop.orders" in said
    said = run("topic", "show", "shop.changes", home=home)
    for part in ("shop.orders", "INSERT", "id > 5", "group", "held"):
        assert part in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("consume", "--lease", "99 days"), "--lease is 1 ms to 12 h, not 99 days."),
        (("extend", "--lease", "0.1.0", "--for", "99 days"), "--for is 1 ms to 12 h, not 99 days."),
        (("nack", "--lease", "0.1.0", "--delay", "99 days"), "--delay is 0 s to 7 days"),
    ],
)
def test_limits_of_the_server_are_told_as_options_and_durations(
    words: tuple[str, ...], said: str, home: Path
) -> None:
    if "work.limits" not in run("topic", "list", home=home):
        filled("work.limits", home, count=1)
    answer = tidegate_here("topic", words[0], "work.limits", "-g", "g", *words[1:], home=home)
    assert answer.returncode == 1
    assert said in answer.stderr


def shape(**changes: Any) -> dict[str, Any]:
    """Return a group as the server describes it."""
    moment = {"offset": 1_234_567, "at": "2026-01-31T12:00:05.123456Z"}
    part = {
        "partition": 0,
        "start": 0,
        "end": 1_234_999,
        "position": 1_234_000,
        "next": 1_234_568,
        "lag": 999,
        "inFlight": 17,
        "waiting": 0,
        "lastDelivered": moment,
        "lastAcked": {**moment, "at": "2026-01-30T12:00:05Z"},
    }
    return {
        "group": "billing",
        "createdAt": "2026-01-01T00:00:00Z",
        "lag": 999,
        "inFlight": 17,
        "waiting": 3,
        "missed": 4,
        "delivered": 12_345,
        "redelivered": 67,
        "acked": 11_346,
        "nacked": 8,
        "members": [
            {"member": "ada", "lastSeenAt": "2026-01-31T12:00:05Z", "holds": 17, "waits": 0},
            {"member": "bob", "lastSeenAt": "2026-01-31T12:00:06Z", "holds": 0, "waits": 1},
        ],
        "partitions": [part, {**part, "partition": 1, "lastDelivered": None, "lastAcked": None}],
        **changes,
    }


def test_the_groups_of_a_topic_fit_eighty_columns() -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(groups_view("app.events", [shape()], "2026-01-31"))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "billing: lag 999, 17 held, 3 waiting for redelivery, 4 missed" in text
    assert "since the server started: 12,345 delivered (67 again), 11,346 acked, 8 nacked" in text
    assert "1234567 12:00:05" in text
    assert "1234567 2026-01-30" in text
    assert "ada holds 17 messages, seen 12:00:05" in text
    assert "bob holds 0 messages, waits for more" in text
