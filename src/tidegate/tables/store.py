"""The rows of USER and SHARED tables: stages statements, gives rows by key, range and index.

Staging belongs to the committer's thread: a statement reads through what the changes before it in its group
have put, and is refused alone when it may not be, with nothing of it written. Reads are for any thread, from
the engine or from a snapshot of it.

Rows, index entries and counters of a statement are in one batch, so they always agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from tidegate.errors import InvariantBroken, TableChanged
from tidegate.model.changes import Change, Inserted
from tidegate.model.tables import Row, Table
from tidegate.storage.engine import Engine, Reader
from tidegate.storage.group_commit import Staging
from tidegate.tables.access_paths import Access
from tidegate.tables.counters import Counts, read_counts, stage_count
from tidegate.tables.definitions import TableDirectory
from tidegate.tables.layout import Shape, Shapes
from tidegate.tables.scan import Scanner

CHUNK_ROWS = 4096  # of a scan: a few hundred KiB of usual rows


@dataclass(frozen=True, slots=True)
class Written:
    """What a statement did; `changes` only where someone wants them."""

    count: int
    changes: Sequence[Change] = field(default_factory=list)


class TableStore:
    """The rows of all tables in one engine."""

    def __init__(self, engine: Engine, directory: TableDirectory) -> None:
        self._engine = engine
        self._directory = directory
        self._shapes = Shapes()
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
    ) -> Written:
        """Write rows: a key that is taken, or twice among them, is refused; an `upsert` takes the last."""
        shape = self._writable(table)
        if not rows:
            return Written(0)
        row_keys = shape.checked_keys(user, rows)
        if len(row_keys) > 1:
            by_key = dict(zip(row_keys, rows, strict=True))
            if len(by_key) < len(rows):
                if not upsert:
                    raise shape.twice(_first_repeated(row_keys, rows))
                row_keys, rows = list(by_key), list(by_key.values())
        before = staging.get_many(row_keys)
        replaces = before.count(None) < len(before)
        if replaces and not upsert:
            raise shape.taken(next(row for row, old in zip(rows, before, strict=True) if old is not None))
        return _put_rows(staging, shape, user, _Rows(row_keys, rows, before), wants_changes=wants_changes)

    def stage_update_key(
        self,
        staging: Staging,
        table: Table,
        user: str,
        key: Row,
        edit: Callable[[Row], Row | None],
        *,
        wants_changes: bool,
    ) -> Written:
        """Change the row with a primary key, where it is there; `edit` gives the whole new row.

        Where `edit` gives None, the row stays as it is and is not counted.
        """
        shape = self._writable(table)
        row_key = shape.row_key(user, key)
        stored = staging.get(row_key)
        if stored is None:
            return Written(0)
        old = shape.row(stored, row_key)
        new = edit(old)
        if new is None:
            return Written(0)
        edits = [_Edit(row_key, stored, old, new)]
        return _put_edits(staging, shape, user, edits, wants_changes=wants_changes)

    def stage_delete_key(
        self,
        staging: Staging,
        table: Table,
        user: str,
        key: Row,
        *,
        wants_changes: bool,
        matches: Callable[[Row], bool] | None = None,
    ) -> Written:
        """Remove the row with a primary key, where it is there and matches."""
        shape = self._writable(table)
        row_key = shape.row_key(user, key)
        stored = staging.get(row_key)
        if stored is None:
            return Written(0)
        old = shape.row(stored, row_key)
        if matches is not None and not matches(old):
            return Written(0)
        edits = [_Edit(row_key, stored, old, None)]
        return _put_edits(staging, shape, user, edits, wants_changes=wants_changes)

    def stage_edits(
        self,
        staging: Staging,
        table: Table,
        user: str,
        edits: Sequence[tuple[Row, Row | None]],
        *,
        wants_changes: bool,
    ) -> Written | None:
        """Change or remove rows that were read before; None, with nothing staged, when one is not as it was.

        All old rows leave before the new ones come, so keys may be exchanged among them.
        """
        shape = self._writable(table)
        if not edits:
            return Written(0)
        row_keys = shape.row_keys(user, [old for old, _ in edits])
        if len(set(row_keys)) < len(row_keys):
            raise InvariantBroken(reason=f"a row of {table.full_name} is edited twice by one statement")
        found: list[_Edit] = []
        for row_key, stored, (old, new) in zip(row_keys, staging.get_many(row_keys), edits, strict=True):
            if stored is None or not shape.is_stored(stored, row_key, old):
                return None
            found.append(_Edit(row_key, stored, old, new))
        return _put_edits(staging, shape, user, found, wants_changes=wants_changes)

    def get(self, reader: Reader, table: Table, user: str, key: Row) -> Row | None:
        """Return the row with a primary key, or None."""
        if None in key:
            return None
        row_key = self._shapes.of(table).row_key(user, key)
        stored = reader.get(row_key)
        return None if stored is None else self._decoded(table, [(row_key, stored)])[0]

    def get_many(self, reader: Reader, table: Table, user: str, wanted: Sequence[Row]) -> list[Row | None]:
        """Return the rows with these primary keys, in the order asked."""
        shape = self._shapes.of(table)
        row_keys = [shape.row_key(user, key) for key in wanted]
        pairs = list(zip(row_keys, reader.get_many(row_keys), strict=True))
        rows = iter(self._decoded(table, [(key, stored) for key, stored in pairs if stored is not None]))
        return [None if stored is None else next(rows) for _, stored in pairs]

    def scan(
        self, reader: Reader, table: Table, user: str, access: Access, chunk_rows: int = CHUNK_ROWS
    ) -> Iterator[list[Row]]:
        """Yield rows in chunks, as they were at one moment: the snapshot's, or now.

        TableChanged when the table is not there (any more). An index that is not ready at that moment costs
        a read of the whole table, never a row.
        """
        rows = self._scanner.rows(reader, table, user, access)
        while chunk := list(islice(rows, chunk_rows)):
            yield chunk

    def counts(self, table: Table) -> Counts:
        """Return how many rows the table holds, of all users, and their bytes."""
        return read_counts(self._engine, table.id)

    def _writable(self, table: Table) -> Shape:
        """Return the shape of the table as it is now; its indexes may be newer than the statement knows."""
        now = self._directory.by_id(table.id)
        if now is None or now.schema_id != table.schema_id:
            raise TableChanged(table=table.full_name)
        return self._shapes.of(now)

    def _decoded(self, table: Table, pairs: list[tuple[bytes, bytes]]) -> list[Row]:
        """Return rows that were read just now, cut to the columns that the table has.

        A column is in the directory before any row has it, so what the directory says now reads them all.
        """
        now = self._directory.by_id(table.id)
        if now is None:
            raise TableChanged(table=table.full_name)
        rows = self._shapes.of(now).rows(pairs)
        if now.schema_id == table.schema_id:
            return rows
        width = len(table.columns)
        return [row[:width] for row in rows]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows to be written, where they go, and what is stored there."""

    keys: list[bytes]
    rows: Sequence[Row]
    before: list[bytes | None]


