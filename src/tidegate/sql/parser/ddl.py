"""The grammar of CREATE, ALTER and DROP for namespaces, tables and indexes, and of column types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from difflib import get_close_matches

from tidegate.errors import SchemaInvalid, SqlInvalid
from tidegate.model.names import shorten
from tidegate.model.schemas import COLUMNS_MAX, ColumnType
from tidegate.model.tables import TableKind
from tidegate.sql.parser.cursor import TokenCursor
from tidegate.sql.parser.fragments import expression, fragment_of, simple_of
from tidegate.sql.parser.lexer import NUMBER, STRING, WORD
from tidegate.sql.parser.topics import alter_topic, create_topic, drop_group, drop_topic
from tidegate.sql.statements import (
    AlterAddColumn,
    AlterSet,
    ColumnSpec,
    CreateIndex,
    CreateNamespace,
    CreateTable,
    DropIndex,
    DropNamespace,
    DropTable,
    Fragment,
    Literal,
    Option,
    Statement,
)

OPTIONS = ("ttl_seconds", "durability")
INDEX_COLUMNS_MAX = 16  # a longer index repeats the table

CREATE_SYNTAX = (
    "Syntax: CREATE NAMESPACE …, CREATE USER|SHARED|STREAM TABLE …, CREATE INDEX … or CREATE TOPIC …"
)
CREATE_NAMESPACE_SYNTAX = "Syntax: CREATE NAMESPACE [IF NOT EXISTS] name"
CREATE_TABLE_SYNTAX = (
    "Syntax: CREATE USER|SHARED|STREAM TABLE [IF NOT EXISTS] namespace.table (column TYPE [NOT NULL] "
    "[PRIMARY KEY] [DEFAULT value], … [, PRIMARY KEY (column, …)]) [WITH (ttl_seconds = n, durability = '…')]"
)
CREATE_INDEX_SYNTAX = "Syntax: CREATE INDEX [IF NOT EXISTS] name ON namespace.table (column, …)"
ALTER_SYNTAX = (
    "Syntax: ALTER TABLE namespace.table ADD COLUMN [IF NOT EXISTS] column TYPE [NOT NULL] [DEFAULT value], "
    "or ALTER TABLE namespace.table SET (ttl_seconds = n, durability = '…'). Topics: ALTER TOPIC topic …"
)
DROP_SYNTAX = (
    "Syntax: DROP TABLE [IF EXISTS] namespace.table, DROP NAMESPACE [IF EXISTS] name, "
    "DROP INDEX [IF EXISTS] name ON namespace.table, DROP TOPIC [IF EXISTS] topic, "
    "or DROP CONSUMER GROUP 'group' ON topic"
)
_KINDS = ("USER", "SHARED", "STREAM")
WHICH_KIND = (
    "CREATE USER TABLE: a row belongs to the user who wrote it. CREATE SHARED TABLE: everyone in the tenant "
    "sees it. CREATE STREAM TABLE: it belongs to its user, and goes after ttl_seconds."
)
_REFUSED_ON_COLUMNS = frozenset({"UNIQUE", "CHECK", "REFERENCES", "COLLATE", "GENERATED", "CONSTRAINT", "AS"})
# What ends the value behind DEFAULT.
_DEFAULT_STOPS = _REFUSED_ON_COLUMNS | {",", "NOT", "NULL", "PRIMARY", "DEFAULT"}
_REFUSED_CHANGES = ("DROP", "RENAME", "ALTER", "MODIFY", "CHANGE")


def create(cursor: TokenCursor) -> Statement:
    """Parse what follows CREATE."""
    cursor.syntax = CREATE_SYNTAX
    if cursor.is_at("OR"):
        raise cursor.unsupported("OR REPLACE is not supported.", "DROP TABLE first, or write IF NOT EXISTS.")
    if cursor.is_at("UNIQUE"):
        raise cursor.unsupported("Unique indexes are not supported.", "The primary key is unique.")
    if cursor.is_at("SCHEMA", "DATABASE"):
        raise cursor.expected(
            ["NAMESPACE"], hint=f"A namespace is what you look for. {CREATE_NAMESPACE_SYNTAX}"
        )
    if cursor.is_at("TABLE"):
        raise cursor.error("say which: USER, SHARED or STREAM", cursor.token.start, WHICH_KIND)
    word = cursor.expect("NAMESPACE", *_KINDS, "INDEX", "TOPIC")
    if word == "TOPIC":
        return create_topic(cursor)
    if word == "NAMESPACE":
        return _create_namespace(cursor)
    if word == "INDEX":
        return _create_index(cursor)
    return _create_table(cursor, TableKind(word))


def _create_namespace(cursor: TokenCursor) -> CreateNamespace:
    cursor.syntax = CREATE_NAMESPACE_SYNTAX
    is_soft = cursor.condition("NOT", "EXISTS")
    return CreateNamespace(cursor.name("the name of a namespace"), is_soft)


def _create_index(cursor: TokenCursor) -> CreateIndex:
    cursor.syntax = CREATE_INDEX_SYNTAX
    is_soft = cursor.condition("NOT", "EXISTS")
    name = cursor.name("the name of an index")
    cursor.expect("ON")
    table = cursor.table()
    columns = cursor.names("a column", limit=INDEX_COLUMNS_MAX)
    return CreateIndex(name, table, columns, is_soft)


def _create_table(cursor: TokenCursor, kind: TableKind) -> CreateTable:
    cursor.syntax = CREATE_TABLE_SYNTAX
    cursor.expect("TABLE")
    is_soft = cursor.condition("NOT", "EXISTS")
    table = cursor.table()
    if cursor.is_at("AS"):
        hint = "Create the table with its columns, then INSERT INTO … SELECT …."
        raise cursor.unsupported("CREATE TABLE AS is not supported.", hint)
    columns, primary_key = _table_body(cursor)
    options: Mapping[str, Option] = {}
    if cursor.take("WITH"):
        options = cursor.options(_OPTION_READERS)
    return CreateTable(table, kind, is_soft, columns, primary_key, options)


def _table_body(cursor: TokenCursor) -> tuple[tuple[ColumnSpec, ...], tuple[str, ...]]:
    """Consume the columns and constraints in parentheses; return the columns and the primary key."""
    columns: dict[str, ColumnSpec] = {}
    primary_key: tuple[str, ...] = ()
    cursor.expect("(")
    while True:
        start = cursor.token
        if cursor.is_at("CONSTRAINT", "UNIQUE", "CHECK", "FOREIGN"):
            raise cursor.unsupported(
                f"{start.key} is not supported.", "PRIMARY KEY (…) is the only constraint."
            )
        if cursor.take("PRIMARY"):
            cursor.expect("KEY")
            key = _key_of(cursor, columns)
        else:
            column, is_key = _column(cursor)
            key = (column.name,) if is_key else ()
            if column.name.lower() in {name.lower() for name in columns}:
                reason = f"column '{shorten(column.name)}' is defined twice"
                raise cursor.error(
                    reason, column.position, "The columns of a table differ in more than case."
                )
            columns[column.name] = column
        if key and primary_key:
            hint = "For a key of several columns write PRIMARY KEY (a, b) behind the columns."
            raise cursor.error("there are two primary keys", start.start, hint)
        primary_key = primary_key or key
        if len(columns) > COLUMNS_MAX:
            raise cursor.error(f"there are more than {COLUMNS_MAX} columns", start.start)
        if cursor.expect(",", ")") == ")":
            break
    specs = (replace(spec, required=True) if name in primary_key else spec for name, spec in columns.items())
    return tuple(specs), primary_key


def _key_of(cursor: TokenCursor, columns: Mapping[str, ColumnSpec]) -> tuple[str, ...]:
    position = cursor.token.start
    key = cursor.names("a column", limit=COLUMNS_MAX)
    for name in key:
        if name not in columns:
            near = get_close_matches(name, columns, n=1)
            hint = f"Did you mean {near[0]}?" if near else "Define the columns before the PRIMARY KEY."
            raise cursor.error(f"the primary key names '{shorten(name)}', which is no column", position, hint)
    return key


def _column(cursor: TokenCursor) -> tuple[ColumnSpec, bool]:
    """Consume a column's definition; return it, and whether it says PRIMARY KEY."""
    position = cursor.token.start
    name = cursor.name("a column")
    kind = column_type(cursor)
    required, is_key, default = False, False, None
    while cursor.token.kind == WORD:
        token = cursor.token
        if cursor.take("NOT"):
            cursor.expect("NULL")
            required = True
        elif cursor.take("NULL"):
            continue
        elif cursor.take("PRIMARY"):
            cursor.expect("KEY")
            is_key = required = True
        elif cursor.take("DEFAULT"):
            if default is not None:
                raise cursor.error(f"column '{shorten(name)}' has two defaults", token.start)
            default = _default(cursor)
        elif token.key in _REFUSED_ON_COLUMNS:
            raise cursor.unsupported(f"{token.key} is not supported on a column.", CREATE_TABLE_SYNTAX)
        else:
            raise cursor.expected(["NOT", "PRIMARY", "DEFAULT", ",", ")"])
    return ColumnSpec(name, kind, required, default, position), is_key


