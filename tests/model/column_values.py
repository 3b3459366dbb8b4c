"""Every type of column, and any values of it."""

from __future__ import annotations

import json
from decimal import Decimal

from hypothesis import strategies as st

from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Value
from tidegate.model.times import TIME_US_MAX, TIME_US_MIN
from tidegate.model.values import BIGINT_MAX, BIGINT_MIN, DAY_MAX, DAY_MIN, INT_MAX, INT_MIN

KINDS = [
    ColumnType.BOOLEAN,
    ColumnType.INT,
    ColumnType.BIGINT,
    ColumnType.DOUBLE,
    ColumnType.decimal(12, 2),
    ColumnType.decimal(38, 0),
    ColumnType.decimal(38, 38),
    ColumnType.TEXT,
    ColumnType.BYTES,
    ColumnType.JSON,
    ColumnType.UUID,
    ColumnType.DATE,
    ColumnType.TIMESTAMP,
]
KEY_KINDS = [kind for kind in KINDS if kind != ColumnType.JSON]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def decimals(kind: ColumnType) -> st.SearchStrategy[Decimal]:
    most = 10**kind.precision - 1
    # `scaleb` and arithmetic round to 28 digits; a tuple of digits does not.
    return st.integers(-most, most).map(
        lambda whole: Decimal((int(whole < 0), tuple(map(int, str(abs(whole)))), -kind.scale))
    )


def values_of(kind: ColumnType) -> st.SearchStrategy[Value]:
    """Return any value that a column of the type holds, but NULL."""
    if kind.name == "DECIMAL":
        return decimals(kind)
    found: dict[str, st.SearchStrategy[Value]] = {
        "BOOLEAN": st.booleans(),
        "INT": st.integers(INT_MIN, INT_MAX),
        "BIGINT": st.integers(BIGINT_MIN, BIGINT_MAX),
        "DOUBLE": st.floats(allow_nan=False),
        "TEXT": texts,
        "BYTES": st.binary(max_size=12),
        "JSON": st.recursive(st.none() | st.booleans() | st.integers() | texts, st.lists, max_leaves=4).map(
            json.dumps
        ),
        "UUID": st.uuids().map(str),
        "DATE": st.integers(DAY_MIN, DAY_MAX),
        "TIMESTAMP": st.integers(TIME_US_MIN, TIME_US_MAX),
    }
    return found[kind.name]
