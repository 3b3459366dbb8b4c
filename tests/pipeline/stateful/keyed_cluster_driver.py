"""The driver of a keyed query on a cluster: `python -m tests.pipeline.keyed_cluster_driver MASTER FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.pipeline.keyed_jobs import Paused, Shop
from tidegate.pipeline.keyed import process
from tidegate.pipeline.session import SessionSettings, build_session, end_session


def main(master: str, folder: Path) -> None:
    """Run the query over all rows in the folder."""
    extra = {"spark.executor.memory": "512m", "spark.executor.cores": "1"}
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
