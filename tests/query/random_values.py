"""Values of every column type, with edges, for tables here and in DuckDB alone, and ways to write them."""

from __future__ import annotations

import random
from datetime import date, timedelta
from decimal import Context, Decimal
from typing import Any

from tidegate.model.schemas import ColumnType, parse_type
from tidegate.model.tables import Value
from tidegate.testing.clock import START_US

TYPES = ["BOOLEAN", "INT", "BIGINT", "DOUBLE", "DECIMAL(10,2)", "DECIMAL(38,10)", "DECIMAL(4,0)", "TEXT"]
TYPES += ["BYTES", "JSON", "UUID", "DATE", "TIMESTAMP"]
KEY_TYPES = ["BOOLEAN", "INT", "BIGINT", "BIGINT", "TEXT", "TEXT", "UUID", "DATE", "TIMESTAMP", "BYTES"]
KEY_TYPES += ["DECIMAL(10,2)", "DOUBLE"]

_UUIDS = [f"7f0e6f0c-0000-4000-8000-00000000000{n}" for n in range(6)]
_UUIDS += ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"]
_UUIDS += ["80000000-0000-0000-0000-000000000000", "7fffffff-ffff-ffff-ffff-ffffffffffff"]
_DAY = 86_400 * 1_000_000
_TIMES = [START_US + n for n in (0, 1, -1, 1_000_000, 3_600_000_000, _DAY, -_DAY, 5 * _DAY, 123_456)]

POOLS: dict[str, list[Any]] = {
    "BOOLEAN": [True, False],
    "INT": [*range(-3, 9), 2**31 - 1, -(2**31), 100],
    "BIGINT": [*range(-3, 9), 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 100],
    "DOUBLE": [0.0, 1.0, -1.0, 1.5, 2.0, 3.0, 0.1, 1e300, -1e300, 5e-324, float("inf"), float("-inf")],
    "TEXT": ["", "a", "b", "ab", "A", "é", "zz", "a\x00b", "a\x00", "😀", "\uffff", "it's", "5", "x" * 40],
    "BYTES": [b"", b"a", b"\x00", b"\x00\xff", b"\xff\xff", b"ab"],
    "JSON": ['{"a": 1}', "[1, 2]", '"text"', "null", '{"a": {"b": "x"}}'],
    "UUID": _UUIDS,
    "DATE": [20_454 + n for n in (0, 1, 2, 3, -1, 30, 365)] + [-719_162, 2_932_896, 0],
    "TIMESTAMP": [*_TIMES, 0, -1],
}
NULL_CHANCE = 0.12
_WIDE = Context(prec=100)


def kind_of(text: str) -> ColumnType:
    return parse_type(text)


def pool_of(kind: ColumnType) -> list[Any]:
    if kind.name != "DECIMAL":
        return POOLS[kind.name]
    step = Decimal(1).scaleb(-kind.scale)
    most = Decimal(10**kind.precision - 1).scaleb(-kind.scale, context=_WIDE)
    some = [Decimal(n) for n in (0, 1, 2, 3, -1, 5)] + [
        step,
        step.copy_negate(),
        most,
        most.copy_negate(),
        1 + step,
    ]
    return [value.quantize(step, context=_WIDE) for value in some]


def random_value(rng: random.Random, kind: ColumnType) -> Value:
    """Return a value or NULL; a DOUBLE may also be NaN or -0.0."""
    if rng.random() < NULL_CHANCE:
        return None
    if kind.name == "DOUBLE" and rng.random() < 0.1:
        return rng.choice([float("nan"), -0.0])
    return rng.choice(pool_of(kind))  # type: ignore[no-any-return]


def key_value(rng: random.Random, kind: ColumnType) -> Value:
    return rng.choice(pool_of(kind))  # type: ignore[no-any-return]


def duck_type(kind: ColumnType) -> str:
    names = {"TEXT": "VARCHAR", "JSON": "VARCHAR", "BYTES": "BLOB", "TIMESTAMP": "TIMESTAMPTZ"}
    return names.get(kind.name, str(kind))


