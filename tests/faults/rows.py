"""What goes in: rows drawn from a seed, a batch of them in two files, so that their order may differ."""

from __future__ import annotations

import datetime
import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

KEYS = 40
FILES_PER_BATCH = 2
KINDS = ("red", "green", "blue")
BEGIN = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)
BATCH_SECONDS = 60
# Rows come late by up to two batches.
LATE_SECONDS = 120
# The last batch moves the watermark past every timer but its own.
FLUSH_SECONDS = 86_400
COLUMNS = "id bigint, key string, kind string, amount bigint, at timestamp"
# File times are a second apart, so that Spark takes the files in the order of the batches.
FIRST_FILE_SECONDS = 1_700_000_000

ARROW_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("key", pa.string()),
        ("kind", pa.string()),
        ("amount", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)


def write_rows(folder: Path, seed: int, batches: int, batch_rows: int) -> None:
    """Write the files of every batch."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    for batch in range(batches):
        table = _batch(draw, batch, batch_rows, last=batch == batches - 1)
        share = -(-table.num_rows // FILES_PER_BATCH)
        for part in range(FILES_PER_BATCH):
            path = folder / f"b{batch:04d}-{part}.parquet"
            pq.write_table(table.slice(part * share, share), path)
            os.utime(path, (FIRST_FILE_SECONDS + batch,) * 2)


def _batch(draw: random.Random, batch: int, rows: int, *, last: bool) -> pa.Table:
    made = []
    for number in range(rows):
        # A null is a key as any other; some keys are far more frequent than others.
        chosen = int(KEYS * draw.random() ** 2)
        seconds = batch * BATCH_SECONDS + draw.uniform(-LATE_SECONDS, BATCH_SECONDS)
        if last and number == 0:
            seconds += FLUSH_SECONDS
        made.append(
            {
                "id": batch * 1_000_000 + number,
                "key": f"key-{chosen}" if chosen else None,
                "kind": draw.choice(KINDS),
                "amount": draw.randrange(1_000),
                "at": BEGIN + datetime.timedelta(seconds=seconds),
            }
        )
    return pa.Table.from_pylist(made, schema=ARROW_SCHEMA)
