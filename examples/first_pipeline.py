"""A first pipeline: messages of the topic `app.events` become rows of the table `lake.events`.

Try it beside a running `tidegate up`:

    tidegate topic create app.events
    tidegate pipeline run examples/first_pipeline.py
    tidegate topic publish app.events '{"customer": "ada", "amount": 12.5}'
    tidegate sql "SELECT customer, amount FROM lake.events"
"""

from typing import Any

from tidegate import spark as tide

EVENT = "customer STRING, amount DOUBLE"


@tide.pipeline(name="events")
def events(ctx: tide.Context) -> Any:
    messages = ctx.spark.readStream.format("tidegate.topic").option("topic", "app.events").load()
    parsed = messages.selectExpr("partition", "offset", "ts", f"from_json(payload, '{EVENT}') AS event")
    rows = parsed.selectExpr("partition", "offset", "ts", "event.*")
    return rows.writeStream.format("delta").option("path", ctx.lake("events"))