def native_sql(kind: ColumnType, number: int) -> str:
    """Return the SQL that makes a value of a bound one."""
    if kind.name == "TIMESTAMP":
        return f"make_timestamptz(${number}::BIGINT)"
    if kind.name == "DATE":
        return f"(DATE '1970-01-01' + ${number}::INTEGER)"
    return f"${number}::{duck_type(kind)}"


def native_value(value: Value, kind: ColumnType) -> Any:
    return str(value) if kind.name == "DECIMAL" and value is not None else value


def iso_time(us: int) -> str:
    """Return a moment as people write it, with a zone."""
    days, rest = divmod(us, _DAY)
    seconds, fraction = divmod(rest, 1_000_000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:06}"
    return f"{date(1970, 1, 1) + timedelta(days=days)} {clock}"


def iso_day(days: int) -> str:
    return str(date.fromordinal(days + date(1970, 1, 1).toordinal()))


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def writings(value: Any, kind: ColumnType) -> list[tuple[str, list[Any]]]:
    """Return ways to write a constant that is compared with a column: SQL text with ? for bound values."""
    match kind.name:
        case "BOOLEAN":
            return [("?", [value]), (str(value).lower(), []), (f"CAST({int(value)} AS BOOLEAN)", [])]
        case "INT" | "BIGINT":
            return [
                ("?", [value]),
                (f"{value}", []),
                (f"({value})", []),
                (f"{value}.0", []),
                (f"{value}.5", []),
                (quoted(str(value)), []),
                ("?", [str(value)]),
                (f"{value + 2**64}", []),
                ("?", [float(value)]),
                (f"CAST({quoted(str(value))} AS BIGINT)", []),
            ]
        case "DOUBLE":
            text = repr(value) if abs(value) < 1e17 and "e" not in repr(value) else f"{value!r}::DOUBLE"
            text = f"'{value!r}'::DOUBLE" if value in (float("inf"), float("-inf")) else text
            return [("?", [value]), (text, []), ("?", [1]), ("2", []), ("'nan'::DOUBLE", [])]
        case "DECIMAL":
            return [
                ("?", [value]),
                (f"{value:f}", []),
                # Beyond 38 digits DuckDB refuses, but only where it comes to look at such a row.
                (f"{value:f}5" if kind.precision < 38 else f"{value:f}", []),
                (f"{int(value) % 7}", []),
                ("?", [int(value) % 7]),
                ("?", [float(value)]),
                (quoted(f"{value:f}"), []),
            ]
        case "BYTES":
            return [("?", [value])]
    return _text_writings(value, kind)


def _text_writings(value: Any, kind: ColumnType) -> list[tuple[str, list[Any]]]:
    match kind.name:
        case "TIMESTAMP":
            text = iso_time(value)
            zoned = text.replace(" ", "T") + "Z"
            return [
                (quoted(text), []),
                ("?", [text]),
                ("?", [zoned]),
                (f"TIMESTAMPTZ {quoted(text + '+00')}", []),
                (f"TIMESTAMP {quoted(text)}", []),
                (f"DATE {quoted(text[:10])}", []),
                (f"(TIMESTAMPTZ {quoted(text + '+00')} - INTERVAL 1 HOUR)", []),
                (f"CAST({quoted(text)} AS TIMESTAMPTZ) + INTERVAL '2' DAY", []),
                (quoted(text + "+02"), []),
            ]
        case "DATE":
            text = iso_day(value)
            return [
                (quoted(text), []),
                ("?", [text]),
                ("?", [date.fromisoformat(text)]),
                (f"DATE {quoted(text)}", []),
                (f"TIMESTAMP {quoted(text + ' 12:00:00')}", []),
                (f"DATE {quoted(text)} + INTERVAL 1 DAY", []),
            ]
        case "UUID":
            return [(quoted(value), []), ("?", [value]), ("?", [value.upper()]), (quoted(value.upper()), [])]
    if "\x00" in value:
        return [("?", [value])]
    return [("?", [value]), (quoted(value), []), (f"CAST({quoted(value)} AS VARCHAR)", [])]
