"""The operator: the class that users derive from, to turn the events of a key and its state into rows.

`plan_operator` (operator_plan.py) checks an operator before any row is touched.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Generic

import pyarrow as pa

from tidegate.state.context import BatchContext, Context, OpenContext, Timer

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # The defaults let `class Count(KeyedOperator)` pass a strict type checker.
    In = TypeVar("In", default=Any)
    Out = TypeVar("Out", default=Any)
else:
    from typing import TypeVar

    In = TypeVar("In")
    Out = TypeVar("Out")


class KeyedOperator(Generic[In, Out]):
    """Turns the rows of each key into rows of output, with state of that key alone.

    Write `process` (one event at a time) or `process_batch` (Arrow batches), not both. `output` has the
    columns of the output as DDL text such as "user_id string, n long"; with an output dataclass as the second
    generic argument it is not needed. With an input dataclass as the first one, events are built as that
    class; without it, an event is a record with the columns as attributes.

    States are class attributes. Other attributes of `self` are lost after the batch: an operator is copied
    for each batch of each partition. A row that fails is rolled back in the states, not on `self`.
    """

    output: ClassVar[str | type | pa.Schema | None] = None

    def process(self, event: In, ctx: Context) -> Iterable[Out] | Out | None:
        """Process one event; yield or return rows of output: None, one row, or a list of them.

        A row is an instance of the output dataclass, a dict by column or a tuple in the order of the columns.
        """
        raise NotImplementedError

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        """Process many rows at once; yield or return RecordBatches, Tables or dicts of arrays.

        The boundaries of batches have no meaning: rows of one key may lie in several. Where failed rows
        become dead letters, a batch that fails is rolled back and processed again in halves.
        """
        raise NotImplementedError

    def on_timer(self, timer: Timer, ctx: Context) -> Iterable[Out] | Out | None:
        """Process a timer that fires; yield or return rows of output as `process` does."""
        raise NotImplementedError

    def open(self, ctx: OpenContext) -> None:
        """Prepare; called once for each batch of each partition, before its first row."""

    def close(self) -> None:
        """Release what `open` acquired; called once after the batch, also if it failed, unless `open` did."""
