"""DDL of outputs and inputs is read as Spark reads it: the same types, or a refusal."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.errors import SchemaInvalid
from tidegate.state.arrow.ddl import schema_of_ddl

PLAIN = ["boolean", "tinyint", "byte", "smallint", "short", "int", "INTEGER", "bigint", "long", "float"]
PLAIN += ["real", "double", "string", "binary", "date", "timestamp", "timestamp_ltz", "timestamp_ntz"]
PLAIN += ["decimal", "dec", "numeric(4)", "Decimal ( 38, 18 )", "decimal(5,5)"]
# What is wrong is mixed in, so that refusals are compared, too.
WRONG = [
    "strin",
    "decimal(39, 1)",
    "decimal(3, 4)",
    "decimal(5, 2, 1)",
    "int(3)",
    "map<int>",
    "array<int",
    "text",
]

names = st.sampled_from(["a", "B", "value", "`odd name`", "`x``y`", "`,<`", "c_1", "timestamp"])
comments = st.sampled_from(["", "", " comment 'how, <many>'", " NOT NULL", " not null comment 'it\\'s'"])


def columns(types: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return lists of columns, each name once."""
    column = st.tuples(names, st.sampled_from([" ", ": ", " : "]), types, comments)
    listed = st.lists(column, min_size=1, max_size=4, unique_by=lambda one: one[0].lower())
    return listed.map(lambda found: ", ".join(map("".join, found)))


types = st.recursive(
    st.sampled_from(PLAIN) | st.sampled_from(PLAIN) | st.sampled_from([*PLAIN, *WRONG]),
    lambda inner: (
        inner.map("array<{}>".format)
        | inner.map("map<string, {}>".format)
        | columns(inner).map("struct<{}>".format)
    ),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(columns(types))
def test_ddl_means_what_it_means_to_spark(spark: Any, ddl: str) -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    assert spark is not None  # the parser of Spark needs its session
    try:
        theirs = StructType.fromDDL(ddl)
    except PySparkException:
        theirs = None
    try:
        ours = from_arrow_schema(schema_of_ddl(ddl))
    except SchemaInvalid:
        ours = None
    assert (ours is None) == (theirs is None), (ours, theirs)
    if ours is not None and theirs is not None:
        assert ours.simpleString() == theirs.simpleString()
        assert [(one.name, one.nullable) for one in ours] == [(one.name, one.nullable) for one in theirs]
