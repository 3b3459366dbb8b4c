"""The public door for Spark: what a pipeline file imports as `tide`.

`pipeline` marks the function of a pipeline file, `Context` is what that function is given, and `register`
adds the source `tidegate.topic` to a Spark session that is not ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.pipeline.definitions import Context, Pipeline, pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Context", "Pipeline", "pipeline", "register"]


def register(spark: SparkSession) -> None:
    """Make `format("tidegate.topic")` known to a session; one that knows it already stays as it is."""
    from tidegate.pipeline.source import register_source

    register_source(spark)
