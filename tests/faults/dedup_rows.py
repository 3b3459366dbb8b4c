"""What goes into a deduplication: rows drawn from a seed, with all that makes deciding hard.

Keys of two columns, either of which may be null. Duplicates in the same batch, in the next ones and from long
ago; times out of order, some too late; times that lie exactly the retention apart and a microsecond less;
times on the edge of a segment; and a clock that jumps ahead once.
"""

from __future__ import annotations

import datetime
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.faults.rows import FILES_PER_BATCH, FIRST_FILE_SECONDS

SECOND_US = 1_000_000
RETENTION = "20 min"
RETENTION_US = 1_200 * SECOND_US
INTERVAL_US = RETENTION_US // 2
BEGIN = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)
BEGIN_US = int(BEGIN.timestamp()) * SECOND_US
BATCH_US = 240 * SECOND_US
# Back by more than the retention: the oldest are late.
LATE_US = RETENTION_US + 600 * SECOND_US
JUMP_US = 900 * SECOND_US
COLUMNS = "id bigint, site string, number bigint, at timestamp, body string"

ARROW_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("site", pa.string()),
        ("number", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("body", pa.string()),
    ]
)

Key = tuple[str | None, int | None]
Sent = tuple[Key, int]


def write_rows(folder: Path, seed: int, batches: int, batch_rows: int) -> None:
    """Write the files of every batch."""
    folder.mkdir(parents=True, exist_ok=True)
    for batch, table in enumerate(drawn(seed, batches, batch_rows)):
        share = -(-table.num_rows // FILES_PER_BATCH)
        for part in range(FILES_PER_BATCH):
            path = folder / f"b{batch:04d}-{part}.parquet"
            pq.write_table(table.slice(part * share, share), path)
            os.utime(path, (FIRST_FILE_SECONDS + batch,) * 2)


def drawn(seed: int, batches: int, batch_rows: int) -> Iterator[pa.Table]:
    """Yield the rows of every batch."""
    draw = random.Random(seed)
    sent: list[Sent] = []
    jump_at = draw.randrange(batches // 2, batches)
    for batch in range(batches):
        jumped_us = JUMP_US if batch >= jump_at else 0
        newest_us = BEGIN_US + (batch + 1) * BATCH_US + jumped_us
        made = []
        for number in range(batch_rows):
            key, at_us = _row(draw, sent, newest_us)
            sent.append((key, at_us))
            made.append(
                {
                    "id": batch * 1_000_000 + number,
                    "site": key[0],
                    "number": key[1],
                    "at": BEGIN + datetime.timedelta(microseconds=at_us - BEGIN_US),
                    "body": f"{draw.randrange(1_000)}",
                }
            )
        draw.shuffle(made)
        yield pa.Table.from_pylist(made, schema=ARROW_SCHEMA)


def _row(draw: random.Random, sent: list[Sent], newest_us: int) -> Sent:
    if sent and draw.random() < 0.4:
        key, before_us = draw.choice(sent[-300:] if draw.random() < 0.7 else sent)
        return key, _again(draw, before_us, newest_us)
    return _new_key(draw), _new_time(draw, newest_us)


def _again(draw: random.Random, before_us: int, newest_us: int) -> int:
    """Return the time of a key that came before: the same, near, or at the edge of the retention."""
    match draw.randrange(6):
        case 0:
            return before_us
        case 1:
            return min(newest_us, before_us + RETENTION_US)
        case 2:
            return min(newest_us, before_us + RETENTION_US - 1)
        case 3:
            return before_us - RETENTION_US + draw.randrange(2)
        case _:
            return _new_time(draw, newest_us)


def _new_time(draw: random.Random, newest_us: int) -> int:
    match draw.randrange(8):
        case 0:
            return newest_us - draw.randrange(LATE_US)
        case 1:
            return newest_us // INTERVAL_US * INTERVAL_US - draw.randrange(2)
        case _:
            return newest_us - draw.randrange(BATCH_US)


def _new_key(draw: random.Random) -> Key:
    site = draw.choice((None, "", "north", "south"))
    number = draw.choice((None, 0, draw.randrange(10), draw.randrange(10**9)))
    return site, number
