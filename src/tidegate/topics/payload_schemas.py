"""Payload schemas: the columns of the tables that feed a topic, by the number that record batches name.

    TOPIC_SCHEMA | topic id u64 | number u16 → the schema as JSON

A routed payload is values without names, and its record batch names the schema of the topic under which they
were written. A schema is stored as long as its topic, so messages stay readable after columns were added to
the table and after the table is dropped.
"""

from __future__ import annotations

import msgspec

from tidegate.errors import RequestInvalid, StorageCorrupt
from tidegate.model.tables import Table, TableColumn
from tidegate.storage.engine import KeyRange, Reader
from tidegate.storage.group_commit import Staging
from tidegate.storage.keys import KeySpace, join, prefix_range, read_u16, read_u64, u16, u64
from tidegate.storage.versions import decode_versioned

SCHEMA_VERSION = 1
NUMBER_MAX = 0xFFFF  # the header of a record batch has two bytes for it
_NUMBER_AT = 9


class PayloadSchema(msgspec.Struct, frozen=True):
    """The columns of a table at one version of its schema, with their number in one topic."""

    number: int
    table_id: int
    schema_id: int
    source: str
    columns: tuple[TableColumn, ...]
    primary_key: tuple[str, ...]
    created_us: int
    version: int = SCHEMA_VERSION


def schema_key(topic_id: int, number: int) -> bytes:
    """Return the key of one schema of a topic."""
    return join(KeySpace.TOPIC_SCHEMA, u64(topic_id), u16(number))


def schema_range(topic_id: int | None = None) -> KeyRange:
    """Return the keys of all schemas of a topic, or of all topics."""
    return prefix_range(join(KeySpace.TOPIC_SCHEMA, b"" if topic_id is None else u64(topic_id)))


class PayloadSchemas:
    """The schemas of all topics. Numbers are assigned on the committer's thread; reads are for any.

    Reads are from memory; a schema is visible once it is durable, before the messages written under it.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._by_topic: dict[int, dict[int, PayloadSchema]] = {}
        self._numbers: dict[tuple[int, int, int], int] = {}
        self.reload()

    def reload(self) -> None:
        """Read every schema again: the engine was reopened, and the disk decides."""
        by_topic: dict[int, dict[int, PayloadSchema]] = {}
        for key, value in self._reader.scan(schema_range()):
            schema = _decoded(key, value)
            by_topic.setdefault(read_u64(key, 1), {})[schema.number] = schema
        self._numbers = {
            (topic_id, schema.table_id, schema.schema_id): schema.number
            for topic_id, schemas in by_topic.items()
            for schema in schemas.values()
        }
        self._by_topic = by_topic

    def forget(self, topic_id: int) -> None:
        """Drop the schemas of a topic that is gone."""
        for schema in self._by_topic.pop(topic_id, {}).values():
            self._numbers.pop((topic_id, schema.table_id, schema.schema_id), None)

    def get(self, topic_id: int, number: int) -> PayloadSchema:
        """Return one schema of a topic; raise StorageCorrupt when messages name one that is missing."""
        schema = self._by_topic.get(topic_id, {}).get(number)
        if schema is not None:
            return schema
        key = schema_key(topic_id, number)
        stored = self._reader.get(key)
        if stored is None:
            raise StorageCorrupt(place=f"topic {topic_id}", reason=f"payload schema {number} is missing")
        return _decoded(key, stored)

    def of(self, topic_id: int) -> list[PayloadSchema]:
        """Return the schemas of a topic, oldest first."""
        return sorted(self._by_topic.get(topic_id, {}).values(), key=lambda schema: schema.number)

    def stage_number(self, staging: Staging, topic_id: int, table: Table, now_us: int) -> int:
        """Return the number of a table's columns in a topic; the first time, write them with the rows."""
        known = self._numbers.get((topic_id, table.id, table.schema_id))
        if known is not None:
            return known
        number = max(self._by_topic.get(topic_id, {}), default=0)
        # Changes before this one in the same group may have taken numbers that are not durable yet.
        while number < NUMBER_MAX:
            number += 1
            key = schema_key(topic_id, number)
            stored = staging.get(key)
            if stored is None:
                return self._stage_new(staging, topic_id, _schema_of(number, table, now_us))
            schema = _decoded(key, stored)
            if (schema.table_id, schema.schema_id) == (table.id, table.schema_id):
                return number
        reason = f"The topic has seen {NUMBER_MAX} shapes of tables, and its messages can name no more."
        raise RequestInvalid(reason=reason, hint="Make another topic, and route the table there.")

    def _stage_new(self, staging: Staging, topic_id: int, schema: PayloadSchema) -> int:
        staging.put(schema_key(topic_id, schema.number), msgspec.json.encode(schema))
        staging.when_durable(lambda: self._remember(topic_id, schema))
        return schema.number

    def _remember(self, topic_id: int, schema: PayloadSchema) -> None:
        # A new dict, so that a reader on another thread never iterates over one that changes.
        self._by_topic[topic_id] = {**self._by_topic.get(topic_id, {}), schema.number: schema}
        self._numbers[topic_id, schema.table_id, schema.schema_id] = schema.number


def _schema_of(number: int, table: Table, now_us: int) -> PayloadSchema:
    return PayloadSchema(
        number, table.id, table.schema_id, table.full_name, table.columns, table.primary_key, now_us
    )


def _decoded(key: bytes, value: bytes) -> PayloadSchema:
    number = read_u16(key, _NUMBER_AT)
    place = f"payload schema {number} of topic {read_u64(key, 1)}"
    schema = decode_versioned(value, PayloadSchema, SCHEMA_VERSION, place)
    if schema.number != number:
        raise StorageCorrupt(place=place, reason=f"it says that it is number {schema.number}")
    return schema
