"""Random rows for the differential test of live queries: many edges, some NULLs."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Row
from tidegate.sql.expressions.compile import RowColumns

SHAPE = RowColumns(
    (
        ("bo", ColumnType.BOOLEAN),
        ("i", ColumnType.INT),
        ("k", ColumnType.INT),
        ("n", ColumnType.BIGINT),
        ("x", ColumnType.DOUBLE),
        ("y", ColumnType.DOUBLE),
        ("d", ColumnType.decimal(10, 2)),
        ("e", ColumnType.decimal(18, 6)),
        ("w", ColumnType.decimal(38, 4)),
        ("s", ColumnType.TEXT),
        ("t", ColumnType.TEXT),
        ("p", ColumnType.TEXT),
        ("q", ColumnType.TEXT),
        ("z", ColumnType.BYTES),
        ("j", ColumnType.JSON),
        ("u", ColumnType.UUID),
        ("da", ColumnType.DATE),
        ("ts", ColumnType.TIMESTAMP),
        ("tt", ColumnType.TIMESTAMP),
    )
)

_WIDE = Context(prec=60)
DAY_FIRST, DAY_LAST = -719_162, 2_932_896
US_PER_DAY = 86_400_000_000
TEXTS = [
    "",
    "a",
    "A",
    "abc",
    "ABC",
    "aXb",
    "a%b",
    "a_b",
    "é",
    "Éa",
    "ß",
    "straße",
    "İi",
    "Σας",
    "a\nb",
    " a ",
    "  ",
    "日本",
    "ab",
]
TEXTS += ["%", "_", "zz", "a b", "x\ty", "👍", "0", "abcabc", "'q'", "\\", "ÄÖÜ", "ῼ", "ﬁ"]
NUMBER_TEXTS = [
    "1",
    "12",
    "-3",
    "+5",
    " 7 ",
    "1.5",
    "2.5",
    "-2.5",
    "1e2",
    "1e-1",
    ".5",
    "5.",
    "abc",
    "",
    "inf",
    "-inf",
    "nan",
]
NUMBER_TEXTS += [
    "NaN",
    "Infinity",
    "1_000",
    "1__0",
    "0.005",
    "99999999999",
    "2147483648",
    "1e400",
    "-0",
    "0x1",
    "1 2",
    "t",
]
NUMBER_TEXTS += [
    "true",
    "FALSE",
    "yes",
    "n",
    "1.2.3",
    "e5",
    "1e",
    "-",
    "9" * 39,
    "1e5x",
    "2020-01-31",
    "--1",
    "1e39",
    "1e+2",
]
TIME_TEXTS = [
    "2020-01-31",
    "2020-02-30",
    "2020-1-5",
    "2020/01/05",
    "0001-01-01",
    "2020-01-01 10:00:00",
    "2020-01-01T10:00:00.5Z",
]
TIME_TEXTS += [
    "2020-01-01 10:00+02",
    "2020-01-01 10:00:00.1234567",
    "2020-01-01 24:00:00",
    "2020-01-01 10:00:00 ",
    "12:00",
    "",
]
TIME_TEXTS += [
    "2020-01-01 10:00:60",
    "2020-01-01 1:2:3",
    "2020-13-01",
    "abc",
    "5",
    "2020-01-01 10:00:00-05:30",
    "9999-12-31",
]
TIME_TEXTS += [
    "2020-01-01 10",
    "2020-01-01x",
    " 2020-01-01",
    "2020-01-01 10:00:00.5+0130",
    "2020-01-01 23:59:59.9999999",
]
UUID_TEXTS = [
    "A0000000-0000-0000-0000-00000000000b",
    "a0000000000000000000000000000001",
    "a0000000-0000",
    "{}",
    "{A0000000-0000-0000-0000-00000000000b}",
]
UUID_TEXTS += [
    "a000-00000000-0000-0000-0000-00000000",
    "g0000000-0000-0000-0000-00000000000b",
    " a0000000-0000-0000-0000-00000000000b",
]
JSONS = [
    '{"a":1,"b":{"c":"x"},"l":[1,2.50,"z",null]}',
    "[1,2,3]",
    '"text"',
    "5",
    "null",
    "true",
    '{"a":null}',
    '{"a":"1.5"}',
    "{}",
]
JSONS += [
    '{"a":1e20,"b":-0.0,"l":[]}',
    '{"a":"\\u00e9\\n\\u0001","a":2}',
    '{"b":{"c":[1,{"d":true}]}}',
    '{"a":1e-7,"l":[[1],[2]]}',
]
JSONS += [
    '{"a": 12345678901234567890123, "l": [1.0, 1e21, 123456789012345680000.0]}',
    '{"a":{"c":"é\\"\\\\/"}}',
    '{"l":[{"a":0.000001}]}',
]
DOUBLES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    1.5,
    2.5,
    -2.5,
    0.1,
    1e300,
    -1e300,
    1e-300,
    5e-324,
    1e16,
    123456.789,
    2.0**53,
    0.49999999999999994,
]
DOUBLES += [float("nan"), float("inf"), float("-inf"), 2.675, 9.2e18, 1e15, 1e-5]
INTS = [0, 1, -1, 2, 3, 5, 7, 10, -7, 100, 2**31 - 1, -(2**31), 12345]
BIGS = [*INTS, 2**63 - 1, -(2**63), 2**53 + 1, 10**15, -(10**18)]


def value_of(rng: random.Random, kind: ColumnType) -> Any:
    """Return a random value of a column, often an edge, sometimes NULL."""
    if rng.random() < 0.15:
        return None
    day = rng.choice(
        [0, -1, 18_262, rng.randint(DAY_FIRST, DAY_LAST), DAY_FIRST, DAY_LAST, rng.randint(15_000, 20_000)]
    )
    clock = rng.choice([0, 1, US_PER_DAY - 1, rng.randrange(US_PER_DAY), rng.randrange(86_400) * 1_000_000])
    makers: dict[str, Callable[[], Any]] = {
        "BOOLEAN": lambda: rng.random() < 0.5,
        "INT": lambda: rng.choice([rng.choice(INTS), rng.randint(-20, 20), rng.randint(-(2**31), 2**31 - 1)]),
        "BIGINT": lambda: rng.choice(
            [rng.choice(BIGS), rng.randint(-20, 20), rng.randint(-(2**63), 2**63 - 1)]
        ),
        "DOUBLE": lambda: rng.choice(
            [rng.choice(DOUBLES), rng.uniform(-100, 100), float(rng.randint(-9, 9))]
        ),
        "DECIMAL": lambda: _decimal(rng, kind),
        "TEXT": lambda: rng.choice(TEXTS),
        "BYTES": lambda: rng.choice([b"", b"a", b"\xff\x00", b"ab", b"'\\x", b"Z"]),
        "JSON": lambda: rng.choice(JSONS),
        "UUID": lambda: (
            f"{rng.choice(['a0000000', '00000000', 'ffffffff'])}-0000-4000-8000-{rng.randint(0, 3):012x}"
        ),
        "DATE": lambda: day,
        "TIMESTAMP": lambda: day * US_PER_DAY + clock,
    }
    return makers[kind.name]()


def _decimal(rng: random.Random, kind: ColumnType) -> Decimal:
    top = 10**kind.precision - 1
    digits = rng.choice(
        [0, 1, -1, top, -top, rng.randint(-top, top), rng.randint(-1000, 1000), 5 * 10 ** (kind.scale - 1)]
    )
    return Decimal(digits).scaleb(-kind.scale, context=_WIDE)


def rows_of(rng: random.Random, count: int) -> list[Row]:
    """Return random rows; columns p and q hold texts that look like numbers, and like times and ids."""
    made = [[value_of(rng, kind) for _, kind in SHAPE.columns] for _ in range(count)]
    names = [name for name, _ in SHAPE.columns]
    for row in made:
        row[names.index("p")] = rng.choice(NUMBER_TEXTS) if rng.random() < 0.9 else None
        row[names.index("q")] = rng.choice([*TIME_TEXTS, *UUID_TEXTS]) if rng.random() < 0.9 else None
    return [tuple(row) for row in made]
