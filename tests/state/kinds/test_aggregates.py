"""Aggregate functions: known by what they can do, with an accumulator whose type is found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tidegate.errors import ValueInvalid
from tidegate.state.context import Context
from tidegate.state.kinds.aggregates import AggregateFunction, adapt_function
from tidegate.state.kinds.reducing import AggregatingState
from tidegate.state.operator import KeyedOperator
from tidegate.testing.operators import OperatorHarness


@dataclass
class Mean:
    total: float = 0.0
    count: int = 0


class Named(AggregateFunction[float, Mean, float]):
    """The type is the generic argument."""

    def create(self) -> Mean:
        return Mean()

    def add(self, accumulator: Mean, value: float) -> Mean:
        return Mean(accumulator.total + value, accumulator.count + 1)

    def result(self, accumulator: Mean) -> float:
        return accumulator.total / accumulator.count


class Plain:
    """No base class; the type is that of what `create` returns."""

    def create(self) -> Any:
        return (0.0, 0)

    def add(self, accumulator: Any, value: float) -> Any:
        return (accumulator[0] + value, accumulator[1] + 1)

    def result(self, accumulator: Any) -> float:
        return float(accumulator[0] / accumulator[1])


class Flinks:
    """Flink's names, and its order of arguments."""

    def create_accumulator(self) -> Mean:
        return Mean()

    def add(self, value: float, accumulator: Mean) -> Mean:
        return Mean(accumulator.total + value, accumulator.count + 1)

    def get_result(self, accumulator: Mean) -> float:
        return accumulator.total / accumulator.count


class Empty:
    """An empty list says nothing of what will be in it."""

    def create(self) -> Any:
        return []

    def add(self, accumulator: Any, value: Any) -> Any:
        return [*accumulator, value]

    def result(self, accumulator: Any) -> Any:
        return accumulator


@pytest.mark.parametrize(
    ("function", "accumulator"), [(Named(), Mean), (Plain(), tuple[float, int]), (Flinks(), Mean)]
)
def test_any_function_that_can_do_it_gives_the_same_mean(function: Any, accumulator: Any) -> None:
    assert adapt_function(function)[1] == accumulator

    class Averages(KeyedOperator):
        output = "k string, mean double"
        mean: Any = AggregatingState(function)

        def process(self, event: Any, ctx: Context) -> Any:
            self.mean.add(event.v)
            yield {"k": ctx.key, "mean": self.mean.get()}

    harness = OperatorHarness(Averages(), key="k")
    first = harness.feed([{"k": "a", "v": 1.0}, {"k": "a", "v": 3.0}, {"k": "b", "v": 7.0}])
    again = harness.feed([{"k": "a", "v": 5.0}])
    assert [row["mean"] for row in [*first, *again]] == [1.0, 2.0, 7.0, 3.0]


@pytest.mark.parametrize(
    ("function", "reason"), [(Empty(), "accumulator = "), (object(), "has not create"), (Named, "has not")]
)
def test_what_is_no_function_or_hides_its_type_is_refused(function: Any, reason: str) -> None:
    with pytest.raises(ValueInvalid, match=reason):
        AggregatingState(function)
