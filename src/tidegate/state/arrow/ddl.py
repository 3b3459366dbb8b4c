"""Arrow schemas of DDL text: column lists as Spark writes them ("user_id string, n long").

    columns   column, …
    column    name [:] type [NOT NULL] [COMMENT 'text']
    type      plain | decimal[(p[, s])] | varchar(n) | array<type> | map<type, type> | struct<columns>

A name in backticks may have any character, a doubled backtick for one. The parser is written by hand and not
taken from sqlglot: an error names the token that is wrong and what belongs there, and types that only other
databases have (`text`, `int[]`) are refused as Spark refuses them.
"""

from __future__ import annotations

import re
from collections import Counter

import pyarrow as pa

from tidegate.errors import SchemaInvalid

# Deeper types than this are mistakes; Python's stack would end at a few hundred.
NESTING_MAX = 100
# An error repeats no more of a text than this.
SHOWN_CHARS_MAX = 1_000
_DECIMAL_DIGITS_MAX = 38
_DECIMAL_DEFAULT = (10, 0)

_TOKEN = re.compile(r"\s*(?:(?P<name>`(?:[^`]|``)+`)|(?P<text>'(?:[^'\\]|\\.)*')|(?P<word>\w+)|[<>(),:])")

TIMESTAMP = pa.timestamp("us", tz="UTC")

_PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ltz": TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
}


def schema_of_ddl(ddl: str) -> pa.Schema:
    """Return the schema that DDL text describes; SchemaInvalid names the token that cannot be read."""
    fields = _Parser(ddl).fields(until="")
    twice = sorted(name for name, count in Counter(field.name for field in fields).items() if count > 1)
    if twice:
        raise SchemaInvalid(reason=f"'{_shown(ddl)}' names a column twice: {', '.join(twice)}")
    return pa.schema(fields)


class _Parser:
    """A recursive descent over the tokens of one DDL text."""

    def __init__(self, ddl: str) -> None:
        self._ddl = _shown(ddl)
        self._tokens: list[tuple[str | None, str]] = []  # kind (None: a mark) and text
        self._at = 0
        self._nesting = 0
        at, end = 0, len(ddl.rstrip())
        while at < end:
            found = _TOKEN.match(ddl, at, end)
            if found is None:
                raise SchemaInvalid(reason=f"'{self._ddl}' cannot be read from '{_shown(ddl[at:end])}' on")
            self._tokens.append((found.lastgroup, found.group().strip()))
            at = found.end()
        self._tokens.append((None, ""))

    def fields(self, until: str) -> list[pa.Field]:
        fields = [self._field()]
        while self._skip(","):
            fields.append(self._field())
        if not self._skip(until):
            raise self._wrong(f"a comma or {until or 'the end'}")
        return fields

    def _field(self) -> pa.Field:
        name = self._take("a column's name", "name", "word")
        name = name[1:-1].replace("``", "`") if name.startswith("`") else name
        self._skip(":")
        data_type = self._type()
        is_required = self._skip("not")
        if is_required and not self._skip("null"):
            raise self._wrong("NULL after NOT")
        if self._skip("comment"):
            self._take("the comment", "text")
        return pa.field(name, data_type, nullable=not is_required)

    def _type(self) -> pa.DataType:
        word = self._take("a type", "name", "word", "text").lower()
        if word in _PLAIN:
            return _PLAIN[word]
        if word in ("decimal", "dec", "numeric"):
            return self._decimal()
        if word in ("varchar", "char", "character"):
            self._numbers(count_max=1)
            return pa.string()
        self._at -= 1
        if word not in ("array", "map", "struct"):
            raise self._wrong("a type that Spark knows")
        if self._nesting == NESTING_MAX:
            raise self._wrong(f"a type of at most {NESTING_MAX} levels")
        self._at += 1
        self._nesting += 1
        nested = self._nested(word)
        self._nesting -= 1
        return nested

    def _nested(self, word: str) -> pa.DataType:
        self._expect("<")
        if word == "struct":
            return pa.struct(self.fields(until=">"))
        parts = [self._type()]
        if word == "map":
            self._expect(",")
            parts.append(self._type())
        self._expect(">")
        return pa.map_(*parts) if word == "map" else pa.list_(*parts)

    def _decimal(self) -> pa.DataType:
        numbers = self._numbers(count_max=2) if self._text() == "(" else []
        precision, scale = *numbers, *_DECIMAL_DEFAULT[len(numbers) :]
        if not (0 < precision <= _DECIMAL_DIGITS_MAX and scale <= precision):
            raise self._wrong(f"a decimal of at most {_DECIMAL_DIGITS_MAX} digits before")
        return pa.decimal128(precision, scale)

    def _numbers(self, count_max: int) -> list[int]:
        numbers: list[int] = []
        self._expect("(")
        while not numbers or (len(numbers) < count_max and self._skip(",")):
            if re.fullmatch("[0-9]{1,9}", self._text()) is None:
                raise self._wrong("a number")
            numbers.append(int(self._take("a number", "word")))
        self._expect(")")
        return numbers

    def _text(self) -> str:
        return self._tokens[self._at][1]

    def _skip(self, word: str) -> bool:
        """Return whether the next token is this one, and go past it then."""
        is_next = self._text().lower() == word
        self._at += is_next
        return is_next

    def _expect(self, mark: str) -> None:
        if not self._skip(mark):
            raise self._wrong(f"'{mark}'")

    def _take(self, expected: str, *kinds: str) -> str:
        kind, text = self._tokens[self._at]
        if kind not in kinds:
            raise self._wrong(expected)
        self._at += 1
        return text

    def _wrong(self, expected: str) -> SchemaInvalid:
        found = f"'{_shown(self._text())}'" if self._text() else "the end"
        return SchemaInvalid(reason=f"'{self._ddl}' has {found} where {expected} belongs")


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[: SHOWN_CHARS_MAX - 1]}…"
