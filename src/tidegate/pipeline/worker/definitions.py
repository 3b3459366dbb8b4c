"""Pipeline files: each defines one function under a decorator, which returns the stream to run.

A pipeline file is ordinary Python. Loading runs it, so its imports must be there. Every mistake in it becomes
PipelineInvalid with the file, the line and the reason, and never stops the other pipelines.
"""

from __future__ import annotations

import sys
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.errors import NameInvalid, PipelineInvalid
from tidegate.model.names import check_pipeline_name, check_table_name
from tidegate.pipeline.worker.failures import short_reason
from tidegate.storage.home.home import Home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

# A pipeline file is a page or two of Python; a larger file was named by mistake.
FILE_BYTES_MAX = 1 << 20
MODULE_PREFIX = "tidegate_pipeline_"


class PipelineContext:
    """The argument of a pipeline function: the Spark session, its checkpoint and the paths of the home."""

    def __init__(self, spark: SparkSession, home: Home | Path | str, name: str = "pipeline") -> None:
        """Raise HomeUnusable where `home` is a path without a home."""
        self.spark = spark
        self.home = home if isinstance(home, Home) else Home.existing(Path(home))
        self.checkpoint = str(self.home.checkpoints_path / check_pipeline_name(name))
        self._tables: list[str] = []

    def lake(self, name: str) -> str:
        """Return the path of the Delta table that SQL knows as lake.<name>."""
        path = self.home.lake_path / check_table_name(name)
        if name not in self._tables:
            self._tables.append(name)
        return str(path)

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables whose paths were requested so far, in order."""
        return tuple(self._tables)


@dataclass(frozen=True, slots=True)
class PipelineDefinition:
    """A named function from a Context to a stream that is ready to start."""

    name: str
    function: Callable[[PipelineContext], DataStreamWriter]

    def __call__(self, context: PipelineContext) -> DataStreamWriter:
        return self.function(context)

    @property
    def file(self) -> str:
        """The file that defines the function."""
        return self.function.__code__.co_filename

    @property
    def line(self) -> int:
        """The line on which the function, or its decorator, begins."""
        return self.function.__code__.co_firstlineno


def pipeline(*, name: str) -> Callable[[Callable[[PipelineContext], DataStreamWriter]], PipelineDefinition]:
    """Return a decorator that makes a function the pipeline of this name."""
    check_pipeline_name(name)

    def mark(function: Callable[[PipelineContext], DataStreamWriter]) -> PipelineDefinition:
        return PipelineDefinition(name, function)

    return mark


def load_pipeline(path: Path) -> PipelineDefinition:
    """Run a file and return the one pipeline that it defines; raise PipelineInvalid for anything else.

    Functions of the file are pickled by value for Spark's Python workers, so they may be used in UDFs
    although no worker can import the file.
    """
    module = _run(path)
    definitions = {
        id(value): value
        for value in vars(module).values()
        if isinstance(value, PipelineDefinition) and value.file == str(path)
    }
    if not definitions:
        raise _invalid(path, None, "no function in it is under @tide.pipeline(name=…)")
    first, *others = sorted(definitions.values(), key=lambda definition: definition.line)
    if others:
        reason = f"'{first.name}' and '{others[0].name}' are both under @tide.pipeline; a file has one"
        raise _invalid(path, others[0].line, reason)
    return first


def build_writer(definition: PipelineDefinition, context: PipelineContext) -> DataStreamWriter:
    """Call the function and return its stream, not yet started; raise PipelineInvalid where it returns none.

    What the function raises is raised unchanged.
    """
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    result: Any = definition(context)
    if isinstance(result, DataStreamWriter):
        return result
    if isinstance(result, StreamingQuery):
        result.stop()
        reason = f"'{definition.name}' starts its stream itself; leave .start() away, the worker does it"
    elif isinstance(result, DataFrame):
        reason = (
            f"'{definition.name}' returns a DataFrame; return its .writeStream…, which says where the rows go"
        )
    elif result is None:
        reason = f"'{definition.name}' returns nothing; write 'return rows.writeStream…'"
    else:
        kind = type(result).__name__
        reason = f"'{definition.name}' returns a {kind}, not a DataStreamWriter (rows.writeStream…)"
    raise _invalid(Path(definition.file), definition.line, reason)


def _run(path: Path) -> types.ModuleType:
    from pyspark import cloudpickle

    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise _invalid(path, None, f"it is larger than {FILE_BYTES_MAX} bytes")
        code = compile(path.read_bytes(), str(path), "exec")
    except OSError as problem:
        raise _invalid(path, None, problem.strerror or str(problem)) from problem
    except SyntaxError as problem:
        raise _invalid(path, problem.lineno, f"{problem.msg}") from problem
    except ValueError as problem:
        raise _invalid(path, None, str(problem)) from problem
    module = types.ModuleType(MODULE_PREFIX + path.stem)
    module.__file__ = str(path)
    # Dataclasses and pickling look their module up by name.
    sys.modules[module.__name__] = module
    cloudpickle.register_pickle_by_value(module)
    try:
        exec(code, vars(module))  # noqa: S102 - running the user's file is what loading is
    except NameInvalid as problem:
        raise _invalid(path, line_in(path, problem), str(problem), problem.hint) from problem
    except SystemExit as problem:
        raise _invalid(path, line_in(path, problem), "it exits while it is loaded") from problem
    except Exception as problem:
        raise _invalid(path, line_in(path, problem), short_reason(problem)) from problem
    return module


def _invalid(path: Path, line: int | None, reason: str, hint: str | None = None) -> PipelineInvalid:
    where = f"line {line}: " if line else ""
    return PipelineInvalid(file=str(path), line=line, reason=f"{where}{reason.rstrip('.')}.", hint=hint)


def line_in(path: Path, problem: BaseException) -> int | None:
    """Return the innermost line of the user's own file in a traceback."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == str(path)
    ]
    return lines[-1] if lines else None
