"""DDL: takes column lists as Spark writes them ("user_id string, n long"), gives Arrow schemas."""

from __future__ import annotations

import re

import pyarrow as pa

from tidegate.errors import SchemaInvalid

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*')|(\w+)|([<>(),:]))")

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
_DECIMAL_DEFAULT = (10, 0)
_DECIMAL_DIGITS_MAX = 38
_MARKS = ("<", ">", "(", ")", ",", ":")


def schema_of_ddl(ddl: str) -> pa.Schema:
    """Return the schema that DDL text names; SchemaInvalid with the place where it cannot be read."""
    reader = _Reader(ddl)
    fields = reader.fields(until="")
    twice = {field.name for field in fields if sum(other.name == field.name for other in fields) > 1}
    if twice:
        raise SchemaInvalid(reason=f"'{ddl}' names a column twice: {', '.join(sorted(twice))}")
    return pa.schema(fields)


class _Reader:
    """Reads the tokens of one DDL text from left to right."""

    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._tokens = self._split()
        self._at = 0

    def _split(self) -> list[str]:
        tokens, at = [], 0
        text = self._ddl.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise SchemaInvalid(reason=f"'{self._ddl}' cannot be read from '{text[at:]}' on")
            tokens.append(found.group().strip())
            at = found.end()
        return tokens

    def fields(self, until: str) -> list[pa.Field]:
        fields = [self._field()]
        while self._next_is(","):
            fields.append(self._field())
        if self._peek() != until:
            raise self._wrong(f"a comma or {until or 'the end'}")
        self._at += 1
        return fields

    def _field(self) -> pa.Field:
        name = self._take("a column's name")
        name = name[1:-1].replace("``", "`") if name.startswith("`") else name
        self._next_is(":")
        kind = self._type()
        is_nullable = True
        if self._next_is("not"):
            if not self._next_is("null"):
                raise self._wrong("NULL after NOT")
            is_nullable = False
        if self._next_is("comment"):
            self._take("the comment")
        return pa.field(name, kind, nullable=is_nullable)

    def _type(self) -> pa.DataType:
        word = self._take("a type").lower()
        if word in _PLAIN:
            return _PLAIN[word]
        if word in ("decimal", "dec", "numeric"):
            return self._decimal()
        if word in ("varchar", "char", "character"):
            self._numbers()
            return pa.string()
        if word in ("array", "map", "struct"):
            return self._nested(word)
        self._at -= 1
        raise self._wrong("a type that Spark knows")

    def _nested(self, word: str) -> pa.DataType:
        self._expect("<")
        if word == "struct":
            return pa.struct(self.fields(until=">"))
        first = self._type()
        if word == "array":
            self._expect(">")
            return pa.list_(first)
        self._expect(",")
        second = self._type()
        self._expect(">")
        return pa.map_(first, second)

    def _decimal(self) -> pa.DataType:
        precision, scale = (
            [*self._numbers(), *_DECIMAL_DEFAULT[1:]][:2] if self._peek() == "(" else _DECIMAL_DEFAULT
        )
        if not (0 < precision <= _DECIMAL_DIGITS_MAX and 0 <= scale <= precision):
            raise self._wrong(f"a decimal of at most {_DECIMAL_DIGITS_MAX} digits before")
        return pa.decimal128(precision, scale)

    def _numbers(self) -> list[int]:
        self._expect("(")
        numbers = [self._number()]
        while self._next_is(","):
            numbers.append(self._number())
        self._expect(")")
        return numbers

    def _number(self) -> int:
        if not self._peek().isdigit():
            raise self._wrong("a number")
        return int(self._take("a number"))

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next_is(self, word: str) -> bool:
        found = self._peek().lower() == word
        self._at += found
        return found

    def _expect(self, word: str) -> None:
        if not self._next_is(word):
            raise self._wrong(f"'{word}'")

    def _take(self, wanted: str) -> str:
        token = self._peek()
        if not token or token in _MARKS:
            raise self._wrong(wanted)
        self._at += 1
        return token

    def _wrong(self, wanted: str) -> SchemaInvalid:
        found = f"'{self._peek()}'" if self._peek() else "the end"
        return SchemaInvalid(reason=f"'{self._ddl}' has {found} where {wanted} belongs")
