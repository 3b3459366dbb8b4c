"""Statements: each is read as what it says, however it is spaced, commented, quoted and capitalised."""

from __future__ import annotations

import random
import re
from decimal import Decimal

import pytest

from tests.paths import ROOT
from tests.sql.fuzz import VALID, bare, tokens_of
from tidegate.errors import SqlInvalid
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import DefaultKind, TableKind
from tidegate.sql.parser.lexer import TEXT_CHARS_MAX, WORD
from tidegate.sql.parser.parse import STATEMENTS_MAX, parse
from tidegate.sql.statements import (
    AlterAddColumn,
    AlterSet,
    CreateIndex,
    CreateNamespace,
    CreateTable,
    Delete,
    DescribeTable,
    DropIndex,
    DropNamespace,
    DropTable,
    ExecuteAs,
    Explain,
    FunctionCall,
    Insert,
    Literal,
    Param,
    Select,
    ShowNamespaces,
    ShowTables,
    Statement,
    TableName,
    TopicStatement,
    Update,
)

T = TableName("chat", "t")


def one(text: str) -> Statement:
    (statement,) = parse(text)
    return statement


def table(body: str, kind: str = "USER") -> CreateTable:
    statement = one(f"CREATE {kind} TABLE chat.t {body}")
    assert isinstance(statement, CreateTable)
    return statement


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CREATE NAMESPACE chat", CreateNamespace("chat", False)),
        ("CREATE NAMESPACE IF NOT EXISTS Chat", CreateNamespace("chat", True)),
        ("DROP NAMESPACE chat", DropNamespace("chat", False)),
        ("DROP NAMESPACE IF EXISTS chat", DropNamespace("chat", True)),
        ("DROP TABLE chat.t", DropTable(T, False)),
        ('DROP TABLE IF EXISTS CHAT."t"', DropTable(T, True)),
        ('DROP TABLE "Chat"."a ""b"""', DropTable(TableName("Chat", 'a "b"'), False)),
        ("ALTER TABLE chat.t SET (ttl_seconds = 120)", AlterSet(T, {"ttl_seconds": 120})),
        ('CREATE INDEX i ON chat.t (a, "B")', CreateIndex("i", T, ("a", "B"), False)),
        ("ALTER TABLE chat.t SET (durability = 'fsync')", AlterSet(T, {"durability": "fsync"})),
        ("CREATE INDEX IF NOT EXISTS i ON chat.t (a)", CreateIndex("i", T, ("a",), True)),
        ("DROP INDEX i ON chat.t", DropIndex("i", T, False)),
        ("DROP INDEX IF EXISTS i ON chat.t", DropIndex("i", T, True)),
        ("SHOW TABLES", ShowTables(None)),
        ("SHOW TABLES IN chat", ShowTables("chat")),
        ("SHOW TABLES FROM chat", ShowTables("chat")),
        ("SHOW NAMESPACES", ShowNamespaces()),
        ("DESCRIBE chat.t", DescribeTable(T)),
        ("DESCRIBE TABLE chat.t", DescribeTable(T)),
        ("DESC chat.t", DescribeTable(T)),
        ("DESCRIBE lake.order", DescribeTable(TableName("lake", "order"))),
        ("DELETE FROM chat.t", Delete(T, None)),
        ("INSERT INTO chat.t", Insert(T, None, None, None, None, False)),
        ("UPSERT INTO chat.t (a, b)", Insert(T, ("a", "b"), None, None, None, True)),
        (
            "INSERT INTO chat.t (a) VALUES (?)",
            Insert(T, ("a",), ((Param(1),),), None, None, False, parameter_count=1),
        ),
    ],
)
def test_a_statement_is_read(text: str, expected: Statement) -> None:
    statement = one(text)
    assert bare(statement) == bare(expected)
    assert (statement.text, statement.position) == (text, 0)


def test_a_table_of_every_type_is_read() -> None:
    statement = table(
        "(a BOOLEAN, b INT, c BIGINT, d DOUBLE, e DECIMAL(10, 2), f TEXT, g BYTES, h JSON, i UUID, j DATE, "
        "k TIMESTAMP, l DECIMAL(5))"
    )
    assert statement.kind == TableKind.USER
    assert [str(column.type) for column in statement.columns] == [
        *("BOOLEAN", "INT", "BIGINT", "DOUBLE", "DECIMAL(10,2)", "TEXT", "BYTES", "JSON", "UUID", "DATE"),
        *("TIMESTAMP", "DECIMAL(5,0)"),
    ]
    assert statement.primary_key == ()
    assert not any(column.required for column in statement.columns)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        *(("VARCHAR", "TEXT"), ("String", "TEXT"), ("BLOB", "BYTES"), ("INT8", "BIGINT"), ("LONG", "BIGINT")),
        *(("REAL", "DOUBLE"), ("FLOAT", "DOUBLE"), ("TIMESTAMPTZ", "TIMESTAMP"), ("BOOL", "BOOLEAN")),
        *(("NUMERIC(4,1)", "DECIMAL(4,1)"), ("INTEGER", "INT"), ("DOUBLE PRECISION", "DOUBLE")),
        *(("TIMESTAMP WITH TIME ZONE", "TIMESTAMP"), ("TIMESTAMP WITHOUT TIME ZONE", "TIMESTAMP")),
    ],
)
def test_names_of_other_databases_are_taken(alias: str, name: str) -> None:
    (column,) = table(f"(a {alias})").columns
    assert str(column.type) == name


