"""The directory of table definitions, of all three kinds of tables, each under its own id.

An id is never used twice, so a table that is dropped and created again shares nothing with the old one. Names
belong to tenants. Reads are from memory; a change is visible once it is durable, and ends its group commit:
on the committer's thread the memory is therefore always equal to the disk.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

import msgspec

from tidegate.errors import (
    ColumnExists,
    IndexExists,
    IndexNotFound,
    NamespaceExists,
    NamespaceNotEmpty,
    NamespaceNotFound,
    RequestInvalid,
    SchemaInvalid,
    TableExists,
    TableNotFound,
)
from tidegate.model.names import check_table_name, shorten
from tidegate.model.quotas import TenantQuotas, Unlimited, check_count
from tidegate.model.schemas import COLUMNS_MAX
from tidegate.model.tables import (
    DEFINITION_VERSION,
    Durability,
    Table,
    TableColumn,
    TableIndex,
    TableKind,
    check_namespace,
)
from tidegate.storage.engine import Reader
from tidegate.storage.group_commit import Staging
from tidegate.storage.keys import read_u64, u64
from tidegate.storage.row_codec import SCHEMA_ID_MAX
from tidegate.storage.versions import decode_versioned
from tidegate.tables import keys
from tidegate.tables.index_build import fill_chunk
from tidegate.tables.layout import TableLayouts
from tidegate.tables.validation import (
    INDEXES_MAX,
    NAMESPACES_MAX,
    TABLES_MAX,
    NewTable,
    check_column,
    check_key,
    check_table,
    check_ttl,
    near_names,
)


class _Namespace(msgspec.Struct, frozen=True):
    """The stored definition of a namespace."""

    tenant: str
    name: str
    version: int = DEFINITION_VERSION


class TableDirectory:
    """All tables by tenant and name. Changes are staged on the committer's thread; any thread may read."""

    def __init__(self, reader: Reader, quotas: TenantQuotas | None = None) -> None:
        self._reader = reader
        self._quotas = quotas or Unlimited()
        self._layouts = TableLayouts()
        self._by_name: dict[tuple[str, str, str], Table] = {}
        self._by_id: dict[int, Table] = {}
        self._namespaces: set[tuple[str, str]] = set()
        self.reload()

    def reload(self) -> None:
        """Read all definitions again, after the engine was reopened: the disk decides."""
        found = [decode_table(key, value) for key, value in self._reader.scan(keys.definition_range())]
        self._by_name = {(table.tenant, table.namespace, table.name): table for table in found}
        self._by_id = {table.id: table for table in found}
        place = "the definition of a namespace"
        stored = [value for _, value in self._reader.scan(keys.namespace_range())]
        spaces = [decode_versioned(value, _Namespace, DEFINITION_VERSION, place) for value in stored]
        self._namespaces = {(space.tenant, space.name) for space in spaces}

    def __iter__(self) -> Iterator[Table]:
        """Return an iterator over the tables of all tenants, by tenant, namespace and name."""
        return iter(sorted(self._by_id.values(), key=_name_order))

    def __len__(self) -> int:
        return len(self._by_id)

    def of(self, tenant: str) -> list[Table]:
        """Return the tables of a tenant, by namespace and name."""
        return [table for table in self if table.tenant == tenant]

    def count(self, tenant: str) -> int:
        """Return the number of tables of a tenant."""
        return sum(table.tenant == tenant for table in list(self._by_id.values()))

    def namespaces(self, tenant: str) -> list[str]:
        """Return the namespaces of a tenant, by name."""
        return sorted(name for owner, name in list(self._namespaces) if owner == tenant)

    def by_id(self, table_id: int) -> Table | None:
        """Return the current definition of a table; None where it was dropped."""
        return self._by_id.get(table_id)

    def find(self, tenant: str, namespace: str, name: str) -> Table | None:
        """Return a table by name, or None."""
        return self._by_name.get((tenant, namespace, name))

    def get(self, tenant: str, namespace: str, name: str) -> Table:
        """Return a table by name; TableNotFound lists the names that are most similar."""
        table = self._by_name.get((tenant, namespace, name))
        if table is not None:
            return table
        self._check_namespace_known(tenant, namespace)
        full_name = shorten(f"{namespace}.{name}")
        known = near_names(full_name, (each.full_name for each in self.of(tenant)))
        raise TableNotFound(table=full_name, known=known)

    def stage_create_namespace(self, staging: Staging, tenant: str, name: str) -> None:
        """Create a namespace; NamespaceExists for a name that is taken."""
        check_namespace(name)
        if (tenant, name) in self._namespaces:
            raise NamespaceExists(namespace=name)
        if len(self.namespaces(tenant)) >= NAMESPACES_MAX:
            raise RequestInvalid(reason=f"There are {NAMESPACES_MAX} namespaces, and no tenant has more.")
        staging.put(keys.namespace_key(tenant, name), msgspec.json.encode(_Namespace(tenant, name)))
        staging.when_durable(lambda: self._namespaces.add((tenant, name)))
        # Two creates of one name in one group must not both pass the check above.
        staging.close_group()

    def stage_drop_namespace(self, staging: Staging, tenant: str, name: str) -> None:
        """Remove a namespace that has no tables."""
        self._check_namespace_known(tenant, name)
        tables = [table.name for table in self.of(tenant) if table.namespace == name]
        if tables:
            raise NamespaceNotEmpty(namespace=name, tables=near_names("", tables))
        staging.delete(keys.namespace_key(tenant, name))
        staging.when_durable(lambda: self._namespaces.discard((tenant, name)))
        staging.close_group()

    def stage_create(self, staging: Staging, tenant: str, new: NewTable, now_us: int) -> Table:
        """Create a table; TableExists for a name that is taken, NamespaceNotFound without the namespace.

        QuotaReached for a tenant that has as many tables as it may have.
        """
        columns, primary_key = check_table(new)
        self._check_namespace_known(tenant, new.namespace)
        if self.find(tenant, new.namespace, new.name) is not None:
            raise TableExists(table=f"{new.namespace}.{new.name}")
        count = self.count(tenant)
        check_count(tenant, "tables", count, self._quotas.of_tenant(tenant).tables)
        if count >= TABLES_MAX:
            raise RequestInvalid(reason=f"There are {TABLES_MAX} tables, and no tenant has more.")
        table = Table(
            id=_take_id(staging),
            tenant=tenant,
            namespace=new.namespace,
            name=new.name,
            kind=new.kind,
            columns=columns,
            primary_key=primary_key,
            created_us=now_us,
            ttl_seconds=new.ttl_seconds,
            durability=new.durability,
        )
        return self._stage_definition(staging, table)

    def stage_drop(self, staging: Staging, table: Table) -> Table:
        """Remove a table and every byte of it in the engine."""
        now = self._current(table)
        staging.delete(keys.definition_key(now.id))
        for span in keys.everything_of(now.id):
            staging.delete_range(span.start, span.stop)
        staging.when_durable(lambda: self._forget(now))
        return now

    def stage_add_column(self, staging: Staging, table: Table, column: TableColumn) -> Table:
        """Add a column after the others; in existing rows it has its `missing` value."""
        now = self._current(table)
        check_column(column, now.kind)
        if column.name.lower() in {name.lower() for name in now.names}:
            raise ColumnExists(table=now.full_name, column=column.name)
        if column.required and column.missing is None:
            raise SchemaInvalid(
                reason=f"column '{shorten(column.name)}' is NOT NULL, but existing rows have no value",
                hint="Give it a DEFAULT: existing rows get it, too.",
            )
        if len(now.columns) >= COLUMNS_MAX or now.schema_id >= SCHEMA_ID_MAX:
            raise SchemaInvalid(reason=f"the table cannot have more than its {len(now.columns)} columns")
        changed = msgspec.structs.replace(now, columns=(*now.columns, column), schema_id=now.schema_id + 1)
        return self._stage_definition(staging, changed)

    def stage_set_ttl(
        self,
        staging: Staging,
        table: Table,
        ttl_seconds: int,
        durability: Durability | None = None,
        now_us: int = 0,
    ) -> Table:
        """Change the time to live of a stream's rows, and the durability of appends.

        Rows that are expired now stay expired, even if the new time to live is longer.
        """
        now = self._current(table)
        if now.kind != TableKind.STREAM:
            raise RequestInvalid(
                reason=f"Rows of a {now.kind} table stay until they are deleted: it takes no ttl_seconds.",
                hint="CREATE STREAM TABLE makes a table whose rows go after a time.",
            )
        gone_us = max(now.expired_before_us, now_us - (now.ttl_seconds or 0) * 1_000_000 + 1)
        changed = msgspec.structs.replace(
            now,
            ttl_seconds=check_ttl(ttl_seconds),
            durability=durability or now.durability,
            expired_before_us=gone_us if now_us else now.expired_before_us,
        )
        return self._stage_definition(staging, changed)

    def stage_add_index(self, staging: Staging, table: Table, name: str, columns: tuple[str, ...]) -> Table:
        """Add an index; writes maintain it from now on, and `stage_fill_index` adds the existing rows."""
        now = self._current(table)
        check_table_name(name)
        if now.kind == TableKind.STREAM:
            raise RequestInvalid(
                reason="A STREAM table has no indexes.", hint="Rows of a stream are found by user and time."
            )
        if any(index.name == name for index in now.indexes):
            raise IndexExists(table=now.full_name, index=name)
        if len(now.indexes) >= INDEXES_MAX:
            raise RequestInvalid(
                reason=f"Table '{now.full_name}' has {INDEXES_MAX} indexes, the most it may."
            )
        named = check_key(now.columns, columns, "the index")
        if not named:
            raise SchemaInvalid(reason="the index names no column")
        index = TableIndex(_take_id(staging), name, named)
        return self._stage_definition(staging, msgspec.structs.replace(now, indexes=(*now.indexes, index)))

    def stage_drop_index(self, staging: Staging, table: Table, name: str) -> Table:
        """Remove an index and its entries."""
        now = self._current(table)
        gone = next((index for index in now.indexes if index.name == name), None)
        if gone is None:
            raise IndexNotFound(table=now.full_name, index=shorten(name))
        span = keys.index_range(now.id, gone.id)
        staging.delete_range(span.start, span.stop)
        remaining = tuple(index for index in now.indexes if index is not gone)
        return self._stage_definition(staging, msgspec.structs.replace(now, indexes=remaining))

    def stage_fill_index(self, staging: Staging, table: Table, index_id: int, after: bytes) -> bytes | None:
        """Add the next rows to an index, from the first one when `after` is empty.

        Return the `after` of the next call; None when all rows are in and the index is ready. Writers may
        write in between. After a crash, start from the beginning: existing entries are written once more.
        """
        now = self._current(table)
        index = next((index for index in now.indexes if index.id == index_id), None)
        if index is None:
            raise IndexNotFound(table=now.full_name, index=f"number {index_id}")
        if index.ready:
            return None
        reached = fill_chunk(staging, self._reader, self._layouts.of(now), index_id, after)
        if reached is not None:
            return reached
        ready = msgspec.structs.replace(index, ready=True)
        indexes = tuple(ready if each is index else each for each in now.indexes)
        self._stage_definition(staging, msgspec.structs.replace(now, indexes=indexes))
        return None

    def _current(self, table: Table) -> Table:
        now = self._by_id.get(table.id)
        if now is None:
            raise TableNotFound(table=table.full_name, known=near_names(table.full_name, ()))
        return now

    def _check_namespace_known(self, tenant: str, name: str) -> None:
        if (tenant, name) in self._namespaces:
            return
        near = difflib.get_close_matches(name, self.namespaces(tenant), n=1)
        hint = f"Did you mean '{near[0]}'? To make it: CREATE NAMESPACE {shorten(name)};" if near else None
        raise NamespaceNotFound(namespace=shorten(name), hint=hint)

    def _stage_definition(self, staging: Staging, table: Table) -> Table:
        staging.put(keys.definition_key(table.id), msgspec.json.encode(table))
        staging.when_durable(lambda: self._remember(table))
        staging.close_group()
        return table

    def _remember(self, table: Table) -> None:
        self._by_name[table.tenant, table.namespace, table.name] = table
        self._by_id[table.id] = table

    def _forget(self, table: Table) -> None:
        self._by_name.pop((table.tenant, table.namespace, table.name), None)
        self._by_id.pop(table.id, None)


def decode_table(key: bytes, value: bytes) -> Table:
    """Return the table of a stored definition, or raise StorageCorrupt."""
    place = f"the definition of table {keys.table_id_of(key)}"
    return decode_versioned(value, Table, DEFINITION_VERSION, place)


def _name_order(table: Table) -> tuple[str, str, str]:
    return table.tenant, table.namespace, table.name


def _take_id(staging: Staging) -> int:
    """Return the next id for a table or an index; both share the numbers, and none is used twice."""
    stored = staging.get(keys.NEXT_ID)
    number = 1 if stored is None else read_u64(stored)
    if number > keys.ID_MAX:
        raise RequestInvalid(reason=f"All {keys.ID_MAX} ids of tables and indexes were used.")
    staging.put(keys.NEXT_ID, u64(number + 1))
    return number
