"""The account of pipelines: what it may do, and how its token comes back."""

from __future__ import annotations

import json
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidegate
from tests.pipeline.topic.topics import TopicClient
from tests.pipeline.worker.workers import running_worker, wait_until
from tidegate.errors import Forbidden, TokenRevoked
from tidegate.model.clock import SystemClock
from tidegate.pipeline.worker.pipeline_account import ACCOUNT_USER, CHECK_SECONDS, PipelineAccount
from tidegate.storage.home.home import Home
from tidegate.testing.server import RunningServer, running_server

# It notes who it is and what it may, where it is planned and where Spark's Python workers run.
PIPELINE = """
import json
from pathlib import Path

import tidegate
from tidegate import spark as tide

def note(where, name):
    with tidegate.connect() as client:
        try:
            client.sql("CREATE NAMESPACE of_a_pipeline")
            refusal = ""
        except tidegate.TidegateError as problem:
            refusal = problem.code
        (Path(where) / f"{name}.json").write_text(json.dumps([client.me()["user"], refusal]))

@tide.pipeline(name="events")
def run(ctx):
    where = str(ctx.home.path)
    note(where, "driver")
    rows = ctx.spark.readStream.format("tidegate.topic").option("topic", "app.events").load()
    def noted(batches):
        for batch in batches:
            note(where, "task")
            yield batch
    rows = rows.select("payload").mapInArrow(noted, "payload string")
    return rows.writeStream.format("tidegate.topic").option("topic", "app.copies")
"""


class ManualClock(SystemClock):
    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic_seconds(self) -> float:
        return self.seconds


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path / "home") as running:
        yield running


def _me(home: Home) -> tuple[str, set[str]]:
    """Return who the token in the file is, and its roles."""
    with tidegate.connect(home=home.path, token=home.pipeline_token_path.read_text().strip()) as client:
        me = client.me()
    return me["user"], set(me["roles"])


def test_the_account_is_made_once_and_reads_and_writes(server: RunningServer) -> None:
    home, clock = Home.existing(server.home), ManualClock()
    PipelineAccount(home, clock).renew()
    assert _me(home) == (ACCOUNT_USER, {"StreamDataReader", "StreamDataWriter"})
    assert stat.S_IMODE(home.pipeline_token_path.stat().st_mode) == 0o600
    token = home.pipeline_token_path.read_text()
    with tidegate.connect(home=home.path, token=token.strip()) as client:
        with pytest.raises(Forbidden):
            client.sql("CREATE NAMESPACE app")
        with pytest.raises(Forbidden):
            client.users.list()
    PipelineAccount(home, clock).renew()  # of the next worker
    assert home.pipeline_token_path.read_text() == token


def test_a_token_that_was_revoked_or_removed_comes_back(server: RunningServer) -> None:
    home, clock = Home.existing(server.home), ManualClock()
    account = PipelineAccount(home, clock)
    account.renew()
    with tidegate.connect(home=home.path) as admin:
        first = home.pipeline_token_path.read_text().strip()
        admin.users.revoke(ACCOUNT_USER, first.split("_")[1])
        with pytest.raises(TokenRevoked):
            _me(home)
        account.renew()
        assert home.pipeline_token_path.read_text().strip() == first  # it is not due yet
        clock.seconds += CHECK_SECONDS
        account.renew()
        assert _me(home)[0] == ACCOUNT_USER

        admin.users.remove(ACCOUNT_USER)
        clock.seconds += CHECK_SECONDS
        account.renew()
        assert _me(home)[0] == ACCOUNT_USER

        home.pipeline_token_path.write_text(home.read_token())  # of somebody else
        clock.seconds += CHECK_SECONDS
        account.renew()
        assert _me(home)[0] == ACCOUNT_USER


def test_a_disabled_account_stays_so_and_roles_are_not_changed(server: RunningServer) -> None:
    home, clock = Home.existing(server.home), ManualClock()
    account = PipelineAccount(home, clock)
    account.renew()
    token = home.pipeline_token_path.read_text()
    with tidegate.connect(home=home.path) as admin:
        admin.users.change(ACCOUNT_USER, roles=["reader"])
        clock.seconds += CHECK_SECONDS
        account.renew()
        assert _me(home) == (ACCOUNT_USER, {"StreamDataReader"})
        admin.users.change(ACCOUNT_USER, enabled=False)
        clock.seconds += CHECK_SECONDS
        account.renew()
        assert home.pipeline_token_path.read_text() == token
        assert not admin.users.show(ACCOUNT_USER)["enabled"]


def test_without_a_server_there_is_no_token_until_it_comes(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_server(tmp_path / "home") as server:
        home = Home.existing(server.home)
    account = PipelineAccount(home, clock)
    account.renew()
    assert not home.pipeline_token_path.exists()
    with running_server(tmp_path / "home"):
        account.renew()  # at once, not when it would be due
        assert _me(home)[0] == ACCOUNT_USER


@pytest.mark.spark
def test_code_of_a_pipeline_acts_as_its_account(server: RunningServer) -> None:
    home, topics = Home.existing(server.home), TopicClient(server)
    for topic in ("app.events", "app.copies"):
        topics.create(topic)
    topics.publish("app.events", range(10))
    (home.pipelines_path / "events.py").write_text(PIPELINE)
    with running_worker(home.path) as worker:
        wait_until(lambda: len(topics.payloads("app.copies")) == 10, "the copies")
        with tidegate.connect(home=home.path) as admin:
            # The worker itself reports as the administrator.
            wait_until(lambda: admin.pipelines.list()[0]["state"] == "running", "the report")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    for name in ("driver", "task"):
        assert json.loads((home.path / f"{name}.json").read_text()) == [ACCOUNT_USER, "FORBIDDEN"]
