"""Real homes for the tests: topics in RocksDB, a Delta table, a Spark checkpoint, and how to look at them."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tidegate.catalog.audit import Actor
from tidegate.catalog.database import Catalog
from tidegate.catalog.database_url import DatabaseAddress, file_url
from tidegate.cli.commands.backup import HomeCatalog
from tidegate.ingest.publish import Messages, Publisher
from tidegate.model.clock import SystemClock
from tidegate.model.ids import SnowflakeSource
from tidegate.storage.group_commit import GroupCommitter
from tidegate.storage.home.home import Home
from tidegate.storage.rocksdb.engine import RocksEngine
from tidegate.topics.dedup import DedupKeys
from tidegate.topics.definitions import TopicDirectory
from tidegate.topics.log.log import TopicLog
from tidegate.topics.payload_schemas import PayloadSchemas
from tidegate.upkeep.backup.coordinator import BackupCoordinator
from tidegate.upkeep.backup.pack import BackupFile, pack, packing

TOPIC = "app.events"
ACTOR = Actor("default", "admin")
TOKEN = "token-of-the-home-in-this-test"
load_catalog = HomeCatalog(Path("a home that a test restores"))


def new_token() -> str:
    return secrets.token_urlsafe(32)


def make_home(path: Path) -> Home:
    """Make a home of this version."""
    return Home.open(path, new_token)


def make_layout_1(path: Path, messages: int) -> None:
    """Make a home as the first version wrote it, with that many messages in its topic."""
    for name in ("locks", "run", "engine", "lake", "checkpoints", "pipelines", "logs"):
        (path / name).mkdir(parents=True, mode=0o700)
    (path / "admin.token").write_text(f"{TOKEN}\n")
    (path / "admin.token").chmod(0o600)
    with opened_topics(path / "engine") as topics:
        topics.publish(messages)
    write_table(path / "lake" / "readings", 30)
    (path / "pipelines" / "readings.py").write_text("# a pipeline\n")
    (path / "checkpoints" / "readings" / "offsets").mkdir(parents=True)
    (path / "checkpoints" / "readings" / "offsets" / "0").write_text("v1\n{}\n{}")
    (path / "logs" / "server.log").write_text("served\n")
    (path / "layout.json").write_text(json.dumps({"layout": 1}))


class Topics:
    """The topics of a home, opened as a server opens them."""

    def __init__(self, engine: RocksEngine) -> None:
        clock = SystemClock()
        self.engine = engine
        self.committer = GroupCommitter(engine)
        self.directory = TopicDirectory(engine, 64)
        self.log = TopicLog(engine, SnowflakeSource(clock), clock, PayloadSchemas(engine))
        for topic in self.directory:
            self.log.recover(topic)
        self._publisher = Publisher(self.committer, self.log, DedupKeys(clock))

    def publish(self, count: int) -> list[int]:
        """Publish the next numbers and give their message ids."""
        if not len(self.directory):
            self.committer.submit(
                lambda staging: self.directory.stage_create(staging, "default", TOPIC, 1, 0)
            ).result(5)
        first = len(self.numbers())
        payloads = [str(number).encode() for number in range(first, first + count)]
        blank: list[None] = [None] * count
        topic = self.directory.get("default", TOPIC)
        receipt = asyncio.run(self._publisher.publish(topic, Messages(blank, payloads, blank)))
        return [int(message_id) for message_id in receipt.ids]

    def numbers(self) -> list[int]:
        """Return what the topic holds, in the order of its offsets."""
        topic = self.directory.get("default", TOPIC)
        held = self.log.counters(topic, 0)
        batches = self.log.read(topic, 0, held.start, held.end)
        return [int(text) for batch in batches for text in batch.arrow().column("payload").to_pylist()]


@contextmanager
def opened_topics(engine_path: Path) -> Iterator[Topics]:
    """Open the topics of an engine's folder for as long as the block runs."""
    engine = RocksEngine(engine_path)
    topics = Topics(engine)
    try:
        yield topics
    finally:
        topics.committer.close()
        engine.close()


@contextmanager
def opened_catalog(home: Home) -> Iterator[Catalog]:
    """Open the catalog of a home for as long as the block runs."""
    place = DatabaseAddress(file_url(home.catalog_path))
    catalog = Catalog.open(place, SystemClock(), random_bytes=secrets.token_bytes)
    try:
        catalog.accounts.ensure_admin(home.read_token(), home.home_id)
        yield catalog
    finally:
        catalog.close()


def no_flush() -> None:
    """Flush nothing."""


@contextmanager
def open_coordinator(
    home: Home, engine: RocksEngine, flush_streams: Callable[[], object] = no_flush
) -> Iterator[tuple[BackupCoordinator, Catalog]]:
    """Open what makes the backups of a home."""
    with opened_catalog(home) as catalog:
        coordinator = BackupCoordinator(home, engine, catalog, SystemClock(), flush_streams=flush_streams)
        try:
            yield coordinator, catalog
        finally:
            coordinator.close()


def back_up(
    home: Home, engine: RocksEngine, file: Path, flush_streams: Callable[[], object] = no_flush
) -> BackupFile:
    """Make a backup, from the freeze to the file."""
    with open_coordinator(home, engine, flush_streams) as (coordinator, _):
        started = coordinator.start(ACTOR)
        with packing(started.folder):
            made = pack(started.folder, file, tidegate_version="0", force=False, report=no_report)
            coordinator.finish(started.id, str(file), made.size_bytes)
    return made


def no_report(_done: int, _total: int) -> None:
    """Tell nobody."""


def write_table(path: Path, rows: int) -> None:
    """Append rows to a Delta table, or make it."""
    numbers = pa.table({"n": pa.array(range(rows), pa.int64())})
    write_deltalake(str(path), numbers, mode="append")


def table_rows(path: Path) -> int:
    """Count the rows of a Delta table by reading all of its files."""
    return int(DeltaTable(str(path)).to_pyarrow_table().num_rows)


def tree(path: Path) -> dict[str, bytes]:
    """Return every file below a folder with its bytes."""
    return {
        os.path.relpath(Path(folder) / name, path): (Path(folder) / name).read_bytes()
        for folder, _, names in os.walk(path)
        for name in names
    }
