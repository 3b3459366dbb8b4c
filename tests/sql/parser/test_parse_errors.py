"""Mistakes: what the error says, where it points, and what it advises."""

from __future__ import annotations

import pytest

from tidegate.errors import SqlInvalid, SqlUnsupported
from tidegate.sql.parser.parse import parse

# The place of the mistake is marked with ^ in front of it.
MISTAKES = [
    ("^CREAT USER TABLE a.b (x INT)", "expected a statement but found 'CREAT'", "Did you mean CREATE?"),
    ("^FOO", "expected a statement but found 'FOO'", "Statements begin with "),
    ("^'a'", "expected a statement but found the string 'a'", "Statements begin with "),
    ("CREATE ^TABLE a.b (x INT)", "say which: USER, SHARED or STREAM", "everyone in the tenant sees it"),
    (
        "CREATE ^VIEW a.b",
        "expected NAMESPACE, USER, SHARED, STREAM, INDEX or TOPIC but found 'VIEW'",
        "Syntax: CREATE",
    ),
    ("CREATE ^SCHEMA a", "expected NAMESPACE but found 'SCHEMA'", "CREATE NAMESPACE [IF NOT EXISTS] name"),
    ("CREATE ^STREEM TABLE a.b (x INT)", "but found 'STREEM'", "Did you mean STREAM?"),
    ("CREATE USER ^TABEL a.b (x INT)", "expected TABLE but found 'TABEL'", "Did you mean TABLE?"),
    (
        "CREATE USER TABLE b ^(x INT)",
        "expected '.' and the name of the table but found '('",
        "such as chat.b",
    ),
    ("CREATE USER TABLE ^a.b.c (x INT)", "ends before '.', after 'b'", "there is no third part"),
    ("CREATE USER TABLE IF ^EXISTS a.b (x INT)", "expected NOT but found 'EXISTS'", "IF NOT EXISTS"),
    ("CREATE USER TABLE a.b^", "expected '(' but found the end of the text", "Syntax: CREATE USER"),
    (
        "CREATE USER TABLE a.b (x INT^",
        "expected ',' or ')' but found the end of the text",
        "Syntax: CREATE USER",
    ),
    (
        "CREATE USER TABLE a.b (x INT ^y TEXT)",
        "expected NOT, PRIMARY, DEFAULT, ',' or ')' but found 'y'",
        "Syntax",
    ),
    ("CREATE USER TABLE a.b (x INT,^)", "expected a column but found ')'", "Syntax: CREATE USER"),
    ("CREATE USER TABLE a.b (x ^BIGNT)", "expected a type but found 'BIGNT'", "Did you mean BIGINT?"),
    (
        "CREATE USER TABLE a.b (x ^GEOMETRY)",
        "expected a type but found 'GEOMETRY'",
        "Types are BOOLEAN, INT,",
    ),
    ("CREATE USER TABLE a.b (x^)", "expected a type but found ')'", "Types are BOOLEAN, INT,"),
    ("CREATE USER TABLE a.b (x DECIMAL^)", "expected the digits of DECIMAL but found ')'", "DECIMAL(10,2)"),
    (
        "CREATE USER TABLE a.b (x DECIMAL^(50,2))",
        "DECIMAL(50,2) needs a precision from 1 to 38",
        "DECIMAL(10,2)",
    ),
    ("CREATE USER TABLE a.b (x DECIMAL(^a))", "expected a number of digits but found 'a'", "DECIMAL(10,2)"),
    ("CREATE USER TABLE a.b (x INT, ^X TEXT)", "column 'x' is defined twice", "differ in more than case"),
    ("CREATE USER TABLE a.b (^order INT)", "expected a column but found 'order'", 'it is written "order"'),
    ('CREATE USER TABLE a.b (^"" INT)', "a name is empty", "between the two"),
    ("CREATE USER TABLE a.b (x INT PRIMARY ^KAY)", "expected KEY but found 'KAY'", "Did you mean KEY?"),
    (
        "CREATE USER TABLE a.b (x INT PRIMARY KEY, ^y INT PRIMARY KEY)",
        "there are two primary keys",
        "KEY (a, b)",
    ),
    (
        "CREATE USER TABLE a.b (x INT PRIMARY KEY, ^PRIMARY KEY (x))",
        "there are two primary keys",
        "KEY (a, b)",
    ),
    ("CREATE USER TABLE a.b (mood INT, PRIMARY KEY ^(mod))", "names 'mod', which is no column", "mean mood?"),
    ("CREATE USER TABLE a.b (x INT, PRIMARY KEY (x, ^x))", "column 'x' is named twice", "Name it once"),
    ("CREATE USER TABLE a.b (x INT DEFAULT ^PRIMARY KEY)", "expected a value but found 'PRIMARY'", "Syntax"),
    ("CREATE USER TABLE a.b (x INT DEFAULT ^?)", "a default cannot be a parameter", "Write the value"),
    ("CREATE USER TABLE a.b (x INT DEFAULT 1 ^DEFAULT 2)", "column 'x' has two defaults", "Syntax"),
    (
        "CREATE USER TABLE a.b (x INT) ^please",
        "expected the end of the statement but found 'please'",
        "Syntax",
    ),
    ("CREATE STREAM TABLE a.b (x INT) WITH (^ttl = 5)", "there is no option 'ttl'", "mean ttl_seconds?"),
    ("CREATE STREAM TABLE a.b (x INT) WITH (ttl_seconds ^5)", "expected '=' but found '5'", "Syntax"),
    ("CREATE STREAM TABLE a.b (x INT) WITH (durability = ^fsync)", "but found 'fsync'", "written in quotes"),
    ("ALTER TABLE a.b SET (^kind = 'USER')", "there is no option 'kind'", "Options: ttl_seconds, durability"),
    ("ALTER TABLE a.b SET ^ttl_seconds = 5", "expected '(' but found 'ttl_seconds'", "SET (ttl_seconds = n"),
    ("ALTER TABLE a.b ADD ^x INT PRIMARY KEY", "an added column cannot be the primary key", "Syntax: ALTER"),
    ("CREATE INDEX i ^a.b (x)", "expected ON but found 'a'", "Syntax: CREATE INDEX"),
    ("CREATE INDEX i ON a.b (x ^DESC)", "expected ',' or ')' but found 'DESC'", "Syntax: CREATE INDEX"),
    ("DROP ^a.b", "expected TABLE, NAMESPACE, INDEX, TOPIC or CONSUMER but found 'a'", "Syntax: DROP TABLE"),
    ("DROP ^STREAM TABLE a.b", "expected TABLE but found 'STREAM'", "The kind is not repeated"),
    ("SHOW ^TABELS", "TABLES, NAMESPACES, TOPICS or CONSUMER but found 'TABELS'", "Did you mean TABLES?"),
    ("INSERT ^a.b VALUES (1)", "expected INTO but found 'a'", "Syntax: INSERT|UPSERT INTO"),
    ("INSERT INTO a.b (x, ^x) VALUES (1, 2)", "column 'x' is named twice", "Name it once"),
    ("INSERT INTO a.b (x) ^(1)", "expected VALUES or SELECT but found '('", "Syntax: INSERT|UPSERT INTO"),
    (
        "INSERT INTO a.b (x) ^VALEUS (1)",
        "expected VALUES or SELECT but found 'VALEUS'",
        "Did you mean VALUES?",
    ),
    ("INSERT INTO a.b (x) VALUES (1 ^2)", "expected ',' or an operator but found '2'", "Syntax: INSERT"),
    (
        "INSERT INTO a.b (x) VALUES (^'a)",
        "the string that begins here is not closed",
        "written twice: 'it''s'",
    ),
    ("UPDATE a.b ^WHERE x = 1 SET y = 2", "expected SET but found 'WHERE'", "Syntax: UPDATE"),
    ("UPDATE a.b SET x ^1", "expected '=' but found '1'", "Syntax: UPDATE"),
    ("UPDATE a.b SET x = 1, ^WHERE y = 2", "expected a column but found 'WHERE'", "Syntax: UPDATE"),
    ("UPDATE a.b SET x = 1, ^x = 2", "column 'x' is set twice", "Syntax: UPDATE"),
    ("UPDATE a.b SET x = y ^FROM c", "end of the expression but found 'FROM'", "Syntax: UPDATE"),
    ("DELETE ^a.b WHERE x = 1", "expected FROM but found 'a'", "Syntax: DELETE FROM"),
    ("DELETE FROM a.b WHERE^", "expected a condition but found the end of the text", "Syntax: DELETE FROM"),
    ("DELETE FROM a.b WHERE (x = 1^", "expected ')' but found the end of the text", "line 1, column 23"),
    (
        "DELETE FROM a.b WHERE x = 1^)",
        "expected the end of the statement but found ')'",
        "Syntax: DELETE FROM",
    ),
    ("DELETE FROM a.b WHERE x = 1 ^ORDER BY y", "but found 'ORDER'", "Syntax: DELETE FROM"),
    ("SELECT (1^; SELECT 2", "expected ')' but found ';'", "The '(' is in line 1, column 8"),
    ("SELECT [1^)", "expected ']' but found ')'", "The '[' is in line 1, column 8"),
    (
        "EXECUTE AS ^alice (SELECT 1)",
        "expected a user's name in quotes but found 'alice'",
        "Syntax: EXECUTE AS",
    ),
    ("EXECUTE AS 'alice' ^SELECT 1", "expected '(' but found 'SELECT'", "Syntax: EXECUTE AS"),
    ("EXECUTE AS 'alice' (SELECT 1^", "expected ')' but found the end of the text", "Syntax: EXECUTE AS"),
    ("EXECUTE AS 'alice' (^DROP TABLE a.b)", "but found 'DROP'", "Syntax: EXECUTE AS"),
    (
        "EXPLAIN ^INSERT INTO a.b VALUES (1)",
        "expected SELECT, UPDATE or DELETE but found 'INSERT'",
        "EXPLAIN shows",
    ),
    ("SELECT ?, ^$1", "? and $1 cannot both be used in a statement", "Use one of the two"),
    ("SELECT $1, ^$3", "$3 is used, but not $2", "without gaps"),
    ("SELECT '^\ud800'", "a character that is not Unicode text", "surrogate"),
]
UNSUPPORTED = [
    ("CREATE USER TABLE a.b (x ^FILE)", "FILE columns are not supported", "its content as BYTES"),
    ("CREATE USER TABLE a.b (x VARCHAR^(10))", "VARCHAR has no length", "Write TEXT"),
    ("CREATE USER TABLE a.b (x INT^[])", "Columns of arrays are not supported", "JSON"),
    ("CREATE USER TABLE a.b (x ^STRUCT(a INT))", "Nested types are not supported", "JSON"),
    ("CREATE USER TABLE a.b (x ^SERIAL)", "There are no counters", "SNOWFLAKE_ID()"),
    ("CREATE USER TABLE a.b (x INT ^UNIQUE)", "UNIQUE is not supported on a column", "Syntax"),
    ("CREATE USER TABLE a.b (x INT, ^CHECK (x > 1))", "CHECK is not supported", "only constraint"),
    ("CREATE USER TABLE a.b ^AS SELECT 1", "CREATE TABLE AS is not supported", "INSERT INTO … SELECT"),
    ("CREATE ^OR REPLACE USER TABLE a.b (x INT)", "OR REPLACE is not supported", "IF NOT EXISTS"),
    ("CREATE ^UNIQUE INDEX i ON a.b (x)", "Unique indexes are not supported", "primary key"),
    ("ALTER TABLE a.b ^DROP COLUMN x", "ALTER TABLE … DROP is not supported", "only added"),
    ("INSERT ^OR REPLACE INTO a.b VALUES (1)", "INSERT OR … is not supported", "UPSERT"),
    ("INSERT INTO a.b VALUES (1) ^ON CONFLICT DO NOTHING", "ON CONFLICT is not supported", "UPSERT"),
    ("INSERT INTO a.b VALUES (1) ^RETURNING x", "RETURNING is not supported", "SELECT"),
    ("INSERT INTO a.b ^DEFAULT VALUES", "DEFAULT VALUES is not supported", "VALUES (DEFAULT)"),
    ("UPDATE a.b SET x = ^DEFAULT", "SET column = DEFAULT is not supported", "Write the value"),
    ("UPDATE a.b SET x = 1 WHERE y = 2 ^RETURNING x", "RETURNING is not supported", "SELECT"),
    ("DELETE FROM a.b ^USING c WHERE x = 1", "DELETE … USING is not supported", "IN (SELECT"),
    ("EXPLAIN ^ANALYZE SELECT 1", "EXPLAIN ANALYZE is not supported", "EXPLAIN shows"),
    ("^BEGIN", "BEGIN is not supported", "transaction by itself"),
    ("^TRUNCATE a.b", "TRUNCATE is not supported", "DELETE FROM"),
    ("^COPY a.b TO 'x'", "COPY is not supported", "Arrow"),
    ("^PRAGMA x", "PRAGMA is not supported", "not reached"),
]


