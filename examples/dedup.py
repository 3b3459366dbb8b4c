"""Deduplication in a plain PySpark job: orders that lie in JSON files, each kept once in 100 days.

No Tidegate server is needed. With Tidegate installed beside Spark:

    python examples/dedup.py orders/ unique/ checkpoint/

`orders/` holds files with lines such as {"order_id": "a1", "amount": 12.5, "at": "2026-01-01T10:00:00Z"}.
Run it again with more files, or with another number of partitions: it continues where it stopped.
"""

import sys

from pyspark.sql import DataFrame, SparkSession

from tidegate import spark as tide


def unique_orders(orders: DataFrame, checkpoint: str, partitions: int | None = None) -> DataFrame:
    """Return the orders whose id was not seen in the 100 days around them."""
    return tide.deduplicate(
        orders,
        name="orders",
        on="order_id",
        event_time="at",
        retention="100 days",
        checkpoint=checkpoint,
        partitions=partitions,
    )


def main(source: str, target: str, checkpoint: str) -> None:
    spark = SparkSession.builder.master("local[*,4]").getOrCreate()
    orders = spark.readStream.schema("order_id string, amount double, at timestamp").json(source)
    query = (
        unique_orders(orders, checkpoint)
        .writeStream.format("parquet")
        .option("path", target)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
