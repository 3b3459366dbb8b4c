"""A consumer of the topic `app.orders` that drops duplicates, in plain Python: each order is printed once.

Try it beside a running `tidegate up`; give the first line again, and nothing is printed:

    tidegate topic create app.orders
    python examples/dedup_consumer.py seen/ &
    tidegate topic publish app.orders '{"id": "o-1", "at": "2026-01-01T10:00:00Z", "amount": 12.5}'

What was seen lies in the folder. Kill the consumer at any moment and start it again: it continues where it
stopped, no order is left out and none comes twice, but for those it had in hand, which it prints again.
"""

import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import tidegate

GROUP = "dedup"
RETENTION = "100 days"


def new_orders(topic: Any, dedup: tidegate.Deduplicator, wait_ms: int = 5_000) -> Iterator[Any]:
    """Yield the messages of the topic that are new, one page after the other, until none comes."""
    while messages := topic.consume(group=GROUP, limit=1_000, wait_ms=wait_ms)["messages"]:
        yield from dedup.unique(
            messages,
            key=lambda message: message["payload"]["id"],
            time=lambda message: datetime.fromisoformat(message["payload"]["at"]),
            # By its place in the topic a message that is delivered again is known, and is no duplicate.
            offset=lambda message: (message["partition"], message["offset"]),
            late=lambda message: print("too late to say:", message["payload"], file=sys.stderr),
        )
        # Only now: whatever was not acknowledged comes again.
        topic.ack(GROUP, [message["lease"] for message in messages])


def main(folder: str) -> None:
    """Print each order once, for ever."""
    with tidegate.connect() as client, tidegate.Deduplicator("orders", folder, RETENTION) as dedup:
        topic = client.topic("app.orders")
        while True:
            for message in new_orders(topic, dedup):
                print(message["payload"], flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