def place_of(marked: str) -> tuple[str, int]:
    before, after = marked.split("^")
    return before + after, len(before) + 1


@pytest.mark.parametrize(("marked", "reason", "hint"), MISTAKES)
def test_a_mistake_is_named_where_it_is(marked: str, reason: str, hint: str) -> None:
    text, column = place_of(marked)
    with pytest.raises(SqlInvalid) as caught:
        parse(text)
    error = caught.value
    assert reason in error.message
    assert error.message.endswith(f"(line 1, column {column}).")
    assert (error.values["line"], error.values["column"], error.values["statement"]) == (1, column, 1)
    assert hint in error.hint


@pytest.mark.parametrize(("marked", "reason", "hint"), UNSUPPORTED)
def test_what_is_not_supported_is_named_with_the_way_out(marked: str, reason: str, hint: str) -> None:
    text, column = place_of(marked)
    with pytest.raises(SqlUnsupported) as caught:
        parse(text)
    error = caught.value
    assert reason in error.message
    assert (error.values["line"], error.values["column"], error.values["statement"]) == (1, column, 1)
    assert hint in error.hint


def test_a_mistake_in_a_script_names_its_statement_and_line() -> None:
    with pytest.raises(SqlInvalid) as caught:
        parse("SELECT 1;\n\n-- second\nDELETE FROM a.b;\n  UPDATE a.b WHERE x = 1;\nSELECT 2")
    assert "but found 'WHERE' (line 5, column 14, statement 3)." in caught.value.message
    assert {key: caught.value.values[key] for key in ("line", "column", "statement")} == {
        "line": 5,
        "column": 14,
        "statement": 3,
    }


def test_the_nearest_statements_come_first() -> None:
    with pytest.raises(SqlInvalid) as caught:
        parse("UPSET INTO a.b VALUES (1)")
    assert caught.value.hint.startswith("Did you mean UPSERT? Statements begin with UPSERT, ")


def test_a_long_token_is_shortened() -> None:
    with pytest.raises(SqlInvalid) as caught:
        parse("SHOW " + "x" * 10_000)
    assert len(caught.value.message) < 300
