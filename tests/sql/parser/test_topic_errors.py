"""Mistakes in statements about topics: what the error says, where it points, and what it advises."""

from __future__ import annotations

import pytest

from tests.sql.parser.test_parse_errors import place_of
from tidegate.errors import SqlInvalid, SqlUnsupported
from tidegate.sql.parser.parse import parse

# The place of the mistake is marked with ^ in front of it.
MISTAKES = [
    ("^CREAT TOPIC a", "expected a statement but found 'CREAT'", "Did you mean CREATE?"),
    ("CREATE ^TOPC a", "NAMESPACE, USER, SHARED, STREAM, INDEX or TOPIC but", "Did you mean TOPIC?"),
    ("CREATE TOPIC^", "expected a topic but found the end of the text", "Syntax: CREATE TOPIC"),
    ("CREATE TOPIC ^'a'", "expected a topic but found the string 'a'", "without quotes"),
    ("CREATE TOPIC ^group", "expected a topic but found 'group'", 'it is written "group"'),
    ("CREATE TOPIC a.^", "expected the next part of the topic's name", "Syntax: CREATE TOPIC"),
    ("CREATE TOPIC ^a.b.c.d.e.f", "the name of the topic 'a.b.c.d.e.f' has 6 parts", "4 at most"),
    ("CREATE TOPIC app^-events", "ends before '-'", 'in double quotes: "app-…"'),
    ("CREATE TOPIC IF ^EXISTS a", "expected NOT but found 'EXISTS'", "IF NOT EXISTS"),
    ("CREATE TOPIC a PARTITIONS ^0", "PARTITIONS is a whole number of 1 or more, not 0", "Syntax: CREATE"),
    ("CREATE TOPIC a PARTITIONS ^-1", "PARTITIONS is a whole number of 1 or more, not -1", "Syntax: CREATE"),
    ("CREATE TOPIC a PARTITIONS ^1.5", "PARTITIONS is a whole number of 1 or more, not 1.5", "Syntax"),
    ("CREATE TOPIC a PARTITIONS ^'3'", "expected a whole number behind PARTITIONS but found", "Syntax"),
    ("CREATE TOPIC a PARTITIONS^", "expected a whole number behind PARTITIONS but found the end", "Syntax"),
    ("CREATE TOPIC a PARTITIONS ^?", "PARTITIONS takes no parameter", "Write the number"),
    ("CREATE TOPIC a PARTITIONS 2 ^PARTITIONS 3", "PARTITIONS is named twice", "Say it once"),
    ("CREATE TOPIC a ^PARTITION 2", "expected PARTITIONS or WITH but found 'PARTITION'", "mean PARTITIONS?"),
    ("CREATE TOPIC a ^(x INT)", "expected PARTITIONS or WITH but found '('", "Syntax: CREATE TOPIC"),
    ("CREATE TOPIC a WITH (^retention = 5)", "there is no option 'retention'", "mean retention_seconds?"),
    (
        "CREATE TOPIC a WITH (retention_seconds = ^0)",
        "retention_seconds is a whole number of 1 or more, not 0",
        "Syntax",
    ),
    ("CREATE TOPIC a WITH (retention_seconds = ^'7 days')", "behind retention_seconds", "RETENTION '7 days'"),
    ("CREATE TOPIC a WITH (dedup_seconds = ^'1 day')", "behind dedup_seconds", "86400 is a day"),
    ("ALTER TOPIC a SET ^dedup_seconds = 5", "expected '('", "SET (dedup_seconds = n)"),
    ("ALTER TOPIC a SET RETENTION (^dedup_seconds = 5)", "there is no option 'dedup_seconds'", "Options"),
    ("PUBLISH INTO a DEDUP ^'k' VALUES ('1')", "expected KEY or KEYS but found", "DEDUP KEYS"),
    ("PUBLISH INTO a DEDUP KEY ^'' VALUES ('1')", "the text behind DEDUP KEY is empty", "Write something"),
    (
        "PUBLISH INTO a DEDUP KEYS ('a', ^NULL) VALUES ('1'), ('2')",
        "expected a text in quotes behind DEDUP KEYS but found 'NULL'",
        "NULL is no text. Rows without a key are published by a statement of their own",
    ),
    (
        "PUBLISH INTO a KEY ^null VALUES ('1')",
        "behind KEY but found 'null'",
        "NULL is no text. Leave KEY out",
    ),
    ("PUBLISH INTO a DEDUP KEY 'k' VALUES ^('1'), ('2')", "2 rows of VALUES, and 1 dedup keys", "its own"),
    ("CREATE TOPIC a WITH (max_bytes = 5, ^max_bytes = 6)", "option 'max_bytes' is named twice", "Syntax"),
    ("CREATE TOPIC a WITH ^(seconds = 5, retention_seconds = 6)", "twice, in two ways", "Say it once"),
    ("CREATE TOPIC a WITH (max_bytes = ^1e9)", "max_bytes is a whole number of 1 or more", "Syntax"),
    (
        "CREATE TOPIC a WITH (max_bytes = ^9223372036854775808)",
        "max_bytes is a whole number from 1 to 9223372036854775807, not",
        "Syntax",
    ),
    ("CREATE TOPIC a WITH (max_bytes = ^" + "9" * 30 + ")", "max_bytes is a whole number from 1", "Syntax"),
    ("ALTER ^TOPICS a SET RETENTION NONE", "expected TABLE or TOPIC but found 'TOPICS'", "mean TOPIC?"),
    ("ALTER TOPIC a ^CHANGE x", "expected ADD, DROP or SET but found 'CHANGE'", "Syntax: ALTER TOPIC"),
    ("ALTER TOPIC a ADD ^SOURCES x.y", "expected SOURCE or PARTITIONS but found 'SOURCES'", "mean SOURCE?"),
    (
        "ALTER TOPIC a ADD PARTITIONS ^0",
        "PARTITIONS is a whole number of 1 or more, not 0",
        "ADD PARTITIONS n",
    ),
    ("ALTER TOPIC a ADD SOURCE t ^ON INSERT", "expected '.' and the name of the table", "such as chat.t"),
    ("ALTER TOPIC a ADD SOURCE x.y^", "expected ON but found the end of the text", "Syntax: ALTER TOPIC"),
    ("ALTER TOPIC a ADD SOURCE x.y ON ^TRUNCATE", "expected INSERT, UPDATE or DELETE but", "Syntax: ALTER"),
    ("ALTER TOPIC a ADD SOURCE x.y ON INSERT, ^INSERT", "INSERT is named twice", "each operation once"),
    ("ALTER TOPIC a ADD SOURCE x.y ON INSERT,^", "expected INSERT, UPDATE or DELETE but found", "Syntax"),
    ("ALTER TOPIC a ADD SOURCE x.y ON INSERT WHERE^", "expected a condition but found the end", "Syntax"),
    ("ALTER TOPIC a ADD SOURCE x.y ON INSERT WHERE ^z > ?", "cannot have a parameter", "write the value"),
    ("ALTER TOPIC a ADD SOURCE x.y ON INSERT WHERE b = 1 PARTITION ^= 2", "expected BY", '"partition"'),
    ("ALTER TOPIC a ADD SOURCE x.y ON INSERT PARTITION BY ^b", "expected '(' but found 'b'", "(column, …)"),
    ("ALTER TOPIC a ADD SOURCE x.y ON INSERT PARTITION BY (b, ^b)", "column 'b' is named twice", "once"),
    (
        "ALTER TOPIC a ADD SOURCE x.y ON INSERT WITH (payload = ^'keys')",
        "payload is 'key', 'full' or 'diff', not 'keys'",
        "Did you mean 'key'?",
    ),
    ("ALTER TOPIC a ADD SOURCE x.y ON INSERT WITH (payload = ^full)", "expected 'key', 'full' or", "Syntax"),
    ("ALTER TOPIC a ADD SOURCE x.y ON INSERT WITH (^paylod = 'key')", "no option 'paylod'", "mean payload?"),
    ("ALTER TOPIC a ADD SOURCE x.y ON INSERT WITH (preview = ^5000)", "preview is a whole number", "Syntax"),
    ("ALTER TOPIC a ADD SOURCE x.y ON INSERT ^LIMIT 5", "expected WHERE, PARTITION or WITH but", "Syntax"),
    ("ALTER TOPIC a DROP ^SORUCE x.y", "expected SOURCE but found 'SORUCE'", "Did you mean SOURCE?"),
    ("ALTER TOPIC a DROP SOURCE x.y ^INSERT", "expected the end of the statement but", "[ON INSERT"),
    ("ALTER TOPIC a SET ^RETENTON 5", "expected RETENTION, PARTITIONS or '(' but", "mean RETENTION?"),
    (
        "ALTER TOPIC a SET ^retention_seconds = 5",
        "expected '(' but found",
        "Write SET (retention_seconds = n)",
    ),
    ("ALTER TOPIC a SET RETENTION ^5", "expected a duration in quotes, '(' or NONE but found '5'", "Syntax"),
    ("ALTER TOPIC a SET RETENTION ^'week'", "'week' is not a duration", "number and a unit"),
    ("ALTER TOPIC a SET RETENTION ^'0 s'", "a whole number of seconds, 1 or more", "Syntax: ALTER TOPIC"),
    ("ALTER TOPIC a SET RETENTION ^'500 ms'", "a whole number of seconds, 1 or more", "Syntax: ALTER TOPIC"),
    (
        "ALTER TOPIC a SET RETENTION (seconds = ^-5)",
        "seconds is a whole number of 1 or more, not -5",
        "Syntax",
    ),
    ("DROP ^TOPICS a", "TABLE, NAMESPACE, INDEX, TOPIC or CONSUMER but found", "Did you mean TOPIC?"),
    ("DROP TOPIC IF ^NOT EXISTS a", "expected EXISTS but found 'NOT'", "Syntax: DROP TOPIC [IF EXISTS]"),
    ("DROP CONSUMER ^GRUOP 'g' ON a", "expected GROUP but found 'GRUOP'", "Did you mean GROUP?"),
    ("DROP CONSUMER GROUP ^g ON a", "expected a text in quotes behind GROUP but", "Write GROUP 'g'"),
    ("DROP CONSUMER GROUP 'g'^", "expected ON but found the end of the text", "Syntax: DROP CONSUMER"),
    ("CLEAR ^a", "expected TOPIC but found 'a'", "Syntax: CLEAR TOPIC topic"),
    ("SHOW ^TOPIC", "TABLES, NAMESPACES, TOPICS or CONSUMER but found 'TOPIC'", "Did you mean TOPICS?"),
    ("SHOW CONSUMER ^GROUP ON a", "expected GROUPS but found 'GROUP'", "Did you mean GROUPS?"),
    ("SHOW CONSUMER GROUPS^", "expected ON but found the end of the text", "SHOW CONSUMER GROUPS ON topic"),
    ("DESCRIBE TOPIC^", "expected a topic but found the end", "Syntax: DESCRIBE TOPIC"),
    ("CONSUME ^app.t", "expected FROM but found 'app'", "Syntax: CONSUME FROM topic"),
    ("CONSUME FROM a GROUP ^g", "expected a text in quotes behind GROUP but found 'g'", "Write GROUP 'g'"),
    ('CONSUME FROM a GROUP ^"g"', "expected a text in quotes behind GROUP but", "Write GROUP 'g'"),
    ("CONSUME FROM a GROUP ^''", "the text behind GROUP is empty", "Write something in it"),
    ("CONSUME FROM a GROUP 'g' ^GROUP 'h'", "GROUP is named twice", "Say it once"),
    ("CONSUME FROM a LIMIT ^0", "LIMIT is a whole number of 1 or more, not 0", "Syntax: CONSUME"),
    ("CONSUME FROM a LIMIT ^ten", "expected a whole number behind LIMIT but found 'ten'", "Syntax: CONSUME"),
    ("CONSUME FROM a PARTITION ^-1", "PARTITION is a whole number of 0 or more, not -1", "Syntax"),
    ("CONSUME FROM a WAIT ^'abc'", "'abc' is not a duration: it is not a number and a unit", "'5 s'"),
    ("CONSUME FROM a WAIT ^5", "expected a duration behind WAIT but found '5'", "in quotes, with its unit"),
    ("CONSUME FROM a WAIT ^'5'", "'5' is not a duration: it has no unit", "number and a unit"),
    ("CONSUME FROM a WAIT ^'-5 s'", "it is negative, and time only passes", "number and a unit"),
    ("CONSUME FROM a FROM TIMESTAMP ^'garbage'", "'garbage' is not an ISO 8601 time", "no zone is UTC"),
    ("CONSUME FROM a FROM TIMESTAMP ^5", "expected a time in quotes behind TIMESTAMP but found", "Syntax"),
    ("CONSUME FROM a FROM ^5", "EARLIEST, LATEST, OFFSET, AFTER or TIMESTAMP but", "written OFFSET n"),
    ("CONSUME FROM a FROM ^LATST", "LATEST, OFFSET, AFTER or TIMESTAMP but", "Did you mean LATEST?"),
    ("CONSUME FROM a FROM OFFSET^", "expected a whole number behind OFFSET but found the end", "Syntax"),
    ("CONSUME FROM a FROM AFTER ^-2", "AFTER is a whole number of -1 or more, not -2", "Syntax"),
    (
        "CONSUME FROM a ^MEMBER 'x'",
        "MEMBER belongs to a group, and GROUP is missing",
        "nothing is remembered",
    ),
    ("CONSUME FROM a ^LEASE '5 s'", "LEASE belongs to a group, and GROUP is missing", "nothing is"),
    ("CONSUME FROM a ^WHERE x = 1", "PARTITION, FROM, LIMIT, WAIT or LEASE but", "Syntax: CONSUME"),
    ("ACK a UPTO OFFSET 5^", "expected GROUP but found the end of the text", "Syntax: ACK topic GROUP"),
    ("ACK a GROUP 'g'^", "expected UPTO or LEASES but found the end of the text", "Syntax: ACK"),
    ("ACK a GROUP 'g' UPTO^", "expected OFFSET or '(' but found the end of the text", "Syntax: ACK"),
    ("ACK a GROUP 'g' UPTO ^5", "expected OFFSET or '(' but found '5'", "UPTO OFFSET n"),
    ("ACK a GROUP 'g' UPTO OFFSET^", "expected a whole number behind OFFSET but found", "Syntax: ACK"),
    ("ACK a GROUP 'g' UPTO OFFSET ^-1", "OFFSET is a whole number of 0 or more, not -1", "Syntax: ACK"),
    ("ACK a GROUP 'g' UPTO (^0, 5)", "expected PARTITION but found '0'", "UPTO (PARTITION n OFFSET n, …)"),
    ("ACK a GROUP 'g' UPTO (PARTITION 0 ^5)", "expected OFFSET but found '5'", "Syntax: ACK"),
    ("ACK a GROUP 'g' UPTO (PARTITION 0 OFFSET 5, ^PARTITION 0 OFFSET 6)", "partition 0 is named", "once"),
    ("ACK a ^GROUP 'g' PARTITION 0 UPTO (PARTITION 0 OFFSET 5)", "the partitions are named twice", "list"),
    ("ACK a ^GROUP 'g' UPTO OFFSET 5 LEASES ('x')", "UPTO and LEASES do not go together", "two statements"),
    ("ACK a ^GROUP 'g' PARTITION 1 LEASES ('x')", "PARTITION belongs to UPTO", "A lease says which"),
    ("ACK a GROUP 'g' LEASES ^'x'", "expected '(' but found the string 'x'", "LEASES ('lease', …)"),
    ("ACK a GROUP 'g' LEASES (^)", "expected a text in quotes behind LEASES but found ')'", "Syntax: ACK"),
    ("ACK a GROUP 'g' LEASES (^0.a.1)", "expected a text in quotes behind LEASES but found '0", "LEASES '0"),
    ("NACK a GROUP 'g'^", "expected LEASES but found the end of the text", "Syntax: NACK"),
    ("NACK a GROUP 'g' LEASES ('x') DELAY ^5", "expected a duration behind DELAY but found '5'", "'5 s'"),
    ("NACK a GROUP 'g' LEASES ('x') REASON ^oops", "expected a text in quotes behind REASON", "'oops'"),
    (
        "NACK a GROUP 'g' LEASES ('x') DEAD DELAY '5 s'^",
        "DEAD and DELAY do not go together",
        "say DEAD or DELAY",
    ),
    ("ALTER TOPIC a ADD SOURCE b.c ON ^UPSERT", "an UPSERT is an INSERT or an UPDATE", "ON INSERT, UPDATE"),
    ("NACK a LEASES ('x')^", "expected GROUP but found the end of the text", "Syntax: NACK"),
    ("EXTEND a GROUP 'g' LEASES ('x') ^DELAY '5 s'", "expected MEMBER or LEASE but found 'DELAY'", "EXTEND"),
    ("EXTEND a GROUP 'g' LEASE '5 s'^", "expected LEASES but found the end", "Syntax: EXTEND"),
    ("RESET CONSUMER ^'g' ON a TO LATEST", "expected GROUP but found the string 'g'", "Syntax: RESET"),
    ("RESET CONSUMER GROUP 'g' ^TO LATEST", "expected ON but found 'TO'", "Syntax: RESET CONSUMER GROUP"),
    ("RESET CONSUMER GROUP 'g' ON a^", "expected PARTITION or TO but found the end", "Syntax: RESET"),
    ("RESET CONSUMER GROUP 'g' ON a TO ^BEFORE 5", "AFTER or TIMESTAMP but found 'BEFORE'", "Syntax: RESET"),
    ("RESET CONSUMER GROUP 'g' ON a TO TIMESTAMP ^'2026-13-01'", "is not a time: month must be", "no zone"),
    ("PUBLISH ^a VALUES ('1')", "expected INTO but found 'a'", "Syntax: PUBLISH INTO topic"),
    ("PUBLISH INTO a^", "expected VALUES but found the end of the text", "Syntax: PUBLISH INTO"),
    (
        "PUBLISH INTO a ^('1')",
        "expected KEY, PARTITION, PRODUCER, DEDUP or VALUES but found '('",
        "Syntax: PUBLISH",
    ),
    ("PUBLISH INTO a VALUES^", "expected '(' but found the end of the text", "Syntax: PUBLISH"),
    ("PUBLISH INTO a VALUES ^('1', '2')", "row 1 has 2 values, and 1 would be right", "Every row"),
    ("PUBLISH INTO a VALUES ^(NULL)", "row 1 of VALUES is no JSON", "null is 'null'"),
    ("PUBLISH INTO a VALUES ^('1'), (NOW())", "row 2 of VALUES is no JSON", "a text with JSON"),
    ("PUBLISH INTO a VALUES ^(X'00')", "row 1 of VALUES is no JSON", "a text with JSON"),
    ("PUBLISH INTO a VALUES ^(upper('1'))", "a payload is no expression", "a text with JSON"),
    ("PUBLISH INTO a KEY ^5 VALUES ('1')", "expected a text in quotes behind KEY but", "Write KEY '5'"),
    ("PUBLISH INTO a PRODUCER 'p' ^VALUES ('1')", "expected SEQUENCE but found 'VALUES'", "SEQUENCE n"),
    (
        "PUBLISH INTO a ^SEQUENCE 5 VALUES ('1')",
        "KEY, PARTITION, PRODUCER, DEDUP or VALUES but",
        "Syntax: PUBLISH",
    ),
    ("PUBLISH INTO a PRODUCER 'p' SEQUENCE ^-1 VALUES ('1')", "SEQUENCE is a whole number of 0", "Syntax"),
    ("PUBLISH INTO a VALUES ('1') ^RETURNING offset", "expected the end of the statement", "Syntax: PUBLISH"),
    (
        "CREATE TOPIC a PARTITIONS 2 WITH (seconds = 1) ^please",
        "expected the end of the statement but found 'please'",
        "Syntax: CREATE TOPIC",
    ),
    ("EXPLAIN ^CONSUME FROM a", "expected SELECT, UPDATE or DELETE but found 'CONSUME'", "EXPLAIN shows"),
    ("EXECUTE AS 'eve' (^CREATE TOPIC a)", "but found 'CREATE'", "Syntax: EXECUTE AS"),
    ("EXECUTE AS 'eve' (^SHOW TOPICS)", "but found 'SHOW'", "Syntax: EXECUTE AS"),
    (
        "CONSUME FROM a LIMIT ? FROM OFFSET ^$1",
        "? and $1 cannot both be used in a statement",
        "one of the two",
    ),
]
UNSUPPORTED = [
    ("ALTER TOPIC a ^RENAME TO b", "ALTER TOPIC … RENAME is not supported", "another topic"),
    ("ALTER TOPIC a DROP ^PARTITIONS 1", "Partitions are only added", "Make another topic with fewer"),
    ("EXECUTE AS 'eve' (^CONSUME FROM a)", "CONSUME is not run as another user", "MEMBER says who it is"),
    ("EXECUTE AS 'eve' (^ACK a GROUP 'g' UPTO OFFSET 1)", "ACK is not run as another user", "the tenant"),
    ("EXECUTE AS 'eve' (^PUBLISH INTO a VALUES ('1'))", "PUBLISH is not run as another user", "the tenant"),
    ("^RESET ALL", "RESET is not supported", "not reached by statements"),
    ("^RESET memory_limit", "RESET is not supported", "not reached by statements"),
]


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
