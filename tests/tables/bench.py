"""A table store on either engine, with a committer, and ways to make and fill tables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.contract.test_engine import open_engine
from tidegate.model.tables import Row, Table, TableColumn, TableKind
from tidegate.storage.engine import Engine
from tidegate.storage.group_commit import GroupCommitter, Staging
from tidegate.storage.keys import prefix_range
from tidegate.tables import keys
from tidegate.tables.access_paths import Access, FullScan
from tidegate.tables.definitions import TableDirectory
from tidegate.tables.store import TableStore, WriteResult
from tidegate.tables.validation import NewTable

T = TypeVar("T")

NOW_US = 1_800_000_000_000_000
PATIENCE_SECONDS = 60


def column(name: str, kind: str = "BIGINT", **more: object) -> TableColumn:
    return TableColumn(name, kind, **more)  # type: ignore[arg-type]


ID_AND_TEXT = (column("id"), column("text", "TEXT"))


@dataclass
class Bench:
    """Everything between a statement and the engine."""

    engine: Engine
    committer: GroupCommitter
    directory: TableDirectory
    store: TableStore

    def run(self, stage: Callable[[Staging], T]) -> T:
        return self.committer.submit(stage).result(PATIENCE_SECONDS)

    def run_together(self, *stages: Callable[[Staging], object]) -> list[object]:
        """Stage several changes in one group; give their answers or their errors."""
        queued = threading.Event()
        gate = self.committer.submit(lambda _: queued.wait(PATIENCE_SECONDS))
        futures = [self.committer.submit(stage) for stage in stages]
        queued.set()
        gate.result(PATIENCE_SECONDS)
        return [future.exception(PATIENCE_SECONDS) or future.result(0) for future in futures]

    def create(
        self,
        *columns: TableColumn,
        key: tuple[str, ...] = ("id",),
        kind: TableKind = TableKind.SHARED,
        name: str = "things",
    ) -> Table:
        if "app" not in self.directory.namespaces("default"):
            self.run(lambda staging: self.directory.stage_create_namespace(staging, "default", "app"))
        new = NewTable("app", name, kind, columns or ID_AND_TEXT, key)
        return self.run(lambda staging: self.directory.stage_create(staging, "default", new, NOW_US))

    def insert(
        self, table: Table, rows: Sequence[Row], user: str = "", *, upsert: bool = False
    ) -> WriteResult:
        return self.run(self.inserting(table, rows, user, upsert=upsert))

    def inserting(
        self, table: Table, rows: Sequence[Row], user: str = "", *, upsert: bool = False
    ) -> Callable[[Staging], WriteResult]:
        return lambda staging: self.store.stage_insert(
            staging, table, user, rows, upsert=upsert, wants_changes=True
        )

    def edit(
        self, table: Table, edits: Sequence[tuple[Row, Row | None]], user: str = ""
    ) -> WriteResult | None:
        return self.run(
            lambda staging: self.store.stage_edits(staging, table, user, edits, wants_changes=True)
        )

    def delete(self, table: Table, key: Row, user: str = "") -> WriteResult:
        return self.run(
            lambda staging: self.store.stage_delete_key(staging, table, user, key, wants_changes=True)
        )

    def rows(self, table: Table, user: str = "", access: Access | None = None) -> list[Row]:
        chunks = self.store.scan(self.engine, table, user, access or FullScan(), 3)
        return [row for chunk in chunks for row in chunk]

    def index(self, table: Table, *columns: str, name: str = "by") -> Table:
        """Add an index and fill it."""
        made = self.run(lambda staging: self.directory.stage_add_index(staging, table, name, columns))
        self.fill(made, made.indexes[-1].id)
        now = self.directory.by_id(table.id)
        assert now is not None
        return now

    def fill(self, table: Table, index_id: int) -> int:
        after: bytes | None = b""
        steps = 0
        while after is not None:
            reached = after
            after = self.run(
                lambda staging, reached=reached: self.directory.stage_fill_index(  # type: ignore[misc]
                    staging, table, index_id, reached
                )
            )
            steps += 1
        return steps

    def measured(self, table: Table) -> tuple[int, int]:
        """Count rows and bytes by reading them all."""
        pairs = list(self.engine.scan(prefix_range(keys.row_prefix(table.id))))
        return len(pairs), sum(len(key) + len(value) for key, value in pairs)

    def close(self) -> None:
        self.committer.close()
        self.engine.close()


def build(kind: str, folder: Path) -> Bench:
    return wire(open_engine(kind, folder))


def wire(engine: Engine) -> Bench:
    committer = GroupCommitter(engine)
    directory = TableDirectory(engine)
    committer.when_reopened(directory.reload)
    return Bench(engine, committer, directory, TableStore(engine, directory))
