"""What planners use of tables: their definitions, and the stores that their rows are read from."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.storage.engine import Engine
from tidegate.streams.store import StreamStore
from tidegate.tables.definitions import TableDirectory
from tidegate.tables.store import TableStore


@dataclass(frozen=True, slots=True)
class TableAccess:
    """The directory of all tables, the store of SHARED and USER rows in an engine, and the streams."""

    directory: TableDirectory
    store: TableStore
    streams: StreamStore
    engine: Engine