def test_columns_say_whether_they_are_required_and_what_their_default_is() -> None:
    statement = table(
        "(id BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID(), text TEXT NOT NULL, at TIMESTAMP DEFAULT NOW(), "
        "\"Mood\" TEXT NULL DEFAULT 'calm' NOT NULL, n INT DEFAULT (1 + 1), m INT DEFAULT NULL, "
        "x DECIMAL(3,1) DEFAULT -1.5)"
    )
    shape = {c.name: (c.required, c.default and c.default.sql) for c in statement.columns}
    assert shape == {
        "id": (True, "SNOWFLAKE_ID()"),
        "text": (True, None),
        "at": (False, "NOW()"),
        "Mood": (True, "'calm'"),
        "n": (False, "(1 + 1)"),
        "m": (False, "NULL"),
        "x": (False, "-1.5"),
    }
    assert [c.default and c.default.simple for c in statement.columns] == [
        FunctionCall(DefaultKind.SNOWFLAKE_ID),
        None,
        FunctionCall(DefaultKind.NOW),
        Literal("calm"),
        None,
        Literal(None),
        Literal(Decimal("-1.5")),
    ]
    assert statement.primary_key == ("id",)


def test_a_key_of_several_columns_makes_them_required() -> None:
    statement = table("(a INT, b TEXT, c INT, PRIMARY KEY (c, a))", "SHARED")
    assert statement.primary_key == ("c", "a")
    assert [column.required for column in statement.columns] == [True, False, True]
    assert statement.kind == TableKind.SHARED


def test_options_are_read() -> None:
    statement = table("(a INT) WITH (ttl_seconds = 60, durability = 'fsync')", "STREAM")
    assert statement.options == {"ttl_seconds": 60, "durability": "fsync"}
    assert table("(a INT) WITH (TTL_SECONDS = -1.5)").options == {"ttl_seconds": -1.5}
    assert table("(a INT)").options == {}


def test_a_column_is_added() -> None:
    statement = one("ALTER TABLE chat.t ADD COLUMN IF NOT EXISTS mood TEXT NOT NULL DEFAULT 'calm'")
    assert isinstance(statement, AlterAddColumn)
    assert (statement.table, statement.if_not_exists) == (T, True)
    assert (statement.column.name, statement.column.type) == ("mood", ColumnType.TEXT)
    short = one("ALTER TABLE chat.t ADD mood TEXT")
    assert isinstance(short, AlterAddColumn)
    assert not short.if_not_exists


def test_rows_come_from_a_query() -> None:
    for text in (
        "SELECT a FROM x.y WHERE b = ?",
        "(SELECT a FROM x.y WHERE b = ?)",
        "WITH c AS (FROM x.y) FROM c",
    ):
        for columns in ("", " (a, b)"):
            statement = one(f"INSERT INTO chat.t{columns} {text}")
            assert isinstance(statement, Insert)
            assert statement.query is not None
            assert statement.query.sql == text.replace("?", "$1")
            assert statement.columns == (("a", "b") if columns else None)
            assert statement.rows is None
            assert statement.fragments is None


def test_an_update_is_read() -> None:
    statement = one("UPDATE chat.t SET a = ?, \"B\" = upper(b) || 'x, y', at = at WHERE id = ? AND c = 'x'")
    assert isinstance(statement, Update)
    assert [(name, part.sql, part.simple) for name, part in statement.assignments] == [
        ("a", "$1", Param(1)),
        ("B", "upper(b) || 'x, y'", None),
        ("at", '"at"', None),
    ]
    assert statement.where is not None
    assert statement.where.fragment.sql == "id = $2 AND c = 'x'"
    assert statement.where.equals == {"id": Param(2), "c": Literal("x")}
    assert statement.parameter_count == 2


@pytest.mark.parametrize(
    ("condition", "equals"),
    [
        ("id = 1", {"id": Literal(1)}),
        ("id = 1 AND id = 1", None),
        ("id = 1 OR id = 2", None),
        ("id IN (1, 2)", None),
        ("id = NULL", None),
        ("id IS NULL", None),
        ("a = b", None),
        ("a BETWEEN 1 AND 2", None),
        ("a = 1 AND b BETWEEN 1 AND 2", None),
        ("a IS NOT DISTINCT FROM 1", None),
        ("a = (SELECT max(a) FROM x.y WHERE a = 1)", None),
    ],
)
def test_a_condition_of_equalities_alone_is_recognised(condition: str, equals: object) -> None:
    statement = one(f"DELETE FROM chat.t WHERE {condition}")
    assert isinstance(statement, Delete)
    assert statement.where is not None
    assert statement.where.equals == equals
    assert statement.where.fragment.sql == condition


