"""Real stores, each broken in one place: the finding names it."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.catalog.postgres import Postgres
from tests.storage.rocksdb.test_damage import killed_store, the_log
from tidegate.catalog.database import Catalog
from tidegate.catalog.database_url import DatabaseAddress
from tidegate.cli.checks.stores import check_catalog, check_engine, check_lake
from tidegate.settings import CatalogSettings
from tidegate.storage.rocksdb.engine import RocksEngine
from tidegate.storage.rocksdb.options import EngineOptions
from tidegate.storage.rocksdb.wal import HEADER_BYTES
from tidegate.testing.clock import ManualClock

IN_THE_HOME = CatalogSettings()


@pytest.fixture
def catalog_file(tmp_path: Path) -> Path:
    file = tmp_path / "catalog.db"
    Catalog.open(DatabaseAddress(url=f"sqlite:///{file}"), ManualClock(), random_bytes=bytes).close()
    return file


def test_a_catalog_that_is_whole_tells_its_revision(catalog_file: Path) -> None:
    before = catalog_file.read_bytes()
    found = check_catalog(IN_THE_HOME, catalog_file)
    assert (found.state, "revision" in found.found) == ("ok", True)
    assert catalog_file.read_bytes() == before


def test_a_catalog_is_looked_at_while_a_server_has_it_open(catalog_file: Path) -> None:
    place = DatabaseAddress(url=f"sqlite:///{catalog_file}")
    catalog = Catalog.open(place, ManualClock(), random_bytes=bytes)
    try:
        assert check_catalog(IN_THE_HOME, catalog_file).state == "ok"
    finally:
        catalog.close()


def test_a_catalog_that_is_not_made_yet_is_fine(tmp_path: Path) -> None:
    assert check_catalog(IN_THE_HOME, tmp_path / "none").state == "ok"


def test_a_catalog_of_damaged_pages_fails(catalog_file: Path) -> None:
    content = bytearray(catalog_file.read_bytes())
    half = len(content) // 2
    content[half:] = b"\xa5" * (len(content) - half)
    catalog_file.write_bytes(content)
    found = check_catalog(IN_THE_HOME, catalog_file)
    assert (found.state, str(catalog_file) in found.found, "restore" in found.fix) == ("fail", True, True)
    catalog_file.write_bytes(b"no database at all, and long enough to be looked at" * 100)
    assert check_catalog(IN_THE_HOME, catalog_file).state == "fail"


def test_a_catalog_of_a_newer_version_fails_and_an_empty_one_is_a_warning(
    catalog_file: Path, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(catalog_file)) as database, database:
        database.execute("UPDATE catalog_revision SET version_num = '9999'")
    found = check_catalog(IN_THE_HOME, catalog_file)
    assert (found.state, "9999" in found.found) == ("fail", True)
    empty = tmp_path / "empty.db"
    empty.touch()
    assert check_catalog(IN_THE_HOME, empty).state == "warn"


def test_a_catalog_in_postgresql_is_reached_and_its_revision_known(
    postgres: Postgres, tmp_path: Path
) -> None:
    url = postgres.create_database()
    settings = CatalogSettings(url=url)
    assert "no tables yet" in check_catalog(settings, tmp_path).found
    Catalog.open(DatabaseAddress(url=url), ManualClock(), random_bytes=bytes).close()
    found = check_catalog(settings, tmp_path)
    assert (found.state, "revision" in found.found) == ("ok", True)


def test_a_postgresql_that_does_not_answer_fails_without_telling_the_password(tmp_path: Path) -> None:
    settings = CatalogSettings(url="postgresql://tide:hunter2@127.0.0.1:1/tide", timeout_seconds=1.0)
    found = check_catalog(settings, tmp_path)
    assert (found.state, "catalog.url" in found.fix) == ("fail", True)
    assert "hunter2" not in str(found)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return killed_store(tmp_path_factory.mktemp("killed") / "engine")


@pytest.fixture
def engine(killed: Path, tmp_path: Path) -> Path:
    """Return a store whose server was killed: everything stands in its log."""
    return Path(shutil.copytree(killed, tmp_path / "engine"))


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_an_engine_that_was_killed_is_whole_and_is_not_touched(engine: Path) -> None:
    before = contents(engine)
    found = check_engine(engine, server_runs=False)
    assert found.state == "ok", found
    assert contents(engine) == before


def test_an_engine_without_anything_is_fine(tmp_path: Path) -> None:
    assert check_engine(tmp_path / "none", server_runs=False).state == "ok"


def test_a_flipped_bit_in_a_record_is_named_with_file_and_byte(engine: Path) -> None:
    log = the_log(engine)
    content = bytearray(log.read_bytes())
    content[HEADER_BYTES + 3] ^= 1
    log.write_bytes(content)
    found = check_engine(engine, server_runs=False)
    assert (found.state, str(log) in found.found, "byte 0 " in found.found) == ("fail", True, True)


def test_a_broken_chain_of_records_is_named_with_file_and_byte(engine: Path) -> None:
    log = the_log(engine)
    content = bytearray(log.read_bytes())
    content[5] = 0xFF  # the length of the first record
    log.write_bytes(content)
    found = check_engine(engine, server_runs=False)
    assert (found.state, str(log) in found.found, "byte 0" in found.found) == ("fail", True, True)


def test_a_last_write_that_never_reached_the_disk_is_a_warning(tmp_path: Path) -> None:
    engine = killed_store(tmp_path / "engine", records=3, value_bytes=3000)
    log = the_log(engine)
    content = log.read_bytes()
    keep = (len(content) - 1500) // 512 * 512
    log.write_bytes(content[:keep] + bytes(len(content) - keep))
    found = check_engine(engine, server_runs=False)
    assert (found.state, "never reached" in found.found) == ("warn", True)


@pytest.fixture
def closed_engine(tmp_path: Path) -> Path:
    """Return a store that was closed cleanly: everything stands in a table file."""
    store = RocksEngine(tmp_path / "engine", EngineOptions(free_bytes_min=0))
    batch = store.batch()
    for number in range(100):
        batch.put(b"%04d" % number, b"x" * 200)
    store.write(batch, sync=True)
    store.close()
    return store.path


@pytest.mark.parametrize("harm", ["gone", "cut"])
def test_a_table_file_that_is_gone_or_cut_is_named(closed_engine: Path, harm: str) -> None:
    assert check_engine(closed_engine, server_runs=False).state == "ok"
    table = next(closed_engine.glob("*.sst"))
    if harm == "gone":
        table.unlink()
    else:
        table.write_bytes(table.read_bytes()[:-50])
    found = check_engine(closed_engine, server_runs=False)
    assert (found.state, str(table) in found.found) == ("fail", True), found


def test_an_engine_without_its_current_or_manifest_fails(closed_engine: Path) -> None:
    manifest = next(closed_engine.glob("MANIFEST-*"))
    manifest.rename(closed_engine.parent / "aside")
    for runs in (True, False):
        found = check_engine(closed_engine, server_runs=runs)
        assert (found.state, manifest.name in found.found) == ("fail", True)
    (closed_engine / "CURRENT").unlink()
    assert check_engine(closed_engine, server_runs=False).state == "fail"


HOLDER = """
import sys
from pathlib import Path
from tidegate.storage.rocksdb.engine import RocksEngine
engine = RocksEngine(Path(sys.argv[1]))
batch = engine.batch()
batch.put(b"a", b"b")
engine.write(batch, sync=True)
print("open", flush=True)
sys.stdin.read()
engine.close()
"""


def test_an_engine_is_looked_at_while_a_server_has_it_open(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLDER, str(tmp_path / "engine")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        assert check_engine(tmp_path / "engine", server_runs=True).state == "ok"
        holder.communicate("")
    assert holder.returncode == 0


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    root = tmp_path / "lake"
    for name in ("readings", "meters"):
        for number in range(2):
            write_deltalake(root / name, pa.table({"n": [number]}), mode="append")
    return root


def test_every_table_tells_its_version(lake: Path, tmp_path: Path) -> None:
    found = check_lake([lake, tmp_path / "none"])
    assert found.state == "ok"
    assert "readings at version 1" in found.found
    assert "meters at version 1" in found.found


def test_a_commit_that_is_cut_is_named(lake: Path) -> None:
    commit = lake / "readings" / "_delta_log" / f"{1:020}.json"
    commit.write_bytes(commit.read_bytes()[:40])
    found = check_lake([lake])
    assert (found.state, str(commit) in found.found) == ("fail", True)


@pytest.mark.parametrize("harm", ["gone", "cut"])
def test_a_data_file_that_is_gone_or_cut_is_named(lake: Path, harm: str) -> None:
    file = next((lake / "meters").glob("*.parquet"))
    if harm == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-8])
    found = check_lake([lake])
    assert (found.state, str(file) in found.found) == ("fail", True)
