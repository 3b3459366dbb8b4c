"""Wrong values in statements about topics: what the error says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.sql_client import Client
from tests.server.topic_client import admin, topic

__all__ = ["admin", "topic"]  # fixtures


WRONG_VALUES: list[tuple[str, list[Any], str]] = [
    ("PUBLISH INTO {t} VALUES ('{{')", [], "row 1 of VALUES is not JSON"),
    ("PUBLISH INTO {t} VALUES ('1'), (?)", ["a b"], "row 2 of VALUES is not JSON"),
    ("PUBLISH INTO {t} KEY ? VALUES ('1')", [5], "KEY is a text, not 5"),
    ("PUBLISH INTO {t} PARTITION ? VALUES ('1')", ["0"], "PARTITION is a whole number of 0 or more"),
    ("PUBLISH INTO {t} PRODUCER ? SEQUENCE 0 VALUES ('1')", ["a\nb"], "PRODUCER is a text of 1 to 200"),
    ("CONSUME FROM {t} LIMIT ?", [0], "LIMIT is a whole number from 1 to"),
    ("CONSUME FROM {t} LIMIT ?", [True], "LIMIT is a whole number from 1 to"),
    ("CONSUME FROM {t} LIMIT 1000001", [], "LIMIT is a whole number from 1 to"),
    ("CONSUME FROM {t} WAIT ?", [5], "WAIT is a duration such as '5 s', not 5"),
    ("CONSUME FROM {t} WAIT '1 day'", [], "WAIT is 0 s to 1 min, not 1 day"),
    ("CONSUME FROM {t} GROUP ?", [None], "GROUP is a text, not null"),
    ("CONSUME FROM {t} GROUP 'g' LEASE '0 s'", [], "LEASE is 1 ms to 12 h, not 0 s"),
    ("CONSUME FROM {t} FROM TIMESTAMP ?", [5], "TIMESTAMP is a time in text, not 5"),
    ("CONSUME FROM {t} FROM OFFSET ?", [-1], "OFFSET is a whole number of 0 or more, not -1"),
    ("CONSUME FROM {t} LIMIT ?", [], "values for its parameters: 1 wanted, 0 given"),
    ("ACK {t} GROUP 'g' LEASES (?)", [[1]], "a lease is a text, not [1]"),
    (
        "ACK {t} GROUP 'g' UPTO (PARTITION ? OFFSET 1, PARTITION ? OFFSET 2)",
        [0, 0],
        "partition 0 is named twice",
    ),
    ("NACK {t} GROUP 'g' LEASES ('0.1.1') DELAY '30 days'", [], "DELAY is 0 s to 7 days, not 30 days"),
    ("NACK {t} GROUP 'g' LEASES ('0.1.1') REASON ?", ["x" * 3000], "REASON has 3000 characters"),
]


@pytest.mark.parametrize(("sql", "params", "reason"), WRONG_VALUES)
def test_a_wrong_value_is_named(admin: Client, sql: str, params: list[Any], reason: str) -> None:
    admin.run("CREATE TOPIC IF NOT EXISTS shop.wrong")
    error = admin.refused(sql.format(t="shop.wrong"), params)
    assert error["code"] == "SQL_INVALID"
    assert reason in error["message"]


def test_other_wrong_values_have_errors_of_their_own(admin: Client, topic: str) -> None:
    for sql, code in (
        (f"CONSUME FROM {topic} GROUP 'a\nb'", "NAME_INVALID"),
        (f"ACK {topic} GROUP 'g' LEASES ('nonsense')", "GROUP_NOT_FOUND"),
        ("CREATE TOPIC shop.many PARTITIONS 100000", "REQUEST_INVALID"),
        ('CREATE TOPIC "a b"', "NAME_INVALID"),
        ("CONSUME FROM nowhere", "TOPIC_NOT_FOUND"),
        (f"ALTER TOPIC {topic} SET RETENTION (seconds = 9000000000)", "REQUEST_INVALID"),
    ):
        assert admin.refused(sql)["code"] == code, sql
