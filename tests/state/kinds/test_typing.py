"""What a type checker knows of states: `assert_type` is checked by mypy, and here they answer as it says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import assert_type

import pytest

from tests.checkpoint.bench import Bench
from tests.state.kinds.test_declaration import Average
from tidegate.errors import ValueInvalid
from tidegate.state.kinds.list import ListState
from tidegate.state.kinds.map import MapState
from tidegate.state.kinds.operator_list import OperatorListState
from tidegate.state.kinds.reducing import AggregatingState, ReducingState
from tidegate.state.kinds.value import ValueState
from tidegate.state.ttl import Ttl


@dataclass
class Session:
    count: int = 0


class Operator:
    session = ValueState(Session, ttl=Ttl("24 h"))
    count = ValueState(int, default=0)
    pages = ListState(str)
    features = MapState(str, list[int])
    longest = ReducingState(int, max)
    total = ReducingState(float, lambda kept, added: kept + added)
    mean = AggregatingState(Average())
    offsets = OperatorListState(int, redistribute="union")
    annotated: ValueState[int] = ValueState(int)


def test_types_are_known_to_the_checker(tmp_path: Path) -> None:
    bench = Bench("heap", tmp_path / "copy").batch()
    bench.on("ann")
    session, count = bench.bind(Operator.session, 1), bench.bind(Operator.count, 2)
    assert_type(session.value(), Session | None)
    assert_type(session.value() or Session(), Session)
    assert_type(count.value(), int)
    count.update(count.value() + 1)
    assert_type(bench.bind(Operator.annotated, 9).value(), int | None)
    pages, features = bench.bind(Operator.pages, 3), bench.bind(Operator.features, 4)
    assert_type(pages.get(), list[str])
    features.put("a", [1])
    assert_type(features.get("a"), list[int] | None)
    assert_type(features.entries(), list[tuple[str, list[int]]])
    assert_type(features.keys(), list[str])
    assert_type(bench.bind(Operator.longest, 5).get(), int | None)
    assert_type(bench.bind(Operator.total, 6).get(), float | None)
    assert_type(bench.bind(Operator.mean, 7).get(), float | None)
    assert_type(bench.bind(Operator.offsets, 8).get(), list[int])
    assert (session.value(), count.value(), pages.get(), features.get("a")) == (None, 1, [], [1])


def test_what_is_of_another_type_is_refused_by_the_checker(tmp_path: Path) -> None:
    bench = Bench("heap", tmp_path / "copy").batch()
    bench.on("ann")
    count = bench.bind(Operator.count, 1)
    # An ignore that is not needed is an error for the checker, so it refuses each of these lines.
    with pytest.raises(ValueInvalid):
        count.update("one")  # type: ignore[arg-type]
    with pytest.raises(ValueInvalid):
        bench.bind(Operator.features, 2).put(1, [1])  # type: ignore[arg-type]
    with pytest.raises(ValueInvalid):
        bench.bind(Operator.pages, 3).add(1)  # type: ignore[arg-type]
