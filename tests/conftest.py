"""What every test may ask for: a home folder, and the one Spark session of the run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings

from tests.catalog.postgres import Postgres, find_binaries
from tests.schedule import ByFile, longest_first
from tests.shake import shake
from tests.warm import WarmChild
from tidegate.testing import server

# No deadline: a shared machine stalls now and then. A failure prints what repeats it.
settings.register_profile(
    "tidegate", max_examples=60, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tidegate")
# Most of a server's start is its imports: it begins as a fork of a process that has done them.
server.start_child = cast("Callable[..., subprocess.Popen[bytes]]", WarmChild)
# Every JVM of the tests lives for a minute: the second compiler would cost more time than it gives back.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest: one that begins last keeps everybody waiting."""
    items.sort(key=lambda item: longest_first(item.nodeid))
    shake(items, os.environ)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile | None:
    """Share files out between processes, and few JVMs with them."""
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Name a home folder that does not exist yet."""
    return tmp_path / "home"


@pytest.fixture(scope="session")
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Name where Spark's processes look for a server when they are not told: a link that a test may set."""
    return tmp_path_factory.mktemp("spark") / "home"


@pytest.fixture(scope="session")
def spark(spark_home: Path) -> Iterator[Any]:
    """Return the one Spark session of the run, with Delta and our sources; it starts when first asked for."""
    from tidegate.pipeline.worker.spark_session import SessionSettings, build_session, end_session

    session = build_session(SessionSettings(environ={"TIDEGATE_HOME": str(spark_home)}))
    # A query may be long in stopping on a busy machine.
    session.conf.set("spark.sql.streaming.stopTimeout", "120s")
    # For Spark's processes alone: tests of the command line choose their own.
    del os.environ["TIDEGATE_HOME"]
    yield session
    end_session(session)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Return the one PostgreSQL of the run."""
    yield from _started_postgres()


@pytest.fixture(scope="session")
def fragile_postgres() -> Iterator[Postgres]:
    """Return a PostgreSQL that tests may stop and kill; they leave it running."""
    yield from _started_postgres()


def _started_postgres() -> Iterator[Postgres]:
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("needs PostgreSQL: no folder with 'initdb' and 'postgres' was found")
    server = Postgres(binaries)
    yield server
    server.close()
