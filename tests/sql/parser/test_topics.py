"""Statements about topics: each is read as what it says (case 13)."""

from __future__ import annotations

import itertools

import pytest

from tests.sql.fuzz import bare
from tidegate.model.durations import parse_duration
from tidegate.sql.parser.parse import parse
from tidegate.sql.statements import (
    Ack,
    AddSource,
    ClearTopic,
    Consume,
    CreateTopic,
    DescribeTopic,
    DropGroup,
    DropSource,
    DropTopic,
    Extend,
    Literal,
    Nack,
    Param,
    Publish,
    ResetGroup,
    SetPartitions,
    SetRetention,
    ShowGroups,
    ShowTopics,
    StartAt,
    Statement,
    TableName,
    TopicName,
    Upto,
)

T = TopicName("app.t")
ORDERS = TableName("shop", "orders")


def one(text: str) -> Statement:
    (statement,) = parse(text)
    return statement


def span(text: str) -> object:
    return parse_duration(text)


READ = [
    ("CREATE TOPIC app.t", CreateTopic(T, False, 1, {})),
    (
        "CREATE TOPIC IF NOT EXISTS app.t PARTITIONS 4 WITH (retention_seconds = 60, retention_max_bytes=9)",
        CreateTopic(T, True, 4, {"seconds": 60, "max_bytes": 9}),
    ),
    ("CREATE TOPIC app.t WITH (seconds = NULL) PARTITIONS 2", CreateTopic(T, False, 2, {"seconds": None})),
    ("CREATE TOPIC one", CreateTopic(TopicName("one"), False, 1, {})),
    ('CREATE TOPIC "My-App".x.order."B"', CreateTopic(TopicName("My-App.x.order.B"), False, 1, {})),
    ("DROP TOPIC app.t", DropTopic(T, False)),
    ("DROP TOPIC IF EXISTS a.b.c.d.dead", DropTopic(TopicName("a.b.c.d.dead"), True)),
    ("CLEAR TOPIC app.t", ClearTopic(T)),
    ("SHOW TOPICS", ShowTopics()),
    ("DESCRIBE TOPIC app.t", DescribeTopic(T)),
    ("DESC TOPIC app.t", DescribeTopic(T)),
    ("SHOW CONSUMER GROUPS ON app.t", ShowGroups(T)),
    ("DROP CONSUMER GROUP 'it''s' ON app.t", DropGroup("it's", T, False)),
    ("DROP CONSUMER GROUP IF EXISTS ? ON app.t", DropGroup(Param(1), T, True, parameter_count=1)),
    ("ALTER TOPIC app.t ADD PARTITIONS 3", SetPartitions(T, 3, True)),
    ("ALTER TOPIC app.t SET PARTITIONS 3", SetPartitions(T, 3, False)),
    ("ALTER TOPIC app.t SET RETENTION '7 days'", SetRetention(T, {"seconds": 7 * 86_400})),
    ("ALTER TOPIC app.t SET RETENTION NONE", SetRetention(T, {"seconds": None, "max_bytes": None})),
    (
        "ALTER TOPIC app.t SET RETENTION (seconds = 5, max_bytes = NULL)",
        SetRetention(T, {"seconds": 5, "max_bytes": None}),
    ),
    ("ALTER TOPIC app.t SET (retention_max_bytes = 1000)", SetRetention(T, {"max_bytes": 1000})),
    ("CREATE TOPIC app.t WITH (dedup_seconds = 60)", CreateTopic(T, False, 1, {"dedup_seconds": 60})),
    (
        "ALTER TOPIC app.t SET (dedup_seconds = NULL, retention_seconds = 5)",
        SetRetention(T, {"dedup_seconds": None, "seconds": 5}),
    ),
    (
        "PUBLISH INTO app.t DEDUP KEY 'd' KEY 'k' VALUES ('{}')",
        Publish(T, "k", None, None, None, (Literal("{}"),), ("d",)),
    ),
    (
        "PUBLISH INTO app.t DEDUP KEYS ('d', ?) VALUES ('1'), ('2')",
        Publish(T, None, None, None, None, (Literal("1"), Literal("2")), ("d", Param(1)), parameter_count=1),
    ),
    ("ALTER TOPIC app.t DROP SOURCE shop.orders", DropSource(T, ORDERS, ())),
    (
        "ALTER TOPIC app.t DROP SOURCE shop.orders ON DELETE, INSERT",
        DropSource(T, ORDERS, ("delete", "insert")),
    ),
    ("PUBLISH INTO app.t VALUES ('{}')", Publish(T, None, None, None, None, (Literal("{}"),))),
    (
        "PUBLISH INTO app.t KEY 'k' PARTITION 2 PRODUCER 'p' SEQUENCE 7 VALUES ('1'), (?), (5)",
        Publish(T, "k", 2, "p", 7, (Literal("1"), Param(1), Literal(5)), parameter_count=1),
    ),
    (
        "PUBLISH INTO app.t PARTITION $2 KEY $1 VALUES ($3)",
        Publish(T, Param(1), Param(2), None, None, (Param(3),), parameter_count=3),
    ),
    ("CONSUME FROM app.t", Consume(T, None, None, None, None, None, None, None)),
    (
        "CONSUME FROM app.t GROUP 'g' MEMBER 'm' PARTITION 1 FROM LATEST LIMIT 10 WAIT '5 s' LEASE '1 min'",
        Consume(T, "g", "m", 1, StartAt("latest"), 10, span("5 s"), span("1 min")),  # type: ignore[arg-type]
    ),
    (
        "CONSUME FROM app.t WAIT ? LIMIT ? FROM AFTER ? PARTITION ? GROUP ?",
        Consume(
            *(T, Param(5), None, Param(4), StartAt("after", Param(3)), Param(2), Param(1), None),
            parameter_count=5,
        ),
    ),
    ("CONSUME FROM app.t FROM EARLIEST", Consume(T, None, None, None, StartAt("earliest"), *[None] * 3)),
    ("CONSUME FROM app.t FROM OFFSET 0", Consume(T, None, None, None, StartAt("offset", 0), *[None] * 3)),
    (
        "CONSUME FROM app.t FROM TIMESTAMP '1970-01-01 00:00:01'",
        Consume(T, None, None, None, StartAt("timestamp", 1_000_000), *[None] * 3),
    ),
    (
        "CONSUME FROM app.t FROM TIMESTAMP '1970-01-01T02:00:01+02:00'",
        Consume(T, None, None, None, StartAt("timestamp", 1_000_000), *[None] * 3),
    ),
    ("ACK app.t GROUP 'g' UPTO OFFSET 5", Ack(T, "g", None, (Upto(None, 5),), ())),
    ("ACK app.t GROUP 'g' MEMBER 'm' PARTITION 2 UPTO OFFSET 5", Ack(T, "g", "m", (Upto(2, 5),), ())),
    (
        "ACK app.t GROUP 'g' UPTO (PARTITION 0 OFFSET 991, PARTITION 1 OFFSET ?)",
        Ack(T, "g", None, (Upto(0, 991), Upto(1, Param(1))), (), parameter_count=1),
    ),
    (
        "ACK app.t GROUP 'g' LEASES ('0.a.1', ?)",
        Ack(T, "g", None, (), ("0.a.1", Param(1)), parameter_count=1),
    ),
    (
        "NACK app.t GROUP 'g' LEASES ('0.a.1') DELAY '5 s' REASON 'no luck'",
        Nack(T, "g", None, ("0.a.1",), span("5 s"), "no luck"),  # type: ignore[arg-type]
    ),
    ("NACK app.t GROUP 'g' LEASES ('0.a.1')", Nack(T, "g", None, ("0.a.1",), None, None)),
    ("NACK app.t GROUP 'g' LEASES ('0.a.1') DEAD", Nack(T, "g", None, ("0.a.1",), None, None, dead=True)),
    (
        "EXTEND app.t GROUP 'g' MEMBER 'm' LEASES ('0.a.1') LEASE '30 s'",
        Extend(T, "g", "m", ("0.a.1",), span("30 s")),  # type: ignore[arg-type]
    ),
    ("RESET CONSUMER GROUP 'g' ON app.t TO EARLIEST", ResetGroup("g", T, None, StartAt("earliest"))),
    (
        "RESET CONSUMER GROUP 'g' ON app.t PARTITION 1 TO OFFSET 5",
        ResetGroup("g", T, 1, StartAt("offset", 5)),
    ),
    (
        "RESET CONSUMER GROUP 'g' ON app.t PARTITION 1 TO AFTER -1",
        ResetGroup("g", T, 1, StartAt("after", -1)),
    ),
    (
        "RESET CONSUMER GROUP ? ON app.t TO TIMESTAMP ?",
        ResetGroup(Param(1), T, None, StartAt("timestamp", Param(2)), parameter_count=2),
    ),
]


