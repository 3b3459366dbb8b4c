"""SQL through the client against a real server: parameters, many rows, scripts, Arrow in and out."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

import tidegate
from tidegate.errors import RowExists, SqlInvalid, ValueInvalid
from tidegate.sdk.client import Client
from tidegate.testing.server import RunningServer


def made(client: Client, name: str) -> str:
    table = f"shop.{name}"
    client.sql("CREATE NAMESPACE IF NOT EXISTS shop")
    client.sql(
        f"CREATE SHARED TABLE {table} (id BIGINT PRIMARY KEY, price DECIMAL(9,2), at TIMESTAMP, tags JSON,"
        " note TEXT DEFAULT 'none')"
    )
    return table


def test_values_are_bound_and_come_back(client: Client) -> None:
    table = made(client, "bound")
    at = datetime(2026, 1, 2, 3, 4, 5, 250_000, UTC)
    insert = f"INSERT INTO {table} (id, price, at, tags, note) VALUES (?, ?, ?, ?, ?)"
    answer = client.sql(insert, [1, Decimal("1.50"), at, {"a": 1}, "it's; --"])
    assert (answer.row_count, answer.rows, answer.columns) == (1, [], [])
    answer = client.sql(f"SELECT * FROM {table} WHERE note = ?", ["it's; --"])
    assert answer.to_dicts() == [
        {"id": 1, "price": "1.50", "at": "2026-01-02T03:04:05.250Z", "tags": '{"a":1}', "note": "it's; --"}
    ]
    assert answer.to_arrow()["price"].to_pylist() == [Decimal("1.50")]
    assert list(answer.to_pandas()["id"]) == [1]


def test_many_rows_are_one_statement(client: Client) -> None:
    table = made(client, "many")
    insert = f"INSERT INTO {table} (id, note) VALUES (?, ?)"
    assert client.sql(insert, [[number, f"n{number}"] for number in range(500)]).row_count == 500
    with pytest.raises(RowExists):
        client.sql(insert, [[500, "new"], [7, "taken"]])
    assert client.sql(f"SELECT count(*) FROM {table}").rows == [[500]]


def test_rows_go_in_as_arrow_all_or_none(client: Client) -> None:
    table = made(client, "arrow")
    rows = [{"id": number, "price": Decimal("2.25"), "tags": {"n": number}} for number in range(1000)]
    assert client.insert(table, rows) == 1000
    assert client.insert(table, pa.table({"note": ["new"], "id": [3]}), upsert=True) == 1
    assert client.sql(f"SELECT id, tags, note FROM {table} WHERE id IN (3, 4) ORDER BY id").rows == [
        [3, None, "new"],
        [4, '{"n":4}', "none"],
    ]
    with pytest.raises(RowExists):
        client.insert(table, [{"id": 1000}, {"id": 3}])
    with pytest.raises(ValueInvalid):
        client.insert(table, [{"id": 2000, "price": Decimal("1.234")}])
    assert client.sql(f"SELECT max(id) FROM {table}").rows == [[999]]


def test_a_key_lets_a_write_be_sent_twice(client: Client) -> None:
    table = made(client, "keyed")
    for _ in range(2):
        answer = client.sql(f"INSERT INTO {table} (id) VALUES (1)", idempotency_key=f"key-{table}")
        assert answer.row_count == 1
    for _ in range(2):
        assert client.insert(table, [{"id": 2}], idempotency_key=f"key-2-{table}") == 1
    assert client.sql(f"SELECT count(*) FROM {table}").rows == [[2]]


def test_a_script_answers_each_statement_and_stops_at_a_failure(client: Client) -> None:
    table = made(client, "script")
    answer = client.sql(f"INSERT INTO {table} (id) VALUES (1), (2); SELECT id FROM {table} ORDER BY id;")
    assert [(result.row_count, result.rows) for result in answer.results] == [(2, []), (2, [[1], [2]])]
    assert answer.rows == [[1], [2]]
    with pytest.raises(RowExists) as caught:
        client.sql(f"INSERT INTO {table} (id) VALUES (3);\nINSERT INTO {table} (id) VALUES (1); SELECT 1")
    assert caught.value.values["statement"] == 2
    assert client.sql(f"SELECT count(*) FROM {table}").rows == [[3]]


def test_a_mistake_has_a_place(client: Client) -> None:
    with pytest.raises(SqlInvalid) as caught:
        client.sql("SELECT 1;\nCREATE TABEL shop.x (id INT)")
    assert (caught.value.values["line"], caught.value.values["column"]) == (2, 8)


def test_both_clients_do_the_same(server: RunningServer) -> None:
    async def ask() -> object:
        async with tidegate.connect_async(home=server.home) as client:
            await client.sql("CREATE NAMESPACE IF NOT EXISTS shop")
            await client.sql("CREATE SHARED TABLE shop.waiting (id BIGINT PRIMARY KEY, n INT)")
            assert await client.insert("shop.waiting", [{"id": 1, "n": 2}]) == 1
            answer = await client.sql("SELECT n FROM shop.waiting WHERE id = ?", [1])
            return (await answer.to_arrow()).to_pylist()

    assert asyncio.run(ask()) == [{"n": 2}]
