"""The driver of a keyed query on a cluster.

python -m tests.pipeline.stateful.keyed_cluster_driver MASTER FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.pipeline.stateful.keyed_jobs import Paused, Shop
from tidegate.pipeline.stateful.keyed import process
from tidegate.pipeline.worker.spark_session import SessionSettings, build_session, end_session


def main(master: str, folder: Path) -> None:
    """Run the query over all rows in the folder."""
    extra = {"spark.executor.memory": "512m", "spark.executor.cores": "1"}
    # Nothing begins before both hosts are there: each has a part in it.
    extra |= {"spark.cores.max": "2", "spark.scheduler.minRegisteredResourcesRatio": "1.0"}
    extra |= {"spark.scheduler.maxRegisteredResourcesWaitingTime": "120s"}
    spark = build_session(SessionSettings(master=master, extra=extra))
    shop = Shop(spark, folder)
    operator = Paused(str(folder / "mark"), str(folder / "go"))
    shop.run(
        process(
            shop.stream(),
            name="totals",
            key="user",
            operator=operator,
            checkpoint=shop.checkpoint,
            partitions=3,
            snapshot_every=2,
        )
    )
    end_session(spark)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