def _default(cursor: TokenCursor) -> Fragment:
    if cursor.is_at("NOT", "PRIMARY", "DEFAULT"):
        raise cursor.expected("a value")
    if cursor.is_at("NULL"):
        return fragment_of(cursor, [cursor.advance()])
    fragment = expression(cursor, "a value", _DEFAULT_STOPS)
    if fragment.params:
        raise cursor.error("a default cannot be a parameter", fragment.position, "Write the value.")
    return fragment


def _option_value(cursor: TokenCursor, _name: str) -> Option:
    tokens = [cursor.token]
    if cursor.is_at("+", "-"):
        cursor.advance()
        tokens.append(cursor.token)
    if tokens[-1].kind in (NUMBER, STRING) or tokens[-1].key in ("TRUE", "FALSE"):
        cursor.advance()
        simple = simple_of(cursor, tokens)
        if isinstance(simple, Literal) and isinstance(simple.value, bool | int | float | str | Decimal):
            return float(simple.value) if isinstance(simple.value, Decimal) else simple.value
        raise cursor.error("this is no value of an option", tokens[0].start)
    hint = "Texts are written in quotes: durability = 'buffered'." if tokens[-1].kind == WORD else None
    raise cursor.expected("a number, a string, TRUE or FALSE", hint=hint)


