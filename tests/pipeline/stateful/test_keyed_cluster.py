"""Keyed operators on a real standalone cluster: a master and two workers on loopback, an executor killed."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from tests.pipeline.standalone import Cluster, driver
from tests.pipeline.stateful.keyed_jobs import Shop, many_rows

pytestmark = [pytest.mark.spark, pytest.mark.crash]

# Three JVMs and their Python workers start on a loaded machine; a test waits no longer than it must.
WAIT_SECONDS_MAX = 180


def test_killed_executor_costs_no_row_and_doubles_none(tmp_path: Path) -> None:
    """Case 8: an executor killed in the middle of a batch; the checkpoint is shared, the disks are not."""
    shop = Shop(None, tmp_path / "shop")
    # The key at which the operator stops comes with the third batch: there is state to lose by then.
    for seed, users in enumerate((7, 7, 40, 40)):
        shop.add(*many_rows(seed, 300, users))
    with (
        Cluster(tmp_path / "cluster") as cluster,
        driver("tests.pipeline.stateful.keyed_cluster_driver", cluster.url, str(shop.folder)) as query,
    ):
        mark = shop.folder / "mark.pid"
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not mark.exists() and time.monotonic() < deadline and query.poll() is None:
            time.sleep(0.05)
        assert query.poll() is None, "the query ended before it came to the middle"
        victim = psutil.Process(int(mark.read_text())).parent()
        assert victim in cluster.executors()
        victim.kill()
        (shop.folder / "go").touch()
        assert query.wait(WAIT_SECONDS_MAX) == 0
    assert shop.batches() == shop.expected()
    # Both hosts had a part in it: copies lie on either disk.
    disks = (tmp_path / "cluster").glob("disk-worker-*/*/totals")
    assert len({copies.parents[1] for copies in disks}) == 2
