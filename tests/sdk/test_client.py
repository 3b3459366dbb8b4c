"""The Python client against a real server: calls, errors of the same classes, and how a server is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import deltalake
import httpx
import pyarrow as pa
import pytest

import tidegate
from tests.sdk.faults import Say, faulty_server
from tidegate.errors import (
    HomeTooNew,
    RequestInvalid,
    ServerNotRunning,
    TableNotFound,
    TokenMissing,
    TokenWrong,
    TopicExists,
    TopicNotFound,
)
from tidegate.storage.home.address import ServerEndpoint, find_server
from tidegate.testing.server import RunningServer


def test_topics_from_making_to_deleting(client: tidegate.Client) -> None:
    topic = client.topics.create("app.a/b".replace("/", "_"), partitions=2)
    assert client.topics.show(topic.name)["messages"] == 0
    places = topic.publish([{"key": "k", "payload": {"n": 1}}, {"key": "k", "payload": None}])
    page = topic.consume(limit=1)
    assert page["messages"][0]["messageId"] == places[0]["messageId"]
    rest = topic.consume({"offsets": page["nextOffsets"]})
    assert [message["payload"] for message in rest["messages"]] == [None]
    assert topic.name in [list_all["name"] for list_all in client.topics.list()]
    client.topics.delete(topic.name)
    with pytest.raises(TopicNotFound) as caught:
        topic.consume()
    assert caught.value.values == {"topic": topic.name}
    assert "tidegate topic create" in caught.value.hint


def test_errors_are_the_classes_that_the_server_raised(client: tidegate.Client) -> None:
    client.topics.create("app.twice")
    with pytest.raises(TopicExists):
        client.topics.create("app.twice")
    with pytest.raises(TableNotFound):
        client.sql("SELECT * FROM lake.nowhere")


def test_sql_gives_rows_dictionaries_and_arrow(client: tidegate.Client, server: RunningServer) -> None:
    table = pa.table({"n": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", None]})
    deltalake.write_deltalake(str(server.home / "lake" / "numbers"), table)
    answer = client.sql("SELECT * FROM lake.numbers WHERE n >= ? ORDER BY n", [2])
    assert answer.rows == [[2, "b"], [3, None]]
    assert answer.to_dicts()[0] == {"n": 2, "name": "b"}
    assert answer.columns == [{"name": "n", "type": "BIGINT"}, {"name": "name", "type": "TEXT"}]
    assert answer.to_arrow().to_pydict() == {"n": [2, 3], "name": ["b", None]}
    assert list(answer.to_pandas()["n"]) == [2, 3]
    assert client.sql_arrow("SELECT max(n) AS most FROM lake.numbers").to_pydict() == {"most": [3]}
    assert "numbers" in [list_all["name"] for list_all in client.status()["tables"]]


def test_sql_gives_polars_where_it_is_installed(client: tidegate.Client) -> None:
    pytest.importorskip("polars")
    assert client.sql("SELECT 1 AS n").to_polars().to_dicts() == [{"n": 1}]


def test_a_server_is_found_by_address_environment_or_home(server: RunningServer) -> None:
    environ = {"TIDEGATE_URL": server.url, "TIDEGATE_TOKEN": server.token}
    for found in (
        find_server(server.url, server.token, None, {}),
        find_server(None, None, None, environ),
        find_server(None, None, server.home, {"TIDEGATE_URL": "http://other", "TIDEGATE_TOKEN": "x"}),
        find_server(None, None, None, {"TIDEGATE_HOME": str(server.home)}),
    ):
        assert found == ServerEndpoint(server.url, server.token)


def test_where_no_server_runs_the_error_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(ServerNotRunning) as caught:
        tidegate.connect(home=tmp_path)
    assert "tidegate up" in caught.value.hint
    with pytest.raises(TokenMissing):
        find_server("http://127.0.0.1:1", None, tmp_path, {})
    away = tidegate.connect("http://127.0.0.1:1", token="x", retry_seconds=0)
    with away as client, pytest.raises(ServerNotRunning):
        client.status()


def test_a_wrong_token_and_a_newer_home_are_told(server: RunningServer, tmp_path: Path) -> None:
    with tidegate.connect(server.url, token="wrong") as client, pytest.raises(TokenWrong):
        client.status()
    (tmp_path / "layout.json").write_text('{"layout": 99}')
    with pytest.raises(HomeTooNew):
        tidegate.connect(home=tmp_path)


def test_a_token_with_a_line_end_works_and_no_error_repeats_a_token(server: RunningServer) -> None:
    with tidegate.connect(server.url, token=f"{server.token}\n") as client:
        assert client.status()["version"]
    for token in ("secret-ü-abc", "secret\nabc"):
        with pytest.raises(TokenWrong) as caught:
            tidegate.connect(server.url, token=token)
        assert "secret" not in f"{caught.value} {caught.value.hint}"


def test_numbers_that_json_cannot_say_are_refused_not_changed(client: tidegate.Client) -> None:
    topic = client.topics.create("app.numbers")
    for payload in ({"a": [1.0, float("nan")]}, float("inf"), {"a": {1, 2, object()}}):
        with pytest.raises(RequestInvalid):
            topic.publish([{"payload": payload}])
    topic.publish([{"payload": {"a": None, "b": 1e308}}])
    assert topic.consume()["messages"][0]["payload"] == {"a": None, "b": 1e308}


def test_a_number_too_large_for_a_double_does_not_hide_its_page(
    client: tidegate.Client, server: RunningServer
) -> None:
    topic = client.topics.create("app.huge")
    body = b'{"messages": [{"payload": 1e999}, {"payload": 1}]}'
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}
    url = f"{server.url}/api/v1/topics/app.huge/publish"
    assert httpx.post(url, content=body, headers=headers, trust_env=False).status_code == 200
    first, second = topic.consume()["messages"]
    assert (first["payload"], first["unreadable"]) == ("1e999", "Number out of range")
    assert second["payload"] == 1


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (200, b""),
        (200, b"<html>"),
        (502, b"<html>"),
        (500, b'{"error": {"code": ["x"], "details": "y"}}'),
        (500, b'{"error": {"code": "TOPIC_NOT_FOUND", "details": {"self": 1, "hint": 2}}}'),
        (500, b"[]"),
        (500, b"{}"),
    ],
)
def test_odd_answers_are_our_errors(status: int, content: bytes) -> None:
    with faulty_server(Say(status, content)) as odd:
        client = tidegate.connect(odd.url, token="x" * 20, retry_seconds=0)
        with client, pytest.raises(tidegate.TidegateError):
            client.status()
        assert len(odd.seen) == 1


def test_importing_tidegate_imports_nothing_heavy() -> None:
    program = (
        "import sys, tidegate\n"
        "heavy = {'pyspark', 'pyarrow', 'rocksdict', 'duckdb', 'deltalake', 'typer', 'rich', 'httpx'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "assert not hasattr(tidegate, 'nonsense')\n"
        "assert all(getattr(tidegate, name) for name in tidegate.__all__)\n"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
