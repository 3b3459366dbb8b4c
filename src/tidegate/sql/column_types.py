"""Types of columns as statements write them: takes tokens, gives a ColumnType."""

from __future__ import annotations

from difflib import get_close_matches

from tidegate.errors import SchemaInvalid, SqlInvalid
from tidegate.model.schemas import ColumnType
from tidegate.sql.cursor import Cursor
from tidegate.sql.tokens import NUMBER, WORD

TYPES = {
    "BOOLEAN": ColumnType.BOOLEAN,
    "INT": ColumnType.INT,
    "BIGINT": ColumnType.BIGINT,
    "DOUBLE": ColumnType.DOUBLE,
    "TEXT": ColumnType.TEXT,
    "BYTES": ColumnType.BYTES,
    "JSON": ColumnType.JSON,
    "UUID": ColumnType.UUID,
    "DATE": ColumnType.DATE,
    "TIMESTAMP": ColumnType.TIMESTAMP,
}
# Names of other databases for types that hold no more than ours.
ALIASES = {
    **dict.fromkeys(("BOOL", "LOGICAL"), ColumnType.BOOLEAN),
    **dict.fromkeys(("INTEGER", "INT4", "SIGNED", "SMALLINT", "INT2", "TINYINT", "SHORT"), ColumnType.INT),
    **dict.fromkeys(("INT8", "LONG"), ColumnType.BIGINT),
    **dict.fromkeys(("REAL", "FLOAT", "FLOAT4", "FLOAT8"), ColumnType.DOUBLE),
    **dict.fromkeys(("VARCHAR", "STRING", "CHAR", "BPCHAR"), ColumnType.TEXT),
    **dict.fromkeys(("BLOB", "BYTEA", "BINARY", "VARBINARY"), ColumnType.BYTES),
    **dict.fromkeys(("TIMESTAMPTZ", "DATETIME"), ColumnType.TIMESTAMP),
    "JSONB": ColumnType.JSON,
}
DECIMALS = ("DECIMAL", "NUMERIC", "DEC")
ALL_TYPES = "BOOLEAN, INT, BIGINT, DOUBLE, DECIMAL(p,s), TEXT, BYTES, JSON, UUID, DATE or TIMESTAMP"

_LISTED = f"Types are {ALL_TYPES}."
_NESTED = "Keep it as JSON."
_REFUSED = {
    "FILE": (
        "FILE columns are not supported: a row lives in the database, and files do not.",
        "Store the file elsewhere and its address as TEXT, or its content as BYTES where it is small.",
    ),
    **dict.fromkeys(
        ("SERIAL", "BIGSERIAL", "SMALLSERIAL", "AUTOINCREMENT"),
        ("There are no counters.", "Write BIGINT DEFAULT SNOWFLAKE_ID(), or UUID DEFAULT UUID_V7()."),
    ),
    **dict.fromkeys(
        ("STRUCT", "MAP", "LIST", "ARRAY", "UNION", "ROW", "VARIANT"),
        ("Nested types are not supported.", _NESTED),
    ),
    **dict.fromkeys(
        ("TIME", "TIMETZ", "INTERVAL"), ("Times of day and intervals are not supported.", "Keep it as TEXT.")
    ),
    **dict.fromkeys(
        ("HUGEINT", "UBIGINT", "UHUGEINT", "UINTEGER", "USMALLINT", "UTINYINT"),
        ("Unsigned and 128-bit integers are not supported.", "Use BIGINT, or DECIMAL(38,0)."),
    ),
    **dict.fromkeys(("ENUM",), ("ENUM is not supported.", "Use TEXT.")),
}


def column_type(cursor: Cursor) -> ColumnType:
    """Step over a type and give it; SqlInvalid or SqlUnsupported says what to write instead."""
    token = cursor.token
    word = token.key
    if token.kind != WORD:
        raise cursor.expected("a type", hint=_LISTED)
    if word in _REFUSED:
        raise cursor.unsupported(*_REFUSED[word])
    if word not in TYPES and word not in ALIASES and word not in DECIMALS:
        raise _unknown(cursor)
    cursor.advance()
    kind = _decimal(cursor, word) if word in DECIMALS else TYPES.get(word) or ALIASES[word]
    if word == "DOUBLE":
        cursor.take("PRECISION")
    if word == "TIMESTAMP" and cursor.take("WITH", "WITHOUT"):
        for expected in ("TIME", "ZONE"):
            cursor.expect(expected)
    if cursor.is_at("("):
        reason = f"{word} has no length or precision."
        raise cursor.unsupported(reason, f"Write {kind}; check lengths before you insert.")
    if cursor.is_at("[", "ARRAY"):
        raise cursor.unsupported("Columns of arrays are not supported.", _NESTED)
    return kind


def _decimal(cursor: Cursor, word: str) -> ColumnType:
    """Step over (precision, scale)."""
    position = cursor.token.start
    if not cursor.take("("):
        raise cursor.expected(f"the digits of {word}", hint="Write them, such as DECIMAL(10,2).")
    precision = _digits(cursor)
    scale = _digits(cursor) if cursor.expect(",", ")") == "," else None
    if scale is not None:
        cursor.expect(")")
    try:
        return ColumnType.decimal(precision, scale or 0)
    except SchemaInvalid as problem:
        reason = str(problem.values["reason"])
        raise cursor.error(reason, position, "Write it like DECIMAL(10,2).") from problem


def _digits(cursor: Cursor) -> int:
    token = cursor.token
    text = cursor.text[token.start : token.stop]
    if token.kind != NUMBER or not text.isdigit() or len(text) > 4:
        raise cursor.expected("a number of digits", hint="Write it like DECIMAL(10,2).")
    cursor.advance()
    return int(text)


def _unknown(cursor: Cursor) -> SqlInvalid:
    near = get_close_matches(cursor.token.key, [*TYPES, *ALIASES, *DECIMALS], n=1)
    return cursor.expected("a type", hint=f"Did you mean {near[0]}? {_LISTED}" if near else _LISTED)
