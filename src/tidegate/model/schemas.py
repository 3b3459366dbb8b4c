"""Column types and schemas, and their Arrow form, both ways without loss.

JSON and UUID are text in Arrow, so that every reader of the files can show them; the field's metadata
(`tidegate.type`) distinguishes them from TEXT. A required column is a field that is not nullable.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from tidegate.errors import SchemaInvalid
from tidegate.model.names import shorten

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS_MAX = (
    2_000  # a row wider than this is a mistake upstream, and Delta statistics grow with every column
)
COLUMN_NAME_CHARS_MAX = 255  # far above real names, below what any reader of the files cuts off
DECIMAL_PRECISION_MAX = 38  # what fits in 128 bits, and the most that Spark, Delta and DuckDB take

_TYPE_MARK = b"tidegate.type"
_TYPE_NAMES = {
    *("BOOLEAN", "INT", "BIGINT", "DOUBLE", "DECIMAL", "TEXT", "BYTES", "JSON", "UUID", "DATE", "TIMESTAMP"),
}
_DECIMAL = re.compile(r"DECIMAL\s*\(\s*([0-9]{1,9})\s*(?:,\s*([0-9]{1,9})\s*)?\)")


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type of a column; `str` writes what `parse_type` reads. Only DECIMAL has precision and scale."""

    name: str
    precision: int = 0
    scale: int = 0

    BOOLEAN: ClassVar[ColumnType]
    INT: ClassVar[ColumnType]
    BIGINT: ClassVar[ColumnType]
    DOUBLE: ClassVar[ColumnType]
    TEXT: ClassVar[ColumnType]
    BYTES: ClassVar[ColumnType]
    JSON: ClassVar[ColumnType]
    UUID: ClassVar[ColumnType]
    DATE: ClassVar[ColumnType]
    TIMESTAMP: ClassVar[ColumnType]

    def __post_init__(self) -> None:
        if self.name not in _TYPE_NAMES:
            raise SchemaInvalid(reason=f"there is no type '{shorten(self.name)}'")
        if self.name != "DECIMAL":
            if self.precision or self.scale:
                raise SchemaInvalid(reason=f"{self.name} takes no precision")
            return
        if not 1 <= self.precision <= DECIMAL_PRECISION_MAX:
            raise SchemaInvalid(reason=f"{self} needs a precision from 1 to {DECIMAL_PRECISION_MAX}")
        if not 0 <= self.scale <= self.precision:
            raise SchemaInvalid(reason=f"{self} needs a scale from 0 to its precision")

    @classmethod
    def decimal(cls, precision: int, scale: int = 0) -> Self:
        """Return DECIMAL(precision, scale): that many digits, `scale` of them after the point."""
        return cls("DECIMAL", precision, scale)

    def __str__(self) -> str:
        return f"DECIMAL({self.precision},{self.scale})" if self.name == "DECIMAL" else self.name

    def to_arrow(self) -> pa.DataType:
        """Return the Arrow type that holds the values."""
        import pyarrow as pa

        if self.name == "DECIMAL":
            return pa.decimal128(self.precision, self.scale)
        return {
            "BOOLEAN": pa.bool_(),
            "INT": pa.int32(),
            "BIGINT": pa.int64(),
            "DOUBLE": pa.float64(),
            "TEXT": pa.string(),
            "BYTES": pa.binary(),
            "JSON": pa.string(),
            "UUID": pa.string(),
            "DATE": pa.date32(),
            "TIMESTAMP": pa.timestamp("us", tz="UTC"),
        }[self.name]


ColumnType.BOOLEAN = ColumnType("BOOLEAN")
ColumnType.INT = ColumnType("INT")
ColumnType.BIGINT = ColumnType("BIGINT")
ColumnType.DOUBLE = ColumnType("DOUBLE")
ColumnType.TEXT = ColumnType("TEXT")
ColumnType.BYTES = ColumnType("BYTES")
ColumnType.JSON = ColumnType("JSON")
ColumnType.UUID = ColumnType("UUID")
ColumnType.DATE = ColumnType("DATE")
ColumnType.TIMESTAMP = ColumnType("TIMESTAMP")


def parse_type(text: str) -> ColumnType:
    """Return the type of a name in SQL, in any case; INTEGER is INT, DECIMAL(p) is DECIMAL(p,0)."""
    word = text.strip().upper()
    if word == "INTEGER":
        return ColumnType.INT
    if word == "DECIMAL":
        raise SchemaInvalid(reason="DECIMAL needs its digits, such as DECIMAL(10,2)")
    matched = _DECIMAL.fullmatch(word)
    if matched:
        return ColumnType.decimal(int(matched[1]), int(matched[2] or 0))
    if word not in _TYPE_NAMES:
        raise SchemaInvalid(reason=f"there is no type '{shorten(text)}'")
    return ColumnType(word)


