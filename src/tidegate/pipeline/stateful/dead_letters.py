"""The dead letters of a keyed operator: a Delta table of the rows on which it failed, written exactly once.

The table is any folder; in a pipeline most often `ctx.lake("…")`, so that SQL reads it as `lake.…`. A task
appends the rows of a partition in one commit that also names the batch as a Delta transaction of this
operator's partition. A task that runs again finds that transaction and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from tidegate.errors import CheckpointUnusable

DEAD_LETTER_SCHEMA = pa.schema(
    [
        pa.field("operator", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("batch", pa.int64(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("row", pa.string()),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)
# Partitions append to one table at once; each commits on top of the version that it read.
CONFLICTS_MAX = 50


def write_dead_letters(
    path: str, source: str, partition: int, batch: int, batches: Iterable[pa.RecordBatch]
) -> None:
    """Append the failed rows of one partition of a batch, unless that was done before.

    `source` identifies the operator and its query permanently: two queries that write one table differ in it.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    rows = _table(batches)
    if not rows.num_rows:
        return
    uri = _uri(path)
    writer = f"tidegate.dead.{source}.{partition}"
    try:
        if not DeltaTable.is_deltatable(uri):
            DeltaTable.create(uri, schema=DEAD_LETTER_SCHEMA, mode="ignore")
        _append_once(uri, writer, batch, rows)
    except DeltaError as problem:
        reason = f"dead letters cannot be written there: {problem}"
        hint = "Give dead_letters a folder of its own."
        raise CheckpointUnusable(path=path, reason=reason, hint=hint) from problem


def _append_once(uri: str, writer: str, batch: int, rows: pa.Table) -> None:
    """Append rows to the version that was read, and read again after a conflict.

    A conflict is another attempt at the batch that committed first, or another writer that created the table.
    """
    from deltalake import DeltaTable, write_deltalake
    from deltalake.exceptions import CommitFailedError
    from deltalake.transaction import CommitProperties, Transaction

    for conflicts in range(CONFLICTS_MAX):
        table = DeltaTable(uri)
        done = table.transaction_version(writer)
        if done is not None and done >= batch:
            return
        properties = CommitProperties(
            app_transactions=[Transaction(writer, batch)], max_commit_retries=CONFLICTS_MAX
        )
        try:
            write_deltalake(table, rows, mode="append", commit_properties=properties)
        except CommitFailedError:
            if conflicts == CONFLICTS_MAX - 1:
                raise
        else:
            return


def _table(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(list(batches), DEAD_LETTER_SCHEMA)


def _uri(path: str) -> str:
    """Return the URI of a folder for delta-rs, whatever characters are in its name."""
    plain = path.removeprefix("file://").removeprefix("file:")
    return Path(plain).absolute().as_uri()