@pytest.mark.parametrize(("text", "expected"), READ)
def test_a_statement_is_read(text: str, expected: Statement) -> None:
    statement = one(text)
    assert bare(statement) == bare(expected)
    assert (statement.text, statement.position) == (text, 0)


@pytest.mark.parametrize(
    ("written", "operations"),
    [
        ("INSERT", ("insert",)),
        ("INSERT, UPDATE, DELETE", ("insert", "update", "delete")),
        ("DELETE OR INSERT", ("delete", "insert")),
    ],
)
def test_a_source_has_its_operations(written: str, operations: tuple[str, ...]) -> None:
    statement = one(f"ALTER TOPIC app.t ADD SOURCE shop.orders ON {written}")
    assert isinstance(statement, AddSource)
    assert (statement.topic, statement.table, statement.operations) == (T, ORDERS, operations)
    assert (statement.where, statement.partition_by) == (None, ())
    assert (statement.payload, statement.preview_chars) == ("key", 0)


def test_a_source_has_a_condition_a_key_and_a_payload_in_any_order() -> None:
    for rest in (
        "WHERE total > 5 AND (a OR b) PARTITION BY (customer, \"At\") WITH (payload = 'full', preview = 80)",
        "WITH (preview = 80, payload = 'full') PARTITION BY (customer, \"At\") WHERE total > 5 AND (a OR b)",
    ):
        statement = one(f"ALTER TOPIC app.t ADD SOURCE shop.orders ON INSERT {rest}")
        assert isinstance(statement, AddSource)
        assert statement.where is not None
        assert statement.where.sql == "total > 5 AND (a OR b)"
        assert statement.partition_by == ("customer", "At")
        assert (statement.payload, statement.preview_chars) == ("full", 80)


