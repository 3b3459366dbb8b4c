"""The public interface for Spark: what a pipeline file, or any PySpark job, imports as `tide`.

`process` runs a `KeyedOperator` with state over a DataFrame, with or without a Tidegate server; `deduplicate`
drops rows whose key was seen before, by columns or by their `content_hash`. States are `ValueState`,
`ListState`, `MapState`, `ReducingState`, `AggregatingState` and `OperatorListState`; `starting_offsets`
returns the source offsets of a savepoint. `pipeline` marks the function of a pipeline file, `Context` is that
function's argument, `to_topic` writes micro-batches into a topic, and `register` adds `tidegate.topic` to any
Spark session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidegate.checkpoint.backends.rocksdb_options import RocksSettings
from tidegate.checkpoint.savepoints.source_offsets import starting_offsets
from tidegate.pipeline.stateful.deduplicate import deduplicate
from tidegate.pipeline.stateful.key_digests import ContentHash, content_hash
from tidegate.pipeline.stateful.keyed import process
from tidegate.pipeline.worker.definitions import PipelineContext as Context
from tidegate.pipeline.worker.definitions import PipelineDefinition as Pipeline
from tidegate.pipeline.worker.definitions import pipeline
from tidegate.state.context import BatchContext, OpenContext, Timer
from tidegate.state.context import Context as KeyedContext
from tidegate.state.instant import Moment
from tidegate.state.kinds.aggregates import AggregateFunction
from tidegate.state.kinds.list import ListState
from tidegate.state.kinds.map import MapState
from tidegate.state.kinds.operator_list import OperatorListState
from tidegate.state.kinds.reducing import AggregatingState, ReducingState
from tidegate.state.kinds.value import ValueState
from tidegate.state.operator import KeyedOperator
from tidegate.state.schema.migrations import Migration
from tidegate.state.serializers.registry import JsonSerializer, Serializer
from tidegate.state.ttl import Ttl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "BatchContext",
    "ContentHash",
    "Context",
    "JsonSerializer",
    "KeyedContext",
    "KeyedOperator",
    "ListState",
    "MapState",
    "Migration",
    "Moment",
    "OpenContext",
    "OperatorListState",
    "Pipeline",
    "ReducingState",
    "RocksSettings",
    "Serializer",
    "Timer",
    "Ttl",
    "ValueState",
    "content_hash",
    "deduplicate",
    "pipeline",
    "process",
    "register",
    "starting_offsets",
    "to_topic",
]


def register(spark: SparkSession) -> None:
    """Register `format("tidegate.topic")` in a session, once."""
    from tidegate.pipeline.topic.source import register_source

    register_source(spark)


def to_topic(topic: str, *, name: str = "", **options: Any) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that writes each micro-batch into a topic exactly once.

    The options are those of the sink. A query that writes into one topic in two places gives each a `name`.
    """
    from tidegate.pipeline.topic.options import parse_sink_options
    from tidegate.pipeline.topic.sink import BatchSink

    texts = {"topic": topic, **{option: str(value) for option, value in options.items()}}
    parse_sink_options(texts, streaming=True)
    return BatchSink(texts, name)
