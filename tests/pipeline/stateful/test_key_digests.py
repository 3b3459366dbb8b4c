"""Digests: two keys have one digest when they are equal, in the JVM as in Python."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pyarrow as pa
import pytest

from tidegate.dedup.identity import digest_columns, plain_column
from tidegate.pipeline.stateful.key_digests import UnsupportedKeyType, content_digest, hash_pair

pytestmark = pytest.mark.spark

# Keys of one type, column by column, all different.
DIFFERENT = {
    "string | string": [
        "'a', null",
        "null, 'a'",
        "'a', ''",
        "'', 'a'",
        "null, null",
        "'ab', 'c'",
        "'a', 'bc'",
    ],
    "array<array<string>>": [
        "array(array('a'), array('b'))",
        "array(array('a', 'b'))",
        "array(array('a', 'b'), array())",
        "array(array('a'), null, array('b'))",
        "array(array('a', null), array('b'))",
        "array()",
        "null",
        "array(null)",
    ],
    "struct<x: int, y: string>": [
        "null",
        "named_struct('x', null, 'y', null)",
        "named_struct('x', 1, 'y', null)",
        "named_struct('x', 1, 'y', '1')",
        "named_struct('x', null, 'y', '1')",
    ],
    "map<string, int>": [
        "map('a', 1)",
        "map('a', null)",
        "map()",
        "null",
        "map('a', 1, 'b', 1)",
        "map('b', 1)",
    ],
    "double": ["0.0", "double('NaN')", "double('Infinity')", "1.5", "null"],
    "bigint": ["0", "1", "-1", "null", "9223372036854775807"],
    "binary": ["X''", "X'00'", "X'0000'", "null"],
    "decimal(30, 2)": ["1.50", "15.00", "0", "null"],
    "timestamp": ["timestamp'2026-01-01 00:00:00.000001'", "timestamp'2026-01-01'", "null"],
}

# Pairs of equal keys, of types that count as one.
EQUAL = [
    ("-0.0d", "0.0d"),
    ("cast(7 as tinyint)", "7L"),
    ("cast(7 as smallint)", "7"),
    ("float(1.5)", "1.5d"),
    ("float('NaN')", "double('NaN')"),
    ("map('a', 1, 'b', 2)", "map('b', 2, 'a', 1)"),
    ("'A' collate UTF8_LCASE", "'A'"),
]


def digests(spark: Any, rows: str) -> list[tuple[int, int, bytes]]:
    from pyspark.sql import functions as sql

    df = spark.sql(rows)
    columns = [(sql.col(field.name), field.dataType) for field in df.schema.fields]
    first, second = hash_pair(columns)
    out = df.select(first.alias("first"), second.alias("second"), content_digest(columns).alias("content"))
    return [(one, two, bytes(content)) for one, two, content in map(tuple, out.collect())]


@pytest.mark.parametrize("columns", list(DIFFERENT))
def test_keys_that_differ_have_other_digests(spark: Any, columns: str) -> None:
    """Case 21: keys of any type; nulls and lengths count."""
    names = [f"c{number}" for number in range(columns.count(" | ") + 1)]
    types = zip(names, columns.split(" | "), strict=True)
    casts = ", ".join(f"cast({name} as {kind}) as {name}" for name, kind in types)
    values = " union all ".join(f"select {row}" for row in DIFFERENT[columns])
    found = digests(spark, f"select {casts} from ({values}) as t({', '.join(names)})")
    assert len(found) == len(DIFFERENT[columns])
    for one, other in combinations(found, 2):
        assert all(mine != theirs for mine, theirs in zip(one, other, strict=True))


def test_keys_that_are_equal_have_one_digest(spark: Any) -> None:
    left = digests(spark, "select " + ", ".join(f"{one} as c{n}" for n, (one, _) in enumerate(EQUAL)))
    right = digests(spark, "select " + ", ".join(f"{two} as c{n}" for n, (_, two) in enumerate(EQUAL)))
    assert left == right


def test_python_gives_the_digests_of_the_jvm(spark: Any) -> None:
    """A topic's consumer goes on where a Spark job left off."""
    table = pa.table(
        {
            "s": pa.array(["a", None, "ü" * 40]),
            "n": pa.array([1, None, -5], pa.int32()),
            "f": pa.array([-0.0, float("nan"), None], pa.float32()),
            "b": pa.array([b"", None, b"\x00"]),
            "t": pa.array([1, 2, None], pa.timestamp("us", tz="UTC")),
        }
    )
    first, second = digest_columns([plain_column(column)[0] for column in table.columns])
    spark.createDataFrame(table).createOrReplaceTempView("digested")
    found = digests(spark, "select * from digested order by t nulls last")
    assert [one for one, _, _ in found] == first.view("int64").tolist()
    assert [two for _, two, _ in found] == second.view("int64").tolist()


def test_a_type_that_is_no_key_is_named(spark: Any) -> None:
    with pytest.raises(UnsupportedKeyType, match="variant"):
        digests(spark, "select parse_json('1') as a")