_OPTION_READERS = dict.fromkeys(OPTIONS, _option_value)


def alter(cursor: TokenCursor) -> Statement:
    """Parse what follows ALTER."""
    cursor.syntax = ALTER_SYNTAX
    if cursor.expect("TABLE", "TOPIC") == "TOPIC":
        return alter_topic(cursor)
    table = cursor.table()
    if cursor.is_at(*_REFUSED_CHANGES):
        hint = "Columns are only added. To change one, make another table and INSERT INTO … SELECT …."
        raise cursor.unsupported(f"ALTER TABLE … {cursor.token.key} is not supported.", hint)
    if cursor.expect("ADD", "SET") == "SET":
        if cursor.is_at("("):
            return AlterSet(table, cursor.options(_OPTION_READERS))
        raise cursor.expected(["("])
    cursor.take("COLUMN")
    is_soft = cursor.condition("NOT", "EXISTS")
    position = cursor.token.start
    column, is_key = _column(cursor)
    if is_key:
        raise cursor.error("an added column cannot be the primary key", position)
    return AlterAddColumn(table, column, is_soft)


def drop(cursor: TokenCursor) -> Statement:
    """Parse what follows DROP."""
    cursor.syntax = DROP_SYNTAX
    if cursor.is_at(*_KINDS):
        raise cursor.expected(["TABLE"], hint=f"The kind is not repeated. {DROP_SYNTAX}")
    word = cursor.expect("TABLE", "NAMESPACE", "INDEX", "TOPIC", "CONSUMER")
    if word == "TOPIC":
        return drop_topic(cursor)
    if word == "CONSUMER":
        return drop_group(cursor)
    is_soft = cursor.condition("EXISTS")
    if word == "NAMESPACE":
        return DropNamespace(cursor.name("the name of a namespace"), is_soft)
    if word == "TABLE":
        return DropTable(cursor.table(), is_soft)
    name = cursor.name("the name of an index")
    cursor.expect("ON")
    return DropIndex(name, cursor.table(), is_soft)


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
# Type names of other databases that hold no more values than these types.
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


def column_type(cursor: TokenCursor) -> ColumnType:
    """Consume a type and return it; SqlInvalid or SqlUnsupported says what to write instead."""
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


def _decimal(cursor: TokenCursor, word: str) -> ColumnType:
    """Consume (precision, scale)."""
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


def _digits(cursor: TokenCursor) -> int:
    token = cursor.token
    text = cursor.text[token.start : token.stop]
    if token.kind != NUMBER or not text.isdigit() or len(text) > 4:
        raise cursor.expected("a number of digits", hint="Write it like DECIMAL(10,2).")
    cursor.advance()
    return int(text)


def _unknown(cursor: TokenCursor) -> SqlInvalid:
    near = get_close_matches(cursor.token.key, [*TYPES, *ALIASES, *DECIMALS], n=1)
    return cursor.expected("a type", hint=f"Did you mean {near[0]}? {_LISTED}" if near else _LISTED)
