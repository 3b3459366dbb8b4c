"""The first pipeline of the demo: messages of `demo.readings` become rows of `lake.readings`."""

from typing import Any

from tidegate import spark as tide

READING = "entity STRING, measured_at TIMESTAMP, voltage DOUBLE, current DOUBLE, late BOOLEAN"


@tide.pipeline(name="readings")
def readings(ctx: tide.Context) -> Any:
    """Copy each message as one row, with its fields, its partition and its offset as columns."""
    messages = ctx.spark.readStream.format("tidegate.topic").option("topic", "demo.readings").load()
    parsed = messages.selectExpr(f"from_json(payload, '{READING}') AS reading", "partition", "offset")
    rows = parsed.selectExpr("reading.*", "partition", "offset")
    return rows.writeStream.format("delta").option("path", ctx.lake("readings"))
