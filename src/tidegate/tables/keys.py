"""The keys of tables in the engine.

namespace     NAMESPACE | tenant | 00 | name                                      the namespace, as JSON
definition    TABLE | table id u32                                                the table, as JSON
row           TABLE_ROW | table id u32 | scope | primary key                      the row
index entry   TABLE_INDEX | table id u32 | index id u32 | scope | columns | primary key         nothing
counters      TABLE_COUNTER | table id u32                                        rows and bytes
next id       SYSTEM | 2 u32                                                      the next unused id, u64

The scope of a USER table is the user's bytes and 00, that of a SHARED table is empty. `key_codec` encodes the
columns. Tables and indexes take their ids from the same sequence.
"""

from __future__ import annotations

from tidegate.errors import InvariantBroken
from tidegate.storage.engine import KeyRange
from tidegate.storage.keys import KeySpace, join, prefix_range, read_u32, u32

NEXT_ID = join(KeySpace.SYSTEM, u32(2))
ID_MAX = (1 << 32) - 1


def namespace_key(tenant: str, name: str) -> bytes:
    """Return the key of a namespace."""
    return join(KeySpace.NAMESPACE, tenant.encode(), b"\x00", name.encode())


def namespace_range() -> KeyRange:
    """Return the range of the keys of all namespaces."""
    return prefix_range(KeySpace.NAMESPACE)


def definition_key(table_id: int) -> bytes:
    """Return the key of a table's definition."""
    return join(KeySpace.TABLE, u32(table_id))


def definition_range() -> KeyRange:
    """Return the range of the keys of all definitions."""
    return prefix_range(KeySpace.TABLE)


def table_id_of(key: bytes) -> int:
    """Return the table id in any key of a table."""
    return read_u32(key, 1)


def counter_key(table_id: int) -> bytes:
    """Return the key of a table's counters."""
    return join(KeySpace.TABLE_COUNTER, u32(table_id))


def row_prefix(table_id: int) -> bytes:
    """Return the prefix of the keys of a table's rows."""
    return join(KeySpace.TABLE_ROW, u32(table_id))


def index_prefix(table_id: int, index_id: int) -> bytes:
    """Return the prefix of the keys of an index's entries."""
    return join(KeySpace.TABLE_INDEX, u32(table_id), u32(index_id))


def index_range(table_id: int, index_id: int) -> KeyRange:
    """Return the range of the keys of an index's entries."""
    return prefix_range(index_prefix(table_id, index_id))


def scope_of(user: str, *, is_scoped: bool) -> bytes:
    """Return the scope of a user's rows, before the columns of their keys; a SHARED table has no users."""
    if is_scoped == (user == "") or "\x00" in user:
        kind = "USER" if is_scoped else "SHARED"
        raise InvariantBroken(reason=f"user {user!r} cannot own rows of a {kind} table")
    return user.encode() + b"\x00" if is_scoped else b""


def everything_of(table_id: int) -> list[KeyRange]:
    """Return the ranges of all keys of one table but its definition."""
    spaces = (KeySpace.TABLE_ROW, KeySpace.TABLE_INDEX, KeySpace.TABLE_COUNTER)
    return [prefix_range(join(space, u32(table_id))) for space in spaces]
