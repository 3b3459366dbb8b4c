"""Every example runs, on a real server and in Spark, and leaves the rows that it promises."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

import tidegate
from tests.paths import ROOT
from tidegate.pipeline.jars import delta_jars
from tidegate.pipeline.worker.definitions import PipelineContext, build_writer, load_pipeline
from tidegate.storage.home.home import Home
from tidegate.testing.server import running_server

EXAMPLES = ROOT / "examples"
DEMO = Path(tidegate.__file__).parent / "cli" / "demo" / "readings_pipeline.py"
EVENT = {"customer": "ada", "amount": 12.5}
READING = {
    "entity": "m",
    "measured_at": "2026-01-01T00:00:00Z",
    "voltage": 230.0,
    "current": 1.0,
    "late": False,
}


@dataclass(frozen=True)
class Case:
    """A pipeline, a message for its topic, and what its table must hold then."""

    file: Path
    topic: str
    payload: dict[str, Any]
    table: str
    expected: dict[str, Any]


CASES = [
    Case(EXAMPLES / "first_pipeline.py", "app.events", EVENT, "events", {"customer": "ada", "amount": 12.5}),
    Case(DEMO, "demo.readings", READING, "readings", {"entity": "m", "voltage": 230.0}),
]


@pytest.mark.spark
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.table)
def test_an_example_fills_its_table(
    spark: Any,
    spark_home: Path,
    home: Path,
    case: Case,
) -> None:
    with running_server(home) as server, tidegate.connect(server.url, token=server.token) as client:
        spark_home.unlink(missing_ok=True)
        spark_home.symlink_to(home)
        client.topics.create(case.topic, partitions=2).publish([{"payload": case.payload}])
        context = PipelineContext(spark, Home.existing(home))
        writer = build_writer(load_pipeline(case.file), context)
        writer.trigger(availableNow=True).start(
            checkpointLocation=str(home / "checkpoints" / case.table)
        ).awaitTermination()
        (row,) = deltalake.DeltaTable(str(home / "lake" / case.table)).to_pyarrow_table().to_pylist()
        assert {name: row[name] for name in case.expected} == case.expected


CLICKS = [
    ("ada", "map", "2026-01-01T10:00:00Z"),
    ("ada", "chart", "2026-01-01T10:05:00Z"),
    ("bob", "map", "2026-01-01T10:06:00Z"),
    ("ada", "map", "2026-01-01T10:20:00Z"),
]
LATER = [("cleo", "map", "2026-01-01T12:00:00Z"), ("ada", "export", "2026-01-01T12:01:00Z")]
LAST = [("dan", "map", "2026-01-01T14:00:00Z")]


@pytest.mark.spark
def test_the_sessions_of_a_plain_spark_job_go_on_over_restarts(spark: Any, tmp_path: Path) -> None:
    sessions = load_example("sessions.py")
    clicks, visits, checkpoint = (tmp_path / name for name in ("clicks", "visits", "checkpoint"))
    clicks.mkdir()
    # Each run has another number of partitions, and another file.
    for partitions, rows in ((1, CLICKS), (3, LATER), (2, LAST)):
        lines = [json.dumps(dict(zip(("user_id", "feature", "at"), row, strict=True))) for row in rows]
        (clicks / f"{partitions}.json").write_text("\n".join(lines))
        read = spark.readStream.schema("user_id string, feature string, at timestamp").json(str(clicks))
        query = (
            sessions.visits(read, str(checkpoint), partitions)
            .writeStream.format("parquet")
            .option("path", str(visits))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    found = sorted(
        (row.user_id, row.seconds, row.clicks, [tuple(pair) for pair in row.top_features])
        for row in spark.read.parquet(str(visits)).collect()
    )
    assert found == [
        ("ada", 0.0, 1, [("export", 1)]),
        ("ada", 1200.0, 3, [("map", 2), ("chart", 1)]),
        ("bob", 0.0, 1, [("map", 1)]),
        ("cleo", 0.0, 1, [("map", 1)]),
    ]


ORDERS = [
    ("a", 1.0, "2026-01-01T10:00:00Z"),
    ("b", 2.0, "2026-01-02T10:00:00Z"),
    ("a", 3.0, "2026-02-01T10:00:00Z"),
]
# 100 days after its first one, an order is another one with the same id.
MORE_ORDERS = [
    ("b", 4.0, "2026-01-01T10:00:00Z"),
    ("c", 5.0, "2026-01-01T10:00:00Z"),
    ("a", 6.0, "2026-04-11T10:00:00Z"),
]


@pytest.mark.spark
def test_the_orders_of_a_plain_spark_job_are_unique_over_restarts(spark: Any, tmp_path: Path) -> None:
    dedup = load_example("dedup.py")
    orders, unique, checkpoint = (tmp_path / name for name in ("orders", "unique", "checkpoint"))
    orders.mkdir()
    for partitions, rows in ((2, ORDERS), (1, MORE_ORDERS)):
        lines = [json.dumps(dict(zip(("order_id", "amount", "at"), row, strict=True))) for row in rows]
        (orders / f"{partitions}.json").write_text("\n".join(lines))
        read = spark.readStream.schema("order_id string, amount double, at timestamp").json(str(orders))
        query = (
            dedup.unique_orders(read, str(checkpoint), partitions)
            .writeStream.format("parquet")
            .option("path", str(unique))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    assert sorted(row.amount for row in spark.read.parquet(str(unique)).collect()) == [1.0, 2.0, 5.0, 6.0]


RUN_IN_SPARK = re.compile(r"^<!-- run in Spark -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ORDERS_FILE = re.compile(r"^cat > orders.py <<'EOF'\n(.*?)^EOF$", re.MULTILINE | re.DOTALL)
STORED_ORDER = {"partition": 0, "offset": 0, "ts": datetime(2026, 1, 1, tzinfo=UTC), "customer": "bob"}
ORDER_TYPES = {"partition": pa.int32(), "ts": pa.timestamp("us", tz="UTC")}


@pytest.mark.spark
def test_the_snippets_of_the_lake_page_run(
    spark: Any, spark_home: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ROOT / "docs" / "guide" / "lake.md"
    session, notebook = RUN_IN_SPARK.findall(page.read_text(encoding="utf-8"))
    (pipeline,) = ORDERS_FILE.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    (tmp_path / "orders.py").write_text(pipeline, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    shuffle_partitions = spark.conf.get("spark.sql.shuffle.partitions")
    with running_server(home) as server, tidegate.connect(server.url, token=server.token) as client:
        spark_home.unlink(missing_ok=True)
        spark_home.symlink_to(home)
        client.topics.create("app.events").publish([{"payload": EVENT}])
        table = pa.Table.from_pylist([STORED_ORDER | {"amount": 7.0}])
        fields = [pa.field(field.name, ORDER_TYPES.get(field.name, field.type)) for field in table.schema]
        deltalake.write_deltalake(str(home / "lake" / "orders"), table.cast(pa.schema(fields)))
        names: dict[str, Any] = {}
        try:
            for snippet in (session, notebook):
                text = snippet.replace("/data/tidegate", str(home)).replace(
                    "/tmp/orders-try", f"{tmp_path}/try"
                )
                exec(compile(text, str(page), "exec"), names)  # noqa: S102 - snippets of our own page
        finally:
            spark.conf.set("spark.sql.shuffle.partitions", shuffle_partitions)
            sys.modules.pop("orders", None)
    assert names["jars"] == delta_jars()[0].parent
    rows = deltalake.DeltaTable(str(home / "lake" / "orders")).to_pyarrow_table().to_pylist()
    assert sorted((row["customer"], row["amount"]) for row in rows) == [("ada", 12.5), ("bob", 7.0)]


def load_example(name: str) -> Any:
    """Import an example by its path, as a module whose classes Spark's workers get by value."""
    from pyspark import cloudpickle

    spec = importlib.util.spec_from_file_location(f"example_{Path(name).stem}", EXAMPLES / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    cloudpickle.register_pickle_by_value(module)
    spec.loader.exec_module(module)
    return module


def test_no_example_is_left_out() -> None:
    tested = [case.file for case in CASES if case.file.parent == EXAMPLES]
    tested += [EXAMPLES / name for name in ("sessions.py", "dedup.py")]
    # tests/dedup/test_dedup_consumer.py runs it: it needs no Spark.
    tested += [EXAMPLES / "dedup_consumer.py"]
    assert sorted(tested) == sorted(EXAMPLES.glob("*.py"))
