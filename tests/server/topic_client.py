"""Someone who sends statements about topics, with topics and tables of their own."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.server.sql_client import Client
from tidegate.testing.server import RunningServer

_numbers = itertools.count()


@pytest.fixture(scope="module")
def admin(server: RunningServer) -> Client:
    client = Client(server)
    client.run("CREATE NAMESPACE IF NOT EXISTS shop")
    return client


@pytest.fixture
def topic(admin: Client) -> str:
    name = f"shop.t{next(_numbers)}"
    admin.run(f"CREATE TOPIC {name}")
    return name


@pytest.fixture
def orders(admin: Client) -> str:
    name = f"shop.orders{next(_numbers)}"
    admin.run(f"CREATE SHARED TABLE {name} (id INT PRIMARY KEY, customer TEXT, total DOUBLE)")
    return name


def told(client: Client, sql: str, params: list[Any] | None = None) -> list[dict[str, Any]]:
    """Return the rows of a statement by the names of their columns."""
    answer = client.run(sql, params)
    names = [column["name"] for column in answer["columns"]]
    return [dict(zip(names, row, strict=True)) for row in answer["rows"]]
