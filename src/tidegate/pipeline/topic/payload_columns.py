"""The payloads of messages as typed columns: each payload is a JSON object, whose fields are the columns.

The columns are those of the topic's newest payload schema, or of a Spark schema that the query names. A
field that is missing is null; one that the schema does not have is left out. All payloads of a batch are
decoded in one call. Where that fails, the batch is halved until the payload that does not fit is found.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark_types

from tidegate.errors import RequestInvalid, TidegateError
from tidegate.model.names import shorten
from tidegate.model.schemas import parse_type
from tidegate.model.times import parse_time
from tidegate.pipeline.topic.client import ServerClient, topic_path, with_hint_note
from tidegate.pipeline.topic.options import SourceOptions
from tidegate.pipeline.topic.range_reader import SOURCE_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

# Marks a column that holds JSON, whatever its value is, as its text.
JSON_MARK = "tidegate.json"
_HINT = 'Name the columns: .option("payloadSchema", "customer STRING, amount DOUBLE").'
_PLAIN: dict[type[DataType], Any] = {
    spark_types.StringType: str,
    spark_types.BooleanType: bool,
    spark_types.ByteType: int,
    spark_types.ShortType: int,
    spark_types.IntegerType: int,
    spark_types.LongType: int,
    spark_types.FloatType: float,
    spark_types.DoubleType: float,
    spark_types.DecimalType: Decimal,
    spark_types.BinaryType: bytes,
    spark_types.DateType: datetime.date,
    spark_types.TimestampType: datetime.datetime,
    spark_types.TimestampNTZType: datetime.datetime,
}
# Times as text become a column in one step; datetimes of Python one by one.
_TIMES = (spark_types.TimestampType, spark_types.TimestampNTZType)

log = logging.getLogger(__name__)


def columns_schema(settings: SourceOptions) -> StructType | str:
    """Return the columns of payloads, then those of the message itself; Spark parses the text of a schema."""
    own = spark_schema(
        pa.schema([pa.field(name, SOURCE_SCHEMA.field(name[1:]).type) for name in settings.columns])
    )
    if settings.payload_schema is not None:
        mine = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in own)
        return f"{settings.payload_schema.strip().rstrip(',')}, {mine}"
    fields = [_field(column) for column in _newest_columns(settings)]
    for field in fields:
        if field.name.lower() in settings.columns:
            reason = f"The payloads have a column '{field.name}', as messages have"
            raise with_hint_note(
                RequestInvalid(
                    reason=reason, hint="Name fewer with the option columns, or read the payload as text."
                )
            )
    return spark_types.StructType([*fields, *own])


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark form of an Arrow schema."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def _newest_columns(settings: SourceOptions) -> list[Mapping[str, str]]:
    client = ServerClient(settings.location, settings.retry_seconds)
    schemas = client.get_json(topic_path(settings.topic, "").rstrip("/")).get("schemas") or []
    if not schemas:
        reason = f"Topic '{settings.topic}' has no payload schema: no table was routed into it yet"
        raise with_hint_note(RequestInvalid(reason=reason, hint=_HINT))
    newest = max(schemas, key=lambda schema: int(schema["number"]))
    return list(newest["columns"])


def _field(column: Mapping[str, str]) -> spark_types.StructField:
    from pyspark.sql.pandas.types import from_arrow_type

    kind = parse_type(column["type"])
    marks = {JSON_MARK: True} if kind.name == "JSON" else {}
    return spark_types.StructField(column["name"], from_arrow_type(kind.to_arrow()), True, marks)


# What a payload raises that does not fit; one nested too deep is a RecursionError.
_MISFITS = (
    *(msgspec.DecodeError, pa.ArrowException, TidegateError),
    *(ValueError, OverflowError, RecursionError),
)


class PayloadColumns:
    """Decodes the payloads of batches of messages into columns."""

    def __init__(self, settings: SourceOptions, schema: StructType) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._settings = settings
        self.schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        count = len(schema.fields) - len(settings.columns)
        self._fields = list(schema.fields)[:count]
        self._types = [field.type for field in self.schema][:count]
        self._names = [f"c{number}" for number in range(count)]
        self._get = attrgetter(*self._names) if count > 1 else lambda row: (row.c0,)
        self._decode = self._decoder(loose=False)
        self._decode_loose = self._decoder(loose=True)

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of the payloads of a batch, and the selected ones of the messages."""
        payloads = batch.column("payload").cast(pa.binary()).to_pylist()
        if pc.any(pc.equal(batch.column("payload_mode"), "diff")).as_py():
            reason = f"Topic '{self._settings.topic}' has messages whose payload is a diff, not a row"
            raise with_hint_note(
                RequestInvalid(reason=reason, hint="Read the payload as text, or route with payload 'full'.")
            )
        mine = self._arrays(batch, payloads, 0)
        own = [batch.column(name[1:]) for name in self._settings.columns]
        return pa.RecordBatch.from_arrays([*mine, *own], schema=self.schema)

    def _arrays(self, batch: pa.RecordBatch, payloads: Sequence[bytes], start: int) -> list[pa.Array]:
        try:
            return self._converted(payloads)
        except _MISFITS as problem:
            if len(payloads) == 1:
                return self._bad(batch, start, problem)
        middle = len(payloads) // 2
        first = self._arrays(batch, payloads[:middle], start)
        second = self._arrays(batch, payloads[middle:], start + middle)
        return [pa.concat_arrays(pair) for pair in zip(first, second, strict=True)]

    def _bad(self, batch: pa.RecordBatch, index: int, problem: Exception) -> list[pa.Array]:
        """Refuse a payload that does not fit, or return nulls for it where the options say so."""
        partition, offset = batch.column("partition")[index], batch.column("offset")[index]
        error = shorten(str(problem))
        if self._settings.bad_payload == "fail":
            message = f"Topic '{self._settings.topic}', partition {partition}, offset {offset}"
            reason = f"{message}: the payload does not fit the columns: {error}"
            hint = "With the option badPayload 'null' its columns are null; payload 'text' gives it as it is."
            raise with_hint_note(RequestInvalid(reason=reason, hint=hint)) from None
        log.warning(
            "payload does not fit the columns topic=%s partition=%s offset=%s error=%r",
            *(self._settings.topic, partition, offset, error),
        )
        return [pa.nulls(1, kind) for kind in self._types]

    def _converted(self, payloads: Sequence[bytes]) -> list[pa.Array]:
        joined = b"[" + b",".join(payloads) + b"]"
        try:
            rows, loose = self._decode.decode(joined), False
        except msgspec.ValidationError:
            rows, loose = self._decode_loose.decode(joined), True
        if len(rows) != len(payloads):
            raise ValueError("the payload is not one JSON value")
        columns = zip(*map(self._get, rows), strict=True)
        triples = zip(columns, self._fields, self._types, strict=True)
        return [_array(values, field, kind, loose=loose) for values, field, kind in triples]

    def _decoder(self, *, loose: bool) -> msgspec.json.Decoder[Any]:
        fields = [
            (name, _top_type(field, loose=loose), None)
            for name, field in zip(self._names, self._fields, strict=True)
        ]
        rename = dict(zip(self._names, (field.name for field in self._fields), strict=True))
        row = msgspec.defstruct("Row", fields, rename=rename, gc=False)
        return msgspec.json.Decoder(list[row])  # type: ignore[valid-type]


