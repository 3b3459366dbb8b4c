"""A session on a cluster whose master asks for a secret, as Spark's own settings name it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.pipeline.standalone import Cluster

DRIVER = """
import sys
from pyspark.sql.functions import udf
from tidegate.pipeline.worker.spark_session import SessionSettings, build_session, end_session

spark = build_session(SessionSettings(master=sys.argv[1]))
plus_one = udf(lambda number: number + 1, "long")
total = sum(row[0] for row in spark.range(4).select(plus_one("id")).collect())
print(total, spark.sparkContext.getConf().get("spark.authenticate"))
end_session(spark)
"""


@pytest.mark.spark
def test_a_cluster_with_a_secret_of_its_own_takes_our_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "conf"
    settings.mkdir(mode=0o700)
    secret = "one for this test, and long enough"
    (settings / "spark-defaults.conf").write_text(
        f"spark.authenticate true\nspark.authenticate.secret {secret}\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(settings))
    environ = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    with Cluster(tmp_path / "cluster", workers=1) as cluster:
        answer = subprocess.run(
            [sys.executable, "-c", DRIVER, cluster.url],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
    assert answer.stdout.split() == ["10", "true"], answer.stderr
