"""The columns of a message of a topic, in the order of the wire.

Record batches of the log, Arrow answers of the server and Spark's source all have this schema.
"""

from __future__ import annotations

import pyarrow as pa

MESSAGE_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("message_id", pa.int64(), nullable=False),
        pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("op", pa.string(), nullable=False),
        pa.field("source", pa.string()),
        pa.field("payload_mode", pa.string(), nullable=False),
        pa.field("key", pa.string()),
        # JSON text for readers. In the log other bytes of the same layout, where the codec says so.
        pa.field("payload", pa.string(), nullable=False),
        # Whose row a change of a USER table is.
        pa.field("user", pa.string()),
    ]
)
