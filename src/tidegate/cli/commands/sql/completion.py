"""Completion of SQL statements at the prompt. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tidegate.sql.parser.lexer import OPEN, tokens_of

_KEYWORDS = """
    SELECT FROM WHERE GROUP BY ORDER HAVING LIMIT OFFSET LAST DISTINCT AS AND OR NOT IN IS NULL LIKE ILIKE
    BETWEEN CASE WHEN THEN ELSE END CAST JOIN LEFT RIGHT FULL INNER CROSS ON USING UNION ALL EXCEPT INTERSECT
    WITH VALUES INSERT INTO UPSERT UPDATE SET DELETE CREATE NAMESPACE USER SHARED STREAM TABLE INDEX IF EXISTS
    PRIMARY KEY DEFAULT NOW() SNOWFLAKE_ID() UUID_V7() ALTER ADD COLUMN DROP SHOW TABLES NAMESPACES DESCRIBE
    EXPLAIN EXECUTE BOOLEAN INT BIGINT DOUBLE DECIMAL TEXT BYTES JSON UUID DATE TIMESTAMP TRUE FALSE ASC DESC
    COUNT SUM AVG MIN MAX COALESCE TTL_SECONDS DURABILITY
    TOPIC TOPICS PARTITIONS PARTITION SOURCE RETENTION RETENTION_SECONDS RETENTION_MAX_BYTES PAYLOAD CONSUME
    CONSUMER GROUPS MEMBER WAIT LEASE LEASES EARLIEST LATEST AFTER ACK UPTO NACK DELAY REASON EXTEND PUBLISH
    PRODUCER SEQUENCE RESET CLEAR
"""
KEYWORDS = tuple(_KEYWORDS.split())
# A table follows these.
BEFORE_TABLES = frozenset({"FROM", "JOIN", "INTO", "UPDATE", "TABLE", "DESCRIBE", "DESC", "ON", "SOURCE"})
# A topic follows these at the beginning of a statement, and TOPIC anywhere.
BEFORE_TOPICS = (("CONSUME", "FROM"), ("PUBLISH", "INTO"), ("ACK",), ("NACK",), ("EXTEND",))
_TYPED = re.compile(r"[\w.]*\Z")
_SHORT = re.compile(r"\\d\s+[\w.]*\Z")

# A word, what it is, and how many typed characters it replaces.
Offer = tuple[str, str, int]


@dataclass(frozen=True)
class CompletionSchema:
    """The columns of every table, by its full name, and the names of the topics."""

    tables: Mapping[str, Sequence[str]]
    topics: Sequence[str] = ()

    @cached_property
    def namespaces(self) -> list[str]:
        """The namespaces that have tables."""
        return sorted({name.partition(".")[0] for name in self.tables})


class KnownNames:
    """A schema that is fetched when it is first needed, and again after `forget`."""

    def __init__(self, fetch: Callable[[], CompletionSchema]) -> None:
        self._fetch = fetch
        self._schema: CompletionSchema | None = None

    def now(self) -> CompletionSchema:
        """Return the schema."""
        if self._schema is None:
            self._schema = self._fetch()
        return self._schema

    def forget(self) -> None:
        """Fetch it again next time."""
        self._schema = None


def completions(before: str, whole: str, schema: CompletionSchema) -> Iterator[Offer]:
    """Yield what may replace the word before the cursor, the likeliest first."""
    typed = match[0] if (match := _TYPED.search(before)) else ""
    tokens = list(tokens_of(before[: len(before) - len(typed)]))
    if tokens and tokens[-1].kind == OPEN:
        return  # inside a text
    words = [before[token.start : token.stop] for token in tokens]
    offered: set[str] = set()
    for word, kind in _candidates(typed, words, whole, schema, _SHORT.search(before) is not None):
        if word.lower().startswith(typed.lower()) and word.lower() not in offered:
            offered.add(word.lower())
            yield word, kind, len(typed)


def _candidates(
    typed: str, words: Sequence[str], whole: str, schema: CompletionSchema, short: bool
) -> Iterator[tuple[str, str]]:
    named = _named_tables(whole, schema)
    front, dot, _ = typed.rpartition(".")
    if _expects_topic(words):
        yield from ((name, "topic") for name in schema.topics)
        return
    if dot and front.lower() in named:
        yield from ((f"{front}.{column}", "column") for column in schema.tables[named[front.lower()]])
    last = words[-1].upper() if words else ""
    is_operation = last == "ON" and "SOURCE" in (word.upper() for word in words[-6:])
    if dot or short or (last in BEFORE_TABLES and not is_operation):
        yield from ((name, "table") for name in schema.tables)
        if not dot:
            yield from ((f"{name}.", "namespace") for name in schema.namespaces)
        return
    if words:
        columns = {column: "column" for table in named.values() for column in schema.tables[table]}
        yield from columns.items()
    small = typed.islower()
    yield from ((word.lower() if small else word, "keyword") for word in KEYWORDS)
    if words:
        yield from ((name, "table") for name in schema.tables)


def _expects_topic(words: Sequence[str]) -> bool:
    """Return whether the name of a topic follows these words."""
    ends = [index for index, word in enumerate(words) if word == ";"]
    statement = tuple(word.upper() for word in words[ends[-1] + 1 if ends else 0 :])
    if not statement:
        return False
    return (
        statement[-1] == "TOPIC"
        or statement in BEFORE_TOPICS
        or (statement[-1] == "ON" and "CONSUMER" in statement[:2])
    )


def _named_tables(whole: str, schema: CompletionSchema) -> dict[str, str]:
    """Return the tables that a text names, by their names and by their aliases."""
    found: dict[str, str] = {}
    small = {name.lower(): name for name in schema.tables}
    words = [whole[token.start : token.stop] for token in tokens_of(whole)]
    for index in range(len(words) - 2):
        name = small.get(f"{words[index]}.{words[index + 2]}".lower()) if words[index + 1] == "." else None
        if name is None:
            continue
        found[name.lower()] = name
        found[name.partition(".")[2].lower()] = name
        rest = [word for word in words[index + 3 : index + 5] if word.upper() != "AS"]
        if rest and rest[0].isidentifier() and rest[0].upper() not in KEYWORDS:
            found[rest[0].lower()] = name
    return found
