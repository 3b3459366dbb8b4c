"""The store of the rows of USER and SHARED tables: stages statements, reads by key, range and index.

Staging belongs to the committer's thread: a statement reads through the staged changes before it in its group
commit. One that raises is refused alone, with nothing of it written. Any thread may read, from the engine or
from a snapshot of it.

Rows, index entries and counters of a statement are in one write batch, so they always agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from tidegate.errors import InvariantBroken, TableChanged
from tidegate.model.changes import Change, InsertedRows
from tidegate.model.tables import Row, Table
from tidegate.storage.engine import Engine, KeyRange, Reader
from tidegate.storage.group_commit import Staging
from tidegate.storage.keys import prefix_range
from tidegate.tables.access_paths import Access
from tidegate.tables.counters import Counts, read_counts, stage_count
from tidegate.tables.definitions import TableDirectory
from tidegate.tables.layout import TableLayout, TableLayouts
from tidegate.tables.scan import Scanner

CHUNK_ROWS = 4096  # of a scan: a few hundred KiB of usual rows


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of a statement; `changes` only where they are requested."""

    count: int
    changes: Sequence[Change] = field(default_factory=list)


class TableStore:
    """The rows of all tables in one engine."""

    def __init__(self, engine: Engine, directory: TableDirectory) -> None:
        self._engine = engine
        self._directory = directory
        self._layouts = TableLayouts()
        self._scanner = Scanner(engine)

    def stage_insert(
        self,
        staging: Staging,
        table: Table,
        user: str,
        rows: Sequence[Row],
        *,
        upsert: bool,
        wants_changes: bool,
    ) -> WriteResult:
        """Write rows; RowExists for a key that exists or occurs twice, unless `upsert`: the last row wins."""
        layout = self._writable(table)
        if not rows:
            return WriteResult(0)
        row_keys = layout.checked_keys(user, rows)
        if len(row_keys) > 1:
            by_key = dict(zip(row_keys, rows, strict=True))
            if len(by_key) < len(rows):
                if not upsert:
                    raise layout.duplicate_key(_first_repeated(row_keys, rows))
                row_keys, rows = list(by_key), list(by_key.values())
        before = staging.get_many(row_keys)
        replaces = before.count(None) < len(before)
        if replaces and not upsert:
            raise layout.row_exists(
                next(row for row, old in zip(rows, before, strict=True) if old is not None)
            )
        return _put_rows(staging, layout, user, _Rows(row_keys, rows, before), wants_changes=wants_changes)

    def stage_update_key(
        self,
        staging: Staging,
        table: Table,
        user: str,
        key: Row,
        edit: Callable[[Row], Row | None],
        *,
        wants_changes: bool,
    ) -> WriteResult:
        """Change the row with a primary key, if it exists; `edit` returns the whole new row.

        Where `edit` returns None, the row stays as it is and is not counted.
        """
        layout = self._writable(table)
        row_key = layout.row_key(user, key)
        stored = staging.get(row_key)
        if stored is None:
            return WriteResult(0)
        old = layout.row(stored, row_key)
        new = edit(old)
        if new is None:
            return WriteResult(0)
        edits = [_Edit(row_key, stored, old, new)]
        return _put_edits(staging, layout, user, edits, wants_changes=wants_changes)

    def stage_delete_key(
        self,
        staging: Staging,
        table: Table,
        user: str,
        key: Row,
        *,
        wants_changes: bool,
        matches: Callable[[Row], bool] | None = None,
    ) -> WriteResult:
        """Remove the row with a primary key, if it exists and matches."""
        layout = self._writable(table)
        row_key = layout.row_key(user, key)
        stored = staging.get(row_key)
        if stored is None:
            return WriteResult(0)
        old = layout.row(stored, row_key)
        if matches is not None and not matches(old):
            return WriteResult(0)
        edits = [_Edit(row_key, stored, old, None)]
        return _put_edits(staging, layout, user, edits, wants_changes=wants_changes)

    def stage_edits(
        self,
        staging: Staging,
        table: Table,
        user: str,
        edits: Sequence[tuple[Row, Row | None]],
        *,
        wants_changes: bool,
    ) -> WriteResult | None:
        """Change or delete rows that were read before; None, with nothing staged, when one has changed since.

        All old rows are deleted before the new ones are put, so they may exchange their keys.
        """
        layout = self._writable(table)
        if not edits:
            return WriteResult(0)
        row_keys = layout.row_keys(user, [old for old, _ in edits])
        if len(set(row_keys)) < len(row_keys):
            raise InvariantBroken(reason=f"a row of {table.full_name} is edited twice by one statement")
        found: list[_Edit] = []
        for row_key, stored, (old, new) in zip(row_keys, staging.get_many(row_keys), edits, strict=True):
            if stored is None or not layout.is_stored(stored, row_key, old):
                return None
            found.append(_Edit(row_key, stored, old, new))
        return _put_edits(staging, layout, user, found, wants_changes=wants_changes)

    def get(self, reader: Reader, table: Table, user: str, key: Row) -> Row | None:
        """Return the row with a primary key, or None."""
        if None in key:
            return None
        row_key = self._layouts.of(table).row_key(user, key)
        stored = reader.get(row_key)
        return None if stored is None else self._decoded(table, [(row_key, stored)])[0]

    def get_many(
        self, reader: Reader, table: Table, user: str, primary_keys: Sequence[Row]
    ) -> list[Row | None]:
        """Return the rows with these primary keys, in their order; None for those that do not exist."""
        layout = self._layouts.of(table)
        row_keys = [layout.row_key(user, key) for key in primary_keys]
        pairs = list(zip(row_keys, reader.get_many(row_keys), strict=True))
        rows = iter(self._decoded(table, [(key, stored) for key, stored in pairs if stored is not None]))
        return [None if stored is None else next(rows) for _, stored in pairs]

    def scan(
        self, reader: Reader, table: Table, user: str, access: Access, chunk_rows: int = CHUNK_ROWS
    ) -> Iterator[list[Row]]:
        """Yield rows in chunks, all as of one moment: that of the snapshot, or now.

        TableChanged when the table does not exist (any more). An index that is not ready at that moment costs
        a read of the whole table, never a row.
        """
        rows = self._scanner.rows(reader, table, user, access)
        while chunk := list(islice(rows, chunk_rows)):
            yield chunk

    def has_rows(self, reader: Reader, table: Table, user: str) -> bool:
        """True if a user has a row in a USER table; it is not decoded."""
        layout = self._layouts.of(table)
        rows = reader.scan(prefix_range(layout.prefix + layout.scope(user)))
        return next(rows, None) is not None

    def spans_of(self, table: Table, user: str) -> list[KeyRange]:
        """Return the ranges of the keys of a user's rows and index entries."""
        layout = self._layouts.of(table)
        prefixes = [layout.prefix, *(index.prefix for index in layout.indexes)]
        return [prefix_range(prefix + layout.scope(user)) for prefix in prefixes]

    def counts(self, table: Table) -> Counts:
        """Return the numbers of rows and bytes of the table, of all users."""
        return read_counts(self._engine, table.id)

    def _writable(self, table: Table) -> TableLayout:
        """Return the current layout of the table; its indexes may be newer than those of the statement."""
        now = self._directory.by_id(table.id)
        if now is None or now.schema_id != table.schema_id:
            raise TableChanged(table=table.full_name)
        return self._layouts.of(now)

    def _decoded(self, table: Table, pairs: list[tuple[bytes, bytes]]) -> list[Row]:
        """Return rows that were just read, cut to the columns of the definition that is passed.

        A column is in the directory before any row has it, so the current definition reads all rows.
        """
        now = self._directory.by_id(table.id)
        if now is None:
            raise TableChanged(table=table.full_name)
        rows = self._layouts.of(now).rows(pairs)
        if now.schema_id == table.schema_id:
            return rows
        width = len(table.columns)
        return [row[:width] for row in rows]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows to be written, their keys, and what is stored under these."""

    keys: list[bytes]
    rows: Sequence[Row]
    before: list[bytes | None]


@dataclass(frozen=True, slots=True)
class _Edit:
    """An existing row and its new form; None deletes it."""

    key: bytes
    stored: bytes
    old: Row
    new: Row | None


def _put_rows(
    staging: Staging, layout: TableLayout, user: str, write: _Rows, *, wants_changes: bool
) -> WriteResult:
    values = layout.encoded(write.rows)
    old_bytes, old_count = 0, 0
    replaced: list[Row | None] = []
    if write.before.count(None) < len(write.before):
        there = [(key, old) for key, old in zip(write.keys, write.before, strict=True) if old is not None]
        old_bytes, old_count = sum(len(key) + len(old) for key, old in there), len(there)
        if wants_changes or layout.indexes:
            replaced = [
                None if old is None else layout.row(old, key)
                for key, old in zip(write.keys, write.before, strict=True)
            ]
    is_insert_only = not replaced
    replaced = replaced or [None] * len(write.rows)
    if layout.indexes:
        pairs = zip(write.keys, replaced, write.rows, strict=True)
        _move_entries(staging, layout, user, [(key, old, key, new) for key, old, new in pairs])
    staging.put_many(write.keys, values)
    new_bytes = sum(map(len, write.keys)) + sum(map(len, values))
    stage_count(staging, layout.table.id, len(values) - old_count, new_bytes - old_bytes)
    if not wants_changes:
        return WriteResult(len(values))
    if is_insert_only:
        return WriteResult(len(values), InsertedRows(write.rows))
    pairs_of_rows = zip(replaced, write.rows, strict=True)
    changes = [Change("insert" if old is None else "update", old, new) for old, new in pairs_of_rows]
    return WriteResult(len(values), changes)


def _put_edits(
    staging: Staging, layout: TableLayout, user: str, edits: list[_Edit], *, wants_changes: bool
) -> WriteResult:
    # 1. the keys of the new rows, and whether they are free
    remaining = [(edit, edit.new) for edit in edits if edit.new is not None]
    news = [new for _, new in remaining]
    new_keys = layout.checked_keys(user, news) if news else []
    _check_room(staging, layout, edits, new_keys, news)
    values = layout.encoded(news) if news else []
    # 2. all old rows are deleted, then the new ones put
    going = {edit.key for edit in edits}.difference(new_keys)
    for key in going:
        staging.delete(key)
    if layout.indexes:
        moves: list[tuple[bytes, Row | None, bytes, Row | None]] = [
            (edit.key, edit.old, b"", None) for edit in edits if edit.new is None
        ]
        moves += [
            (edit.key, edit.old, key, new) for (edit, new), key in zip(remaining, new_keys, strict=True)
        ]
        _move_entries(staging, layout, user, moves)
    staging.put_many(new_keys, values)
    # 3. count
    old_bytes = sum(len(edit.key) + len(edit.stored) for edit in edits)
    new_bytes = sum(map(len, new_keys)) + sum(map(len, values))
    stage_count(staging, layout.table.id, len(values) - len(edits), new_bytes - old_bytes)
    if not wants_changes:
        return WriteResult(len(edits))
    return WriteResult(len(edits), _changes_of(edits, remaining, new_keys))


def _check_room(
    staging: Staging, layout: TableLayout, edits: list[_Edit], new_keys: list[bytes], news: list[Row]
) -> None:
    """Raise RowExists for a new key that occurs twice, or that a row has which is not edited."""
    if len(set(new_keys)) < len(new_keys):
        raise layout.duplicate_key(_first_repeated(new_keys, news))
    leaving = {edit.key for edit in edits}
    entering = [(key, row) for key, row in zip(new_keys, news, strict=True) if key not in leaving]
    for stored, (_, row) in zip(staging.get_many([key for key, _ in entering]), entering, strict=True):
        if stored is not None:
            raise layout.row_exists(row)


def _changes_of(
    edits: list[_Edit], remaining: list[tuple[_Edit, Row]], new_keys: list[bytes]
) -> list[Change]:
    """Return the changes of edits; a row whose key changes is a delete and an insert."""
    new_key_of = {edit.key: key for (edit, _), key in zip(remaining, new_keys, strict=True)}
    gone = [Change("delete", edit.old, None) for edit in edits if new_key_of.get(edit.key) != edit.key]
    return gone + [
        Change("update", edit.old, new) if new_key_of[edit.key] == edit.key else Change("insert", None, new)
        for edit, new in remaining
    ]


def _move_entries(
    staging: Staging,
    layout: TableLayout,
    user: str,
    moves: list[tuple[bytes, Row | None, bytes, Row | None]],
) -> None:
    """Rewrite the index entries of rows; entries that stay the same are not touched."""
    scope = layout.scope(user)
    before: list[bytes] = []
    after: list[bytes] = []
    for old_key, old, new_key, new in moves:
        if old is not None:
            before += layout.entries(old_key, old, scope)
        if new is not None:
            after += layout.entries(new_key, new, scope)
    for entry in set(before).difference(after):
        staging.delete(entry)
    for entry in set(after).difference(before):
        staging.put(entry, b"")


def _first_repeated(row_keys: list[bytes], rows: Sequence[Row]) -> Row:
    seen: set[bytes] = set()
    for key, row in zip(row_keys, rows, strict=True):
        if key in seen:
            return row
        seen.add(key)
    raise InvariantBroken(reason="a key occurs twice")