@dataclass(frozen=True, slots=True)
class Column:
    """A named column; `required` means that no row may lack a value. Names are any visible Unicode text."""

    name: str
    type: ColumnType
    required: bool = False

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise SchemaInvalid(reason="a column has no name")
        if len(self.name) > COLUMN_NAME_CHARS_MAX:
            raise SchemaInvalid(
                reason=f"column name '{shorten(self.name)}' is over {COLUMN_NAME_CHARS_MAX} characters"
            )
        # Control characters cannot be seen, and lone surrogates (Cs) have no UTF-8 form.
        if any(unicodedata.category(char) in ("Cc", "Cs") for char in self.name):
            raise SchemaInvalid(
                reason=f"column name {shorten(ascii(self.name))} has a character that is not text"
            )

    def to_arrow(self) -> pa.Field:
        """Return the Arrow field."""
        import pyarrow as pa

        marked = self.type in (ColumnType.JSON, ColumnType.UUID)
        metadata = {_TYPE_MARK: self.type.name.encode()} if marked else None
        return pa.field(self.name, self.type.to_arrow(), nullable=not self.required, metadata=metadata)

    @classmethod
    def from_arrow(cls, field: pa.Field) -> Self:
        """Return the column of a field; see `Schema.from_arrow`."""
        column_type = _unmarked_type(field)
        mark = (field.metadata or {}).get(_TYPE_MARK)
        if mark is not None:
            if column_type != ColumnType.TEXT or mark not in (b"JSON", b"UUID"):
                shown = shorten(mark.decode(errors="replace"))
                raise SchemaInvalid(
                    reason=f"column '{shorten(field.name)}' is {field.type} but is marked '{shown}'"
                )
            column_type = ColumnType(mark.decode())
        return cls(field.name, column_type, required=not field.nullable)


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a table, in order; names differ in more than case, as Spark, Delta and DuckDB ask."""

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        if not self.columns:
            raise SchemaInvalid(reason="it has no columns")
        if len(self.columns) > COLUMNS_MAX:
            raise SchemaInvalid(reason=f"it has {len(self.columns)} columns, and {COLUMNS_MAX} is the most")
        (name, count), *_ = Counter(column.name.lower() for column in self.columns).most_common(1)
        if count > 1:
            raise SchemaInvalid(
                reason=f"column '{shorten(name)}' is named {count} times (case does not count)"
            )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def to_arrow(self) -> pa.Schema:
        """Return the Arrow schema; `from_arrow` of it is an equal schema."""
        import pyarrow as pa

        return pa.schema([column.to_arrow() for column in self.columns])

    @classmethod
    def from_arrow(cls, schema: pa.Schema) -> Self:
        """Return the schema that holds every value of an Arrow schema, or raise SchemaInvalid.

        Narrower types are widened (int16 is INT, float is DOUBLE, a timestamp without a zone is UTC); a type
        that could lose a value, such as nanoseconds or uint64, is refused. Foreign metadata is ignored.
        """
        return cls(tuple(Column.from_arrow(field) for field in schema))


def _unmarked_type(field: pa.Field) -> ColumnType:
    import pyarrow as pa

    kind = field.type
    taken = {
        ColumnType.BOOLEAN: (pa.bool_(),),
        ColumnType.INT: (pa.int32(), pa.int16(), pa.int8(), pa.uint16(), pa.uint8()),
        ColumnType.BIGINT: (pa.int64(), pa.uint32()),
        ColumnType.DOUBLE: (pa.float64(), pa.float32(), pa.float16()),
        ColumnType.TEXT: (pa.string(), pa.large_string(), pa.string_view()),
        ColumnType.BYTES: (pa.binary(), pa.large_binary(), pa.binary_view()),
        ColumnType.DATE: (pa.date32(),),
    }
    for column_type, kinds in taken.items():
        if kind in kinds:
            return column_type
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return ColumnType.TIMESTAMP
    if pa.types.is_decimal(kind):
        return ColumnType.decimal(kind.precision, kind.scale)  # refuses what does not fit
    hint = "Cast it first; docs/reference/types.md lists the Arrow types that are taken."
    raise SchemaInvalid(
        reason=f"column '{shorten(field.name)}' has Arrow type {kind}, which no column type holds", hint=hint
    )
