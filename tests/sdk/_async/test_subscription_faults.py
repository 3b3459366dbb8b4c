"""Subscriptions over sockets that break: what is given once, what is told, what is raised."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

import tidegate
from tests.sdk.sockets import LAGGED, SCHEMA, Refuse, Script, Scripted, change, error, page, scripted
from tidegate.errors import (
    NotReady,
    ServerNotRunning,
    ServerUntrusted,
    SqlInvalid,
    TableNotFound,
    TidegateError,
    TokenWrong,
)
from tidegate.sdk.live import RowChange

SQL = "SELECT * FROM chat.messages"
Told = list[tuple[str, object, object, int | None]]
Follow = Callable[..., Told]


def told(changes: list[RowChange]) -> Told:
    return [(one.kind, one.row.get("id"), one.old and one.old["text"], one.seq) for one in changes]


def sync_changes(server: Scripted, count: int, **options: Any) -> Told:
    with (
        tidegate.connect(server.url, token="t0ken", retry_seconds=20) as client,
        client.subscribe(SQL, **options) as changes,
    ):
        return told(list(itertools.islice(changes, count)))


def async_changes(server: Scripted, count: int, **options: Any) -> Told:
    async def follow() -> Told:
        found: list[RowChange] = []
        async with (
            tidegate.connect_async(server.url, token="t0ken", retry_seconds=20) as client,
            client.subscribe(SQL, **options) as changes,
        ):
            async for one in changes:
                found.append(one)
                if len(found) == count:
                    break
        return told(found)

    return asyncio.run(follow())


BOTH = pytest.mark.parametrize("follow", [sync_changes, async_changes])


@BOTH
def test_a_snapshot_and_changes_are_given_in_order_with_the_place_to_go_on(follow: Follow) -> None:
    script = [
        SCHEMA,
        page([1, "a"], [2, "b"], seq=7, last=False),
        page([3, "c"], seq=7),
        change("insert", [4, "d"], 8),
        change("update", [1, "z"], 9, old=[1, "a"]),
        change("delete", [2, "b"], 12),
    ]
    with scripted([*script]) as server:
        found = follow(server, 6)
    assert found == [
        ("snapshot", 1, None, None),
        ("snapshot", 2, None, None),
        ("snapshot", 3, None, 7),
        ("insert", 4, None, 8),
        ("update", 1, "a", 9),
        ("delete", 2, None, 12),
    ]
    assert server.asked == [{"type": "subscribe", "id": "s", "sql": SQL}]
    assert server.headers[0]["authorization"] == "Bearer t0ken"


@BOTH
def test_a_lost_connection_goes_on_behind_the_last_change(follow: Follow) -> None:
    lost: list[TidegateError] = []
    with scripted(
        [SCHEMA, page([1, "a"], seq=7), change("insert", [2, "b"], 9), None],
        Refuse(503, {"error": {"code": "NOT_READY", "details": {"reason": "starting"}}}),
        [SCHEMA, change("insert", [3, "c"], 11)],
    ) as server:
        found = follow(server, 3, on_lost=lost.append)
    assert [(kind, seq) for kind, _, _, seq in found] == [("snapshot", 7), ("insert", 9), ("insert", 11)]
    assert [asked.get("fromSeq") for asked in server.asked] == [None, 9]
    assert len(lost) == 1


@BOTH
def test_an_error_that_the_server_tells_is_no_lost_connection(follow: Follow) -> None:
    lost: list[TidegateError] = []
    dropped = error("TABLE_NOT_FOUND", table="app.t", known="none")
    with scripted([SCHEMA, page([1, "a"], seq=7), dropped]) as server, pytest.raises(TableNotFound):
        follow(server, 2, on_lost=lost.append)
    assert lost == []


@BOTH
def test_half_a_snapshot_is_never_given(follow: Follow) -> None:
    with scripted(
        [SCHEMA, page([1, "a"], [2, "b"], seq=7, last=False), None],
        [SCHEMA, page([1, "a"], seq=9, last=False), page([3, "c"], seq=9)],
    ) as server:
        found = follow(server, 2)
    assert found == [("snapshot", 1, None, None), ("snapshot", 3, None, 9)]
    assert [asked.get("fromSeq") for asked in server.asked] == [None, None]


@BOTH
def test_missed_changes_are_told_before_the_new_snapshot(follow: Follow) -> None:
    with scripted(
        [SCHEMA, page([1, "a"], seq=7), None],
        [SCHEMA, LAGGED, None],  # cut between the two: the next connection begins anew
        [SCHEMA, page([5, "e"], seq=90), change("insert", [6, "f"], 91)],
    ) as server:
        found = follow(server, 4)
    assert found == [
        ("snapshot", 1, None, 7),
        ("lagged", None, None, None),
        ("snapshot", 5, None, 90),
        ("insert", 6, None, 91),
    ]
    assert [asked.get("fromSeq") for asked in server.asked] == [None, 7, None]


def test_a_snapshot_where_none_was_awaited_is_told_as_a_lag() -> None:
    with scripted([SCHEMA, page([1, "a"], seq=7)]) as server:
        assert [kind for kind, *_ in sync_changes(server, 2, from_seq=3)] == ["lagged", "snapshot"]
    assert server.asked[0]["fromSeq"] == 3


def test_an_empty_snapshot_gives_a_place_to_go_on_from() -> None:
    with (
        scripted([SCHEMA, page(seq=7)]) as server,
        tidegate.connect(server.url, token="t") as client,
        client.subscribe(SQL) as changes,
    ):
        assert changes.seq == 7
        assert [column["name"] for column in changes.columns] == ["id", "text"]


def test_rows_that_are_there_can_be_left_out() -> None:
    with scripted(
        [SCHEMA, page([1, "a"], seq=7), change("insert", [2, "b"], 8), LAGGED, page([9, "x"], seq=20), None],
        [SCHEMA, change("insert", [3, "c"], 21)],
    ) as server:
        found = sync_changes(server, 3, snapshot=False)
    assert [(kind, seq) for kind, _, _, seq in found] == [("insert", 8), ("lagged", None), ("insert", 21)]
    assert server.asked[1]["fromSeq"] == 20


@BOTH
@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ([error("SQL_INVALID", reason="expected FROM")], SqlInvalid),
        ([SCHEMA, page(seq=1), error("TABLE_NOT_FOUND", table="chat.messages")], TableNotFound),
        (Refuse(401, {"error": {"code": "TOKEN_WRONG", "details": {}}}), TokenWrong),
        ([{"nonsense": 1}], TidegateError),
        ([SCHEMA, change("eat", [1, "a"], 2)], TidegateError),
    ],
)
def test_what_the_server_refuses_is_raised_once(
    follow: Follow, script: Script, kind: type[TidegateError]
) -> None:
    with scripted(script) as server, pytest.raises(kind):
        follow(server, 1)
    assert len(server.headers) == 1


@BOTH
def test_a_busy_server_is_asked_again(follow: Follow) -> None:
    with scripted(
        [error("NOT_READY", reason="starting")],
        [error("TOO_MANY_REQUESTS", what="sockets", limit=1, retry_after_seconds=0)],
        [SCHEMA, page([1, "a"], seq=7)],
    ) as server:
        assert len(follow(server, 1)) == 1


def test_patience_ends_with_the_last_error() -> None:
    refusal = Refuse(503, {"error": {"code": "NOT_READY", "details": {"reason": "starting"}}})
    with (
        scripted(refusal) as server,
        tidegate.connect(server.url, token="t", retry_seconds=0) as client,
        pytest.raises(NotReady),
    ):
        next(client.subscribe(SQL))
    with (
        scripted([SCHEMA, page([1, "a"], seq=7), None], refusal) as server,
        tidegate.connect(server.url, token="t", retry_seconds=0) as client,
        pytest.raises(NotReady),
    ):
        list(client.subscribe(SQL, reconnect_seconds=0.2))
    client = tidegate.connect("http://127.0.0.1:9", token="t", retry_seconds=0)
    with client, pytest.raises(ServerNotRunning):
        next(client.subscribe(SQL))


def test_closing_wakes_whoever_waits() -> None:
    with scripted([SCHEMA, page(seq=7)]) as server, tidegate.connect(server.url, token="t") as client:
        changes = client.subscribe(SQL)
        changes.open()
        waiting = threading.Thread(target=lambda: list(changes))
        waiting.start()
        changes.close()
        waiting.join(60)
        assert not waiting.is_alive()
        assert server.gone.wait(60)


def test_closing_wakes_whoever_waits_for_a_server_that_is_away() -> None:
    client = tidegate.connect("http://127.0.0.1:9", token="t", retry_seconds=3600)
    changes = client.subscribe(SQL)
    waiting = threading.Thread(target=lambda: list(changes))
    waiting.start()
    client.close()
    waiting.join(60)
    assert not waiting.is_alive()


def test_a_task_that_waits_is_cancelled_or_woken() -> None:
    async def follow(server: Scripted) -> None:
        async with tidegate.connect_async(server.url, token="t") as client:
            changes = client.subscribe(SQL)
            await changes.open()
            waiting = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            waiting = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(0)
            await changes.close()
            with pytest.raises(StopAsyncIteration):
                await waiting

    with scripted([SCHEMA, page(seq=7)]) as server:
        asyncio.run(follow(server))


def test_certificates_are_checked_as_for_every_call(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trusted = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(trusted))
    with scripted([SCHEMA, page([1, "a"], seq=7)], context=context) as server:
        client = tidegate.connect(server.url, token="t", retry_seconds=3600)
        with client, pytest.raises(ServerUntrusted):
            next(client.subscribe(SQL))
        with tidegate.connect(server.url, token="t", ca_file=trusted) as client:
            assert next(client.subscribe(SQL)).row == {"id": 1, "text": "a"}


def test_parameters_and_tenants_go_along() -> None:
    with (
        scripted([SCHEMA, page(seq=7)]) as server,
        tidegate.connect(server.url, token="t", tenant="acme") as client,
        client.subscribe(f"{SQL} WHERE id > ?", [5]) as changes,
    ):
        assert changes.seq == 7
    assert server.asked[0]["params"] == [5]
    assert server.headers[0]["x-tenant"] == "acme"