@pytest.mark.parametrize(
    ("inner", "kind"),
    [
        ("SELECT * FROM chat.t LAST ?", Select),
        ("INSERT INTO chat.t VALUES (?)", Insert),
        ("INSERT INTO chat.t (a) SELECT ?", Insert),
        ("UPSERT INTO chat.t (a)", Insert),
        ("UPDATE chat.t SET a = (?)", Update),
        ("DELETE FROM chat.t WHERE (a = ?)", Delete),
        ("EXPLAIN SELECT 1", Explain),
    ],
)
def test_a_statement_runs_as_another_user(inner: str, kind: type[Statement]) -> None:
    statement = one(f"EXECUTE AS 'al''ice' ( {inner} )")
    assert isinstance(statement, ExecuteAs)
    assert statement.user == "al'ice"
    assert isinstance(statement.statement, kind)
    assert (statement.statement.text, statement.statement.position) == (inner, 23)
    assert statement.parameter_count == statement.statement.parameter_count == inner.count("?")


@pytest.mark.parametrize(
    "inner", ["SELECT 1", "UPDATE chat.t SET a = 1", "DELETE FROM chat.t", "WITH a AS (FROM b) FROM a"]
)
def test_a_statement_is_explained(inner: str) -> None:
    statement = one(f"EXPLAIN {inner}")
    assert isinstance(statement, Explain)
    assert bare(statement.statement) == bare(one(inner))


def disguised(text: str, chance: random.Random) -> str:
    """Return the same statement with other spaces, comments and capitals."""
    gaps = [" ", "\n", "\t\r\n", " /* ' ; */ ", ' -- " ;\n', "/**/", "\u00a0"]
    pieces = []
    for before, token in zip([None, *tokens_of(text)], tokens_of(text), strict=False):
        glued = before is not None and before.stop == token.start
        pieces.append("" if glued else chance.choice(gaps))
        word = text[token.start : token.stop]
        pieces.append(
            "".join(chance.choice([c.lower(), c.upper()]) for c in word) if token.kind == WORD else word
        )
    return "".join(pieces) + chance.choice([*gaps, ";", " ; ; "])


@pytest.mark.parametrize("text", VALID)
def test_spaces_comments_and_capitals_change_nothing(text: str) -> None:
    chance = random.Random(text)
    for _ in range(10):
        other = disguised(text, chance)
        assert bare(one(other)) == bare(one(text)), other


def test_a_script_has_its_statements_in_order() -> None:
    text = ";; SELECT 'a;b' ;\n-- nothing; here\n DELETE FROM chat.t WHERE a = ?; SELECT ?, ?;"
    statements = parse(text)
    assert [statement.text for statement in statements] == [
        "SELECT 'a;b'",
        "DELETE FROM chat.t WHERE a = ?",
        "SELECT ?, ?",
    ]
    assert [text[s.position : s.position + 6] for s in statements] == ["SELECT", "DELETE", "SELECT"]
    assert [s.parameter_count for s in statements] == [0, 1, 2]


@pytest.mark.parametrize("text", ["", " \n", ";;", "-- nothing", "/* nothing */ ;"])
def test_a_text_without_statements_gives_none(text: str) -> None:
    assert parse(text) == ()


def test_a_text_of_too_many_words_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.sql.parser.cursor.TOKENS_MAX", 100)
    assert parse("SELECT " + "+".join(["1"] * 50))
    with pytest.raises(SqlInvalid, match="more than 100 words and signs"):
        parse("SELECT " + "+".join(["1"] * 51))
    assert parse("INSERT INTO a.b VALUES " + ", ".join(["(1, 2)"] * 200))


def test_too_much_is_refused() -> None:
    with pytest.raises(SqlInvalid, match="more than 10000 comments in a row"):
        parse("SELECT " + "/**/ " * 10_001 + "1")
    with pytest.raises(SqlInvalid, match=f"more than {STATEMENTS_MAX} statements") as caught:
        parse("SELECT 1;" * (STATEMENTS_MAX + 1))
    assert caught.value.values["statement"] == STATEMENTS_MAX + 1
    with pytest.raises(SqlInvalid, match="longer than"):
        parse(" " * (TEXT_CHARS_MAX + 1))
    with pytest.raises(SqlInvalid, match="more than 2000 columns"):
        table(f"({', '.join(f'c{n} INT' for n in range(2001))})")
    with pytest.raises(SqlInvalid, match="nest deeper than 64"):
        parse("SELECT " + "(" * 65 + "1" + ")" * 65)
    assert parse("SELECT " + "(" * 64 + "1" + ")" * 64)


def test_every_statement_of_the_reference_is_read() -> None:
    page = (ROOT / "docs" / "reference" / "sql.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sql\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    statements = [statement for block in blocks for statement in parse(block)]
    shown = {type(statement).__name__ for statement in statements}
    every = {kind.__name__ for kind in [*Statement.__subclasses__(), *TopicStatement.__subclasses__()]}
    assert every - shown == {"DropNamespace", "ShowNamespaces", "TopicStatement"}
    for kind in ("DROP NAMESPACE [IF EXISTS]", "SHOW NAMESPACES"):
        assert kind in page