@dataclass(frozen=True, slots=True)
class _Edit:
    """A row that is there, and what becomes of it."""

    key: bytes
    stored: bytes
    old: Row
    new: Row | None


def _put_rows(staging: Staging, shape: Shape, user: str, given: _Rows, *, wants_changes: bool) -> Written:
    values = shape.encoded(given.rows)
    old_bytes, old_count = 0, 0
    replaced: list[Row | None] = []
    if given.before.count(None) < len(given.before):
        there = [(key, old) for key, old in zip(given.keys, given.before, strict=True) if old is not None]
        old_bytes, old_count = sum(len(key) + len(old) for key, old in there), len(there)
        if wants_changes or shape.indexes:
            replaced = [
                None if old is None else shape.row(old, key)
                for key, old in zip(given.keys, given.before, strict=True)
            ]
    comes_anew = not replaced
    replaced = replaced or [None] * len(given.rows)
    if shape.indexes:
        pairs = zip(given.keys, replaced, given.rows, strict=True)
        _move_entries(staging, shape, user, [(key, old, key, new) for key, old, new in pairs])
    staging.put_many(given.keys, values)
    new_bytes = sum(map(len, given.keys)) + sum(map(len, values))
    stage_count(staging, shape.table.id, len(values) - old_count, new_bytes - old_bytes)
    if not wants_changes:
        return Written(len(values))
    if comes_anew:
        return Written(len(values), Inserted(given.rows))
    pairs_of_rows = zip(replaced, given.rows, strict=True)
    changes = [Change("insert" if old is None else "update", old, new) for old, new in pairs_of_rows]
    return Written(len(values), changes)


