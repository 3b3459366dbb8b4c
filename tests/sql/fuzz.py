"""The parser under random text: no crash, no hang, every error with its place.

`python -m tests.sql.fuzz --minutes 5` runs it for long; `test_fuzz.py` runs a little of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from tidegate.errors import SqlInvalid, TidegateError
from tidegate.sql.parser.cursor import TokenCursor
from tidegate.sql.parser.dml import _read_quickly, _read_slowly
from tidegate.sql.parser.lexer import END, WORD, SourceText, SqlToken, scan
from tidegate.sql.parser.parse import parse
from tidegate.sql.statements import Fragment, Insert, Statement

SLOWEST_SECONDS_MAX = 2.0  # for texts of some kilobytes

VALID = [
    "CREATE NAMESPACE IF NOT EXISTS chat",
    "CREATE NAMESPACE chat",
    "DROP NAMESPACE IF EXISTS chat",
    "CREATE USER TABLE IF NOT EXISTS chat.messages (id BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID(), "
    "text TEXT NOT NULL, at TIMESTAMP DEFAULT NOW())",
    "CREATE SHARED TABLE shop.prices (a INT, b DECIMAL(10, 2) DEFAULT 1.50, c JSON, PRIMARY KEY (a, b))",
    "CREATE STREAM TABLE chat.typing (room TEXT, typing BOOLEAN) WITH (ttl_seconds = 60, "
    "durability = 'fsync')",
    "ALTER TABLE chat.messages ADD COLUMN IF NOT EXISTS mood TEXT NOT NULL DEFAULT 'calm'",
    "ALTER TABLE chat.typing SET (ttl_seconds = 120)",
    "DROP TABLE IF EXISTS chat.messages",
    "CREATE INDEX IF NOT EXISTS by_at ON chat.messages (at, text)",
    "DROP INDEX by_at ON chat.messages",
    "SHOW TABLES IN chat",
    "SHOW NAMESPACES",
    "DESCRIBE TABLE chat.messages",
    "INSERT INTO chat.messages (id, text, at) VALUES (1, 'it''s; fine', NOW()), (-2, NULL, DEFAULT)",
    "INSERT INTO chat.messages VALUES (1.5, 1e3, X'00ff', TIMESTAMP '2026-01-01', TRUE), (?, ?, ?, ?, ?)",
    "UPSERT INTO chat.messages (id, text) VALUES ($1, upper($2)), ($1 + 1, 'x')",
    "INSERT INTO chat.messages (id, text) SELECT id, text FROM chat.old WHERE id > ? LAST 10",
    "INSERT INTO chat.messages (id, text)",
    "UPDATE chat.messages SET text = upper(text) || ?, at = NOW() WHERE id = ? AND text = 'a'",
    'DELETE FROM chat.messages WHERE id = 1 AND "text" = $1',
    "DELETE FROM chat.messages",
    "SELECT * FROM chat.messages WHERE id = ?",
    "SELECT id, at FROM chat.typing LAST 100",
    "WITH a AS (SELECT * FROM chat.typing LAST $1) SELECT count(*) FROM a GROUP BY ALL ORDER BY 1 NULLS LAST",
    "SELECT a::int, b->>'$.x', [1, 2], {'k': $$text$$}, E'\\n' FROM lake.readings r JOIN s.t ON r.a = t.a",
    "EXECUTE AS 'alice' (SELECT * FROM chat.messages)",
    "EXPLAIN DELETE FROM chat.messages WHERE id IN (1, 2)",
    "VALUES (1, 2)",
    "FROM chat.messages",
    'CREATE TOPIC IF NOT EXISTS app."Events" PARTITIONS 3 WITH (retention_seconds = 60, max_bytes = NULL)',
    "ALTER TOPIC app.events ADD SOURCE shop.orders ON INSERT, UPDATE WHERE total > 5 AND (a OR b) "
    "PARTITION BY (customer, id) WITH (payload = 'full')",
    "ALTER TOPIC app.events DROP SOURCE shop.orders ON DELETE",
    "ALTER TOPIC app.events SET RETENTION (seconds = 5, max_bytes = 9)",
    "ALTER TOPIC app.events SET RETENTION '7 days'",
    "ALTER TOPIC app.events ADD PARTITIONS 2",
    "DROP TOPIC IF EXISTS app.events",
    "CLEAR TOPIC app.events.dead",
    "SHOW TOPICS",
    "DESCRIBE TOPIC app.events",
    "SHOW CONSUMER GROUPS ON app.events",
    "DROP CONSUMER GROUP 'g' ON app.events",
    "RESET CONSUMER GROUP 'g' ON app.events PARTITION 1 TO OFFSET 5",
    "PUBLISH INTO app.events KEY ? PARTITION 1 PRODUCER 'p' SEQUENCE 0 VALUES ('{\"a\": 1}'), (?), (5)",
    "CONSUME FROM app.events GROUP 'g' MEMBER ? FROM TIMESTAMP '2026-01-01' LIMIT ? WAIT '5 s' LEASE '1 min'",
    "ACK app.events GROUP 'g' UPTO (PARTITION 0 OFFSET 991, PARTITION 1 OFFSET ?)",
    "ACK app.events GROUP 'g' MEMBER 'm' PARTITION 0 UPTO OFFSET 5",
    "NACK app.events GROUP 'g' LEASES ('0.a.1', $1) DELAY '5 s' REASON 'no'",
    "EXTEND app.events GROUP 'g' LEASES ('0.a.1') LEASE '30 s'",
]
SOUP_TEXT = r"""
( ) ( ) [ ] { } , ; . = < > + - * / % | & ? :: -> ->> || $ $$ $1 $2 $99999 ' " ` \ # @ ! ~ ^
SELECT FROM WHERE INSERT UPSERT INTO VALUES UPDATE SET DELETE CREATE USER SHARED STREAM TABLE
NAMESPACE INDEX ON IF NOT EXISTS PRIMARY KEY NULL DEFAULT WITH ALTER ADD COLUMN DROP SHOW TABLES
DESCRIBE EXPLAIN EXECUTE AS LAST ORDER BY GROUP LIMIT UNION JOIN AND OR TRUE FALSE NOW() AT TIME
TOPIC TOPICS PARTITION PARTITIONS SOURCE RETENTION CONSUMER GROUPS PUBLISH CONSUME ACK NACK EXTEND
CLEAR RESET UPTO OFFSET LEASES LEASE WAIT MEMBER PRODUCER SEQUENCE EARLIEST LATEST AFTER payload
INT BIGINT TEXT DECIMAL DECIMAL(10,2) TIMESTAMP FILE JSON ttl_seconds chat.t chat .t a b last x
'text' 'it''s' '' "Name" "" X'00' X'0' E'\'' $$a;b$$ $t$ $t$'$t$ 1 -1 1.5 .5 1e9 1e999 1..2 0x1f
"""
UNUSUAL = [
    "-- comment\n",
    "/* c */",
    "/* /* */ */",
    "/*",
    "*/",
    "--",
    "\n",
    "\r\n",
    "\t",
    "\u00a0",
    "é",
    "😀",
]
UNUSUAL += ["\x00", "9" * 500, "a" * 300, "(" * 70, "\ud800", "\u202e", "İ", "K"]
SOUP = SOUP_TEXT.split() + UNUSUAL


def soup(chance: random.Random) -> str:
    """Return random tokens one after the other."""
    return chance.choice(["", " "]).join(chance.choices(SOUP, k=chance.randrange(1, 40)))


def mutant(chance: random.Random) -> str:
    """Return a valid statement with some tokens left out, doubled, swapped or replaced."""
    text = chance.choice(VALID)
    pieces = [text[token.start : token.stop] for token in tokens_of(text)]
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(pieces))
        edit = chance.randrange(5)
        if edit == 0 and len(pieces) > 1:
            del pieces[at]
        elif edit == 1:
            pieces.insert(at, pieces[at])
        elif edit == 2:
            other = chance.randrange(len(pieces))
            pieces[at], pieces[other] = pieces[other], pieces[at]
        elif edit == 3:
            pieces[at] = chance.choice(SOUP)
        else:
            pieces.insert(at, chance.choice(SOUP))
    return " ".join(pieces)


def cut(chance: random.Random) -> str:
    """Return a script of valid statements, cut or with one character changed."""
    text = "; ".join(chance.choices(VALID, k=chance.randrange(1, 4)))
    at = chance.randrange(len(text))
    return chance.choice([text[:at], text[at:], text[:at] + chance.choice(SOUP) + text[at + 1 :]])


def letters(chance: random.Random) -> str:
    """Return random characters of all of Unicode."""
    return "".join(chr(chance.choice([chance.randrange(128), chance.randrange(0x110000)])) for _ in range(60))


def nested(chance: random.Random) -> str:
    """Return something deep, or long, or large."""
    count = chance.randrange(1, 3000)
    opening = chance.choice(
        ["(", "[", "{", "/*", "((SELECT ", "CASE WHEN ", "EXPLAIN ", "- ", "NOT ", "''", '""']
    )
    front = chance.choice(
        ["SELECT ", "DELETE FROM a.b WHERE ", "INSERT INTO a.b VALUES (", "UPDATE a.b SET c = "]
    )
    return front + opening * count + chance.choice(["", "1", ")" * count, "9" * count, "'" * count])


def plain_values(chance: random.Random) -> str:
    """Return an INSERT of values that mostly are plain, with spaces in odd places."""
    cells = [
        "1",
        "-2",
        "+3",
        "1.50",
        ".5",
        "1e3",
        "'a'",
        "'it''s'",
        "''",
        "'a,b);--'",
        "NULL",
        "true",
        "Default",
    ]
    cells += [
        "X'00fF'",
        "now()",
        "UUID_V7()",
        "date '2026-01-01'",
        "TIMESTAMP  '2026'",
        "'\n'",
        "- 2",
        "NOW( )",
    ]
    styles = chance.choice([["?"], ["$1", "$2"], []])
    strange = chance.choice(
        [[], [], ["1 + 1", "/* c */ 1", "x'0'", "9" * 401, "1e999", "(1)", "'a' 'b'", "1 2"]]
    )
    width = chance.randrange(1, 5)
    rows = []
    for _ in range(chance.randrange(1, 6)):
        chosen = [
            chance.choice(cells + styles + strange) for _ in range(width if chance.random() < 0.98 else 1)
        ]
        space = chance.choice(["", " ", "\n ", " -- c\n"]) if chance.random() < 0.2 else " "
        rows.append(f"({space}{f'{space},{space}'.join(chosen)}{space})")
    return f"INSERT INTO a.b VALUES {', '.join(rows)}{chance.choice(['', ' ', ';', ' ; ', ' -- c'])}"


GENERATORS: list[Callable[[random.Random], str]] = [soup, mutant, cut, letters, nested, plain_values]


def tokens_of(text: str) -> list[SqlToken]:
    """Return all tokens of a text."""
    found: list[SqlToken] = []
    token = scan(SourceText(text, 1), 0)
    while token.kind != END:
        found.append(token)
        token = scan(SourceText(text, 1), token.stop)
    return found


def bare(part: Any) -> Any:
    """Return a statement without what depends on spaces, comments and the case of its words."""
    if isinstance(part, Fragment):
        words = [t.key if t.kind == WORD else part.sql[t.start : t.stop] for t in tokens_of(part.sql)]
        return words, part.params, part.simple
    if dataclasses.is_dataclass(part):
        fields = [field.name for field in dataclasses.fields(part)]
        return type(part), [bare(getattr(part, name)) for name in fields if name not in ("position", "text")]
    if isinstance(part, tuple):
        return [bare(one) for one in part]
    return part


def check(text: str) -> bool:
    """Parse a text and tell whether it is valid; anything but an error with its place fails."""
    try:
        statements = parse(text)
    except TidegateError as error:
        line, column = error.values["line"], error.values["column"]
        lines = text.split("\n")
        assert 1 <= line <= len(lines), (text, error)
        assert 1 <= column <= len(lines[line - 1]) + 1, (text, error)
        assert error.values["statement"] >= 1
        assert not isinstance(error, SqlInvalid) or f"line {line}, column {column}" in error.message
        return False
    for statement in statements:
        check_statement(text, statement)
    return True


def check_statement(text: str, statement: Statement) -> None:
    """Check that a statement's own text is where it says, and means the same by itself."""
    assert text[statement.position :].startswith(statement.text)
    (again,) = parse(statement.text)
    assert bare(again) == bare(statement), text
    if isinstance(statement, Insert) and (statement.rows or statement.fragments):
        check_both_ways(text[: statement.position + len(statement.text)], statement)


