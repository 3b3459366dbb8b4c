"""Spark's own ways to count per key: its aggregate in the JVM, and the three that call Python.

All keep their state in RocksDB with change files. `transformWithState` needs the package protobuf.
"""

# The signatures are the peer's.
# ruff: noqa: ARG002

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row as SparkRow
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

OUTPUT = "k long, n long"
NO_PROTOBUF = "not installed (pip install protobuf)"


def missing_protobuf() -> str | None:
    """Return why transformWithState cannot run here; None when it can."""
    return None if importlib.util.find_spec("google.protobuf") else NO_PROTOBUF


def jvm_count(rows: Any, checkpoint: str) -> Any:  # noqa: ARG001 - all queries take the same
    """Count by Spark's own aggregate."""
    return rows.groupBy("k").count()


def through(rows: Any, checkpoint: str) -> Any:  # noqa: ARG001
    """Do nothing: the floor of a batch."""
    return rows


class _CountRows(StatefulProcessor):  # type: ignore[misc] # pyspark is untyped here
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:  # noqa: N802
        before = self._n.get()
        total = (before[0] if before else 0) + sum(1 for _ in rows)
        self._n.update((total,))
        yield SparkRow(k=key[0], n=total)

    def close(self) -> None:
        pass


class _CountFrames(_CountRows):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:  # noqa: N802
        before = self._n.get()
        total = (before[0] if before else 0) + sum(len(frame) for frame in rows)
        self._n.update((total,))
        yield pd.DataFrame({"k": [key[0]], "n": [total]})


def tws_rows(rows: Any, checkpoint: str) -> Any:  # noqa: ARG001
    """Count by transformWithState in rows."""
    return rows.groupBy("k").transformWithState(_CountRows(), OUTPUT, "update", "none")


def tws_pandas(rows: Any, checkpoint: str) -> Any:  # noqa: ARG001
    """Count by transformWithState in pandas."""
    return rows.groupBy("k").transformWithStateInPandas(_CountFrames(), OUTPUT, "update", "none")


def apply_in_pandas(rows: Any, checkpoint: str) -> Any:  # noqa: ARG001
    """Count by applyInPandasWithState."""

    def count(key: Any, frames: Iterable[Any], state: GroupState) -> Iterator[Any]:
        total = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
        state.update((total,))
        yield pd.DataFrame({"k": [key[0]], "n": [total]})

    return rows.groupBy("k").applyInPandasWithState(
        count, OUTPUT, "n long", "update", GroupStateTimeout.NoTimeout
    )


class _Sessions(StatefulProcessor):  # type: ignore[misc]
    """The session tracker: value, list, map and timer for each event."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._session = handle.getValueState("session", "start long, events long, lasted long")
        self._events = handle.getListState("events", "feature string, at long")
        self._features = handle.getMapState("features", "feature string", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:  # noqa: N802
        for row in rows:
            start, events, _ = self._session.get() or (row.timestamp, 0, 0)
            feature = (row.feature,)
            used = self._features.getValue(feature)[0] if self._features.containsKey(feature) else 0
            self._features.updateValue(feature, (used + 1,))
            self._events.appendValue((row.feature, row.timestamp))
            self._session.update((start, events + 1, row.timestamp - start))
            self._handle.registerTimer(row.timestamp - row.timestamp % 60_000 + 2**41)
            if (events + 1) % 100 == 0:
                yield SparkRow(user_id=key[0], n=events + 1)

    def handleExpiredTimer(self, key: Any, timers: Any, expired: Any) -> Iterator[Any]:  # noqa: N802
        self._events.clear()
        yield from ()

    def close(self) -> None:
        pass


def tws_sessions(rows: Any, checkpoint: str) -> Any:  # noqa: ARG001
    """Track sessions by transformWithState in rows, with timers in processing time."""
    by_user = rows.groupBy("user_id")
    return by_user.transformWithState(_Sessions(), "user_id long, n long", "update", "ProcessingTime")
