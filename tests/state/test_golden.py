"""Golden files: bytes that released formats wrote are read for ever.

`python -m tests.state.test_golden` writes the files of the formats of today; a file of a released version is
never written again.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.state.plain_values import plain_decode
from tidegate.checkpoint.keys.codec import KeyType, StateKeyCodec
from tidegate.checkpoint.keys.spark_hash import groups_of_hashes
from tidegate.state.kinds.map_keys import SubKeyCodec
from tidegate.state.schema.schema import (
    OperatorSchema,
    SchemaRequest,
    StateSpec,
    dump_schema,
    load_schema,
    plan_schema,
)
from tidegate.state.serializers.registry import JsonSerializer, serializer_for
from tidegate.state.serializers.signatures import signature_of
from tidegate.testing.operators import key_columns

FOLDER = Path(__file__).parent / "golden"
AT = dt.datetime(2024, 2, 29, 12, 30, 0, 123456, tzinfo=dt.UTC)
NAIVE = AT.replace(tzinfo=None)
DAY = dt.date(2024, 2, 29)


@dataclass
class Point:
    x: int
    y: float


@dataclass
class Session:
    start: dt.datetime
    name: str
    points: list[Point]
    counts: dict[str, int]
    pair: tuple[str, bool]
    price: Decimal
    raw: bytes
    day: dt.date
    maybe: Point | None = None


SESSION = Session(AT, "söme", [Point(-1, 0.5)], {"a": 1}, ("p", True), Decimal("1.50"), b"\x00\xff", DAY)
VALUES: dict[str, tuple[Any, Any]] = {
    "int": (int, -12345678901),
    "float": (float, 0.1),
    "bool": (bool, True),
    "str": (str, "söme text\x00"),
    "bytes": (bytes, b"\x00\xff"),
    "datetime": (dt.datetime, AT),
    "datetime, naive": (dt.datetime, NAIVE),
    "date": (dt.date, DAY),
    "decimal": (Decimal, Decimal("-1.50")),
    "record": (Session, SESSION),
    "list": (list[int], [1, -1, 2**40]),
    "map": (dict[int, str], {1: "a"}),
    "tuple": (tuple[str, int], ("a", 1)),
    "optional": (int | None, None),
}
KEYS: dict[str, tuple[list[list[str]], Any]] = {
    "every kind": (
        [
            ["a", "boolean"],
            ["b", "tinyint"],
            ["c", "smallint"],
            ["d", "int"],
            ["e", "bigint"],
            ["f", "string"],
            ["g", "binary"],
            ["h", "date"],
            ["i", "timestamp"],
            ["j", "timestamp_ntz"],
            ["k", "decimal(10,2)"],
            ["l", "decimal(38,6)"],
        ],
        (
            True,
            -1,
            2,
            -3,
            4,
            "é\x00x",
            b"\x00",
            DAY,
            AT,
            NAIVE,
            Decimal("-1.50"),
            Decimal("12345678901234567890.5"),
        ),
    ),
    "text": ([["k", "string"]], "user-1"),
    "null": ([["k", "string"]], None),
    "pair with null": ([["k", "string"], ["n", "bigint"]], (None, 5)),
}
SUB_KEYS: dict[str, tuple[Any, Any]] = {
    "str": (str, "é\x00x"),
    "int": (int, -5),
    "bool": (bool, False),
    "bytes": (bytes, b"\x00"),
    "float": (float, -0.5),
    "date": (dt.date, DAY),
    "datetime": (dt.datetime, AT),
    "decimal": (Decimal, Decimal("-12.5")),
    "decimal zero": (Decimal, Decimal(0)),
    "tuple": (tuple[str, int | None], ("a", None)),
}


def wanted() -> SchemaRequest:
    specs = (
        StateSpec("session", "value", (Session,), serializer="msgpack", ttl={"ttl_ms": 86_400_000}),
        StateSpec("features", "map", (str, int), serializer="int64", version=2),
        StateSpec("offsets", "operator-list", (str,), serializer="utf8", redistribute="union"),
    )
    return SchemaRequest("sessions", KeyType.from_json([["user_id", "string"]]), 128, specs)


def schema() -> OperatorSchema:
    return plan_schema(None, wanted())


def golden(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", VALUES)
def test_values_of_version_1_are_read(name: str) -> None:
    kind, value = VALUES[name]
    payload = bytes.fromhex(golden("values.v1.json")[name])
    assert serializer_for(kind).decode(payload) == value
    assert serializer_for(kind).encode(value) == payload


def test_arrays_and_json_of_version_1_are_read() -> None:
    stored = golden("values.v1.json")
    array = serializer_for(np.ndarray).decode(bytes.fromhex(stored["ndarray"]))
    assert array.tolist() == [[1.5, 2.5], [3.5, 4.5]]
    assert array.dtype == np.float64
    assert JsonSerializer(Session).decode(bytes.fromhex(stored["json record"])) == SESSION


def test_a_record_of_version_1_is_read_without_its_class() -> None:
    plain = plain_decode(signature_of(Session), bytes.fromhex(golden("values.v1.json")["record"]))
    assert plain["name"] == "söme"
    assert plain["points"] == [{"x": -1, "y": 0.5}]
    assert plain["start"] == "2024-02-29T12:30:00.123456Z"


def hash_and_group(codec: StateKeyCodec, key: Any) -> tuple[int, int]:
    hashes = codec.hash_columns(key_columns(codec.key_type, [key]))
    return int(hashes.view(np.int64)[0]), int(groups_of_hashes(hashes, 128)[0])


@pytest.mark.parametrize("name", KEYS)
def test_keys_of_version_1_are_read_and_stay_in_their_group(name: str) -> None:
    columns, key = KEYS[name]
    codec = StateKeyCodec(KeyType.from_json(columns))
    stored = golden("keys.v1.json")[name]
    content = bytes.fromhex(stored["bytes"])
    assert codec.decode(content) == (key, len(content))
    assert codec.encode(key) == content
    assert hash_and_group(codec, key) == (stored["hash"], stored["group of 128"])


@pytest.mark.parametrize("name", SUB_KEYS)
def test_sub_keys_of_version_1_are_read(name: str) -> None:
    kind, value = SUB_KEYS[name]
    content = bytes.fromhex(golden("subkeys.v1.json")[name])
    assert SubKeyCodec(kind).decode(content) == value
    assert SubKeyCodec(kind).encode(value) == content


def test_a_schema_of_version_1_is_read_and_the_same_code_goes_on_with_it() -> None:
    stored = load_schema((FOLDER / "schema.v1.json").read_bytes(), "golden")
    assert stored == schema()
    assert plan_schema(stored, wanted()) is stored


def write_golden() -> None:
    """Write the files of the formats of today."""
    array = np.array([[1.5, 2.5], [3.5, 4.5]])
    values = {name: serializer_for(kind).encode(value).hex() for name, (kind, value) in VALUES.items()}
    values["ndarray"] = serializer_for(np.ndarray).encode(array).hex()
    values["json record"] = JsonSerializer(Session).encode(SESSION).hex()
    keys: dict[str, Any] = {}
    for name, (columns, key) in KEYS.items():
        codec = StateKeyCodec(KeyType.from_json(columns))
        hashed, group = hash_and_group(codec, key)
        keys[name] = {"bytes": codec.encode(key).hex(), "hash": hashed, "group of 128": group}
    sub_keys = {name: SubKeyCodec(kind).encode(value).hex() for name, (kind, value) in SUB_KEYS.items()}
    FOLDER.mkdir(exist_ok=True)
    for file, content in (("values", values), ("keys", keys), ("subkeys", sub_keys)):
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        (FOLDER / f"{file}.v1.json").write_text(text, encoding="utf-8")
    (FOLDER / "schema.v1.json").write_bytes(dump_schema(schema()))


if __name__ == "__main__":
    write_golden()