def check_both_ways(text: str, statement: Insert) -> None:
    """Check that the quick way of reading values and the slow one give the same."""
    start = next(
        t.stop for t in tokens_of(text) if t.start > statement.position and t.key in ("VALUES", "VALUE")
    )
    quick, slow = TokenCursor(text), TokenCursor(text)
    quick.jump(start)
    slow.jump(start)
    rows = _read_quickly(quick, None)
    slow_rows, slow_fragments = _read_slowly(slow, None)
    if rows is not None:
        assert slow_fragments is None, text
        assert [[(type(c), c) for c in row] for row in rows] == [
            [(type(c), c) for c in row] for row in slow_rows or ()
        ], text
        assert quick.parameter_count() == slow.parameter_count()
        assert (quick.token, quick.last_stop) == (slow.token, slow.last_stop), text
    assert (statement.rows is None) == (slow_rows is None), text


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=1.0)
    options.add_argument("--seed", type=int, default=None)
    chosen = options.parse_args()
    seed = random.SystemRandom().randrange(2**32) if chosen.seed is None else chosen.seed
    chance, stop = random.Random(seed), time.monotonic() + chosen.minutes * 60
    texts = valid = 0
    slowest = 0.0
    while time.monotonic() < stop:
        text = chance.choice(GENERATORS)(chance)
        began = time.monotonic()
        valid += check(text)
        took = time.monotonic() - began
        texts, slowest = texts + 1, max(slowest, took)
        if took > SLOWEST_SECONDS_MAX:
            print(f"seed {seed}: {took:.1f} s for {text[:200]!r}")
            return 1
    print(f"seed {seed}: {texts} texts, {valid} of them valid, the slowest took {slowest * 1000:.0f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