def _top_type(field: spark_types.StructField, *, loose: bool) -> Any:
    kind = field.dataType
    if isinstance(kind, spark_types.StringType) and (loose or field.metadata.get(JSON_MARK)):
        return msgspec.Raw  # accepts null, too; in a union with None it would accept nothing else
    return (str if isinstance(kind, _TIMES) else _python_type(kind, field.name)) | None


def _python_type(kind: DataType, name: str) -> Any:
    """Return the Python type into which msgspec decodes a Spark type."""
    plain = _PLAIN.get(type(kind))
    if plain is not None:
        return plain
    if isinstance(kind, spark_types.ArrayType):
        return list[_python_type(kind.elementType, name) | None]  # type: ignore[misc]
    if isinstance(kind, spark_types.MapType) and isinstance(kind.keyType, spark_types.StringType):
        return dict[str, _python_type(kind.valueType, name) | None]  # type: ignore[misc]
    if isinstance(kind, spark_types.StructType):
        inner = {field.name: _python_type(field.dataType, name) | None for field in kind.fields}
        return TypedDict("Inner", inner, total=False)  # type: ignore[operator]
    reason = f"Column '{name}' has the type {kind.simpleString()}, which a JSON payload cannot fill"
    raise with_hint_note(RequestInvalid(reason=reason, hint="Read it as STRING and convert it in Spark."))


def _array(
    values: Sequence[Any], field: spark_types.StructField, kind: pa.DataType, *, loose: bool
) -> pa.Array:
    if isinstance(field.dataType, _TIMES):
        return _moments(values, kind)
    if isinstance(field.dataType, spark_types.StringType):
        if field.metadata.get(JSON_MARK):
            return pa.array([_json_text(value) for value in values], kind)
        if loose:
            return pa.array([_text(value) for value in values], kind)
    return pa.array(values, kind)


def _moments(values: Sequence[str | None], kind: pa.TimestampType) -> pa.Array:
    try:
        return pa.array(values, pa.string()).cast(kind)
    except (
        pa.ArrowInvalid
    ):  # a time without a zone, or with one where the type has none: both are read as UTC
        moments = [None if value is None else parse_time(value) for value in values]
        return pa.array(moments, pa.int64()).cast(kind)


def _json_text(value: msgspec.Raw | None) -> str | None:
    text = None if value is None else bytes(value).decode()
    return None if text == "null" else text


def _text(value: msgspec.Raw | None) -> str | None:
    """Return text as it is, and every other JSON value as its text."""
    text = _json_text(value)
    return msgspec.json.decode(text, type=str) if text is not None and text.startswith('"') else text