def _put_edits(
    staging: Staging, shape: Shape, user: str, edits: list[_Edit], *, wants_changes: bool
) -> Written:
    # 1. where the new rows go, and whether there is room
    kept = [(edit, edit.new) for edit in edits if edit.new is not None]
    news = [new for _, new in kept]
    new_keys = shape.checked_keys(user, news) if news else []
    _check_room(staging, shape, edits, new_keys, news)
    values = shape.encoded(news) if news else []
    # 2. all old rows leave, then the new ones come
    going = {edit.key for edit in edits}.difference(new_keys)
    for key in going:
        staging.delete(key)
    if shape.indexes:
        moves: list[tuple[bytes, Row | None, bytes, Row | None]] = [
            (edit.key, edit.old, b"", None) for edit in edits if edit.new is None
        ]
        moves += [(edit.key, edit.old, key, new) for (edit, new), key in zip(kept, new_keys, strict=True)]
        _move_entries(staging, shape, user, moves)
    staging.put_many(new_keys, values)
    # 3. count
    old_bytes = sum(len(edit.key) + len(edit.stored) for edit in edits)
    new_bytes = sum(map(len, new_keys)) + sum(map(len, values))
    stage_count(staging, shape.table.id, len(values) - len(edits), new_bytes - old_bytes)
    if not wants_changes:
        return Written(len(edits))
    return Written(len(edits), _changes_of(edits, kept, new_keys))


def _check_room(
    staging: Staging, shape: Shape, edits: list[_Edit], new_keys: list[bytes], news: list[Row]
) -> None:
    """Refuse new keys that are twice among the new rows, or that a row has which stays as it is."""
    if len(set(new_keys)) < len(new_keys):
        raise shape.twice(_first_repeated(new_keys, news))
    leaving = {edit.key for edit in edits}
    entering = [(key, row) for key, row in zip(new_keys, news, strict=True) if key not in leaving]
    for stored, (_, row) in zip(staging.get_many([key for key, _ in entering]), entering, strict=True):
        if stored is not None:
            raise shape.taken(row)


def _changes_of(edits: list[_Edit], kept: list[tuple[_Edit, Row]], new_keys: list[bytes]) -> list[Change]:
    """Return the changes of edits; a row whose key changes is one that goes and one that comes."""
    placed = {edit.key: key for (edit, _), key in zip(kept, new_keys, strict=True)}
    gone = [Change("delete", edit.old, None) for edit in edits if placed.get(edit.key) != edit.key]
    return gone + [
        Change("update", edit.old, new) if placed[edit.key] == edit.key else Change("insert", None, new)
        for edit, new in kept
    ]


def _move_entries(
    staging: Staging,
    shape: Shape,
    user: str,
    moves: list[tuple[bytes, Row | None, bytes, Row | None]],
) -> None:
    """Rewrite the index entries of rows; an entry that stays the same is left alone."""
    scope = shape.scope(user)
    before: list[bytes] = []
    after: list[bytes] = []
    for old_key, old, new_key, new in moves:
        if old is not None:
            before += shape.entries(old_key, old, scope)
        if new is not None:
            after += shape.entries(new_key, new, scope)
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
    raise InvariantBroken(reason="no key is there twice")