def test_the_words_of_topics_stay_names() -> None:
    text = (
        "SELECT topic, consume, ack, publish, lease, wait, member, payload, source, clear FROM topic.consumer"
    )
    assert one(text).text == text
    described = one("DESCRIBE topic.messages")
    assert type(described).__name__ == "DescribeTable"
    made = one("CREATE USER TABLE publish.ack (consume INT PRIMARY KEY, lease TEXT, topic TEXT)")
    assert type(made).__name__ == "CreateTable"
    named = one("CREATE TOPIC consume.wait.lease PARTITIONS 2")
    assert isinstance(named, CreateTopic)
    assert named.topic.name == "consume.wait.lease"


def test_statements_of_topics_stand_in_scripts() -> None:
    text = "CREATE TOPIC a; PUBLISH INTO a VALUES ('1;2'), ($$\"x\"$$); CONSUME FROM a LIMIT 5;SHOW TOPICS"
    statements = parse(text)
    assert [type(s).__name__ for s in statements] == ["CreateTopic", "Publish", "Consume", "ShowTopics"]
    assert isinstance(statements[1], Publish)
    assert statements[1].payloads == (Literal("1;2"), Literal('"x"'))


@pytest.mark.parametrize(
    ("front", "clauses", "back"),
    [
        ("CONSUME FROM app.t", ["GROUP 'g'", "MEMBER 'm'", "FROM OFFSET 5", "LIMIT 3", "WAIT '1 s'"], ""),
        ("ACK app.t", ["GROUP 'g'", "MEMBER 'm'", "PARTITION 1", "UPTO OFFSET 5"], ""),
        ("NACK app.t", ["GROUP 'g'", "LEASES ('a', 'b')", "DELAY '1 s'", "REASON 'r'"], ""),
        ("EXTEND app.t", ["GROUP 'g'", "LEASES ('a')", "LEASE '1 s'"], ""),
        ("PUBLISH INTO app.t", ["KEY 'k'", "PARTITION 1", "PRODUCER 'p' SEQUENCE 3"], "VALUES ('1')"),
        ("CREATE TOPIC app.t", ["PARTITIONS 2", "WITH (seconds = 5)"], ""),
    ],
)
def test_clauses_stand_in_any_order(front: str, clauses: list[str], back: str) -> None:
    (first, *others) = (
        bare(one(" ".join([front, *order, back]))) for order in itertools.permutations(clauses)
    )
    assert all(other == first for other in others)
