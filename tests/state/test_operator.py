"""What is found out about an operator before any row is touched, and what is refused."""

# ruff: noqa: ARG002 - operators of these tests are looked at, not run
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pytest

from tidegate.errors import StateInvalid
from tidegate.state.context import BatchContext, Context, OpenContext, Timer
from tidegate.state.kinds.value import ValueState
from tidegate.state.operator import KeyedOperator
from tidegate.state.operator_plan import plan_operator


@dataclass
class Click:
    user_id: str
    feature: str


@dataclass
class Total:
    user_id: str
    n: int
    top: list[tuple[str, int]]
    last: str | None = None


class Typed(KeyedOperator[Click, Total]):
    n = ValueState(int, default=0)

    def process(self, event: Click, ctx: Context) -> Iterator[Total]:
        yield Total(event.user_id, self.n.value(), [])


class Plain(KeyedOperator):
    output = "user_id string, n long"
    n = ValueState(int, default=0)

    def process(self, event: Any, ctx: Context) -> Any:
        return None


class Vectorised(KeyedOperator):
    output = "n long"

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        return {"n": [batch.num_rows]}


def test_types_come_from_the_brackets() -> None:
    plan = plan_operator(Typed(), "totals")
    assert (plan.in_type, plan.out_type, plan.form, plan.has_timers) == (Click, Total, "rows", False)
    pairs = pa.list_(
        pa.field(
            "element",
            pa.struct([pa.field("_1", pa.string(), False), pa.field("_2", pa.int64(), False)]),
            False,
        )
    )
    assert plan.out_schema == pa.schema(
        [
            pa.field("user_id", pa.string(), False),
            pa.field("n", pa.int64(), False),
            pa.field("top", pairs, False),
            pa.field("last", pa.string()),
        ]
    )
    assert [spec.name for spec in plan.specs] == ["n"]


def test_without_brackets_ddl_says_what_comes_out() -> None:
    plan = plan_operator(Plain(), "totals")
    assert (plan.in_type, plan.out_type) == (None, None)
    assert plan.out_schema == pa.schema([("user_id", pa.string()), ("n", pa.int64())])
    assert plan_operator(Vectorised(), "totals").form == "batches"


def test_an_arrow_schema_or_a_dataclass_may_stand_as_output() -> None:
    class BySchema(KeyedOperator):
        output = pa.schema([("n", pa.int8())])

        def process(self, event: Any, ctx: Context) -> Any:
            return None

    class ByClass(KeyedOperator):
        output = Click

        def process(self, event: Any, ctx: Context) -> Any:
            return None

    assert plan_operator(BySchema(), "x").out_schema == pa.schema([("n", pa.int8())])
    assert plan_operator(ByClass(), "x").out_schema.names == ["user_id", "feature"]


Made = TypeVar("Made")


class Middle(KeyedOperator[Click, Made], Generic[Made]):
    shared = ValueState(int)

    def process(self, event: Click, ctx: Context) -> Made | None:
        return None


class Last(Middle[Total]):
    own = ValueState(str)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        return None


def test_parents_pass_on_types_and_states() -> None:
    plan = plan_operator(Last(), "x")
    assert (plan.in_type, plan.out_type, plan.has_timers) == (Click, Total, True)
    assert list(plan.states) == ["shared", "own"]


def test_a_state_that_a_child_removed_is_gone() -> None:
    class Less(Plain):
        n = None  # type: ignore[assignment]

    assert plan_operator(Less(), "x").states == {}


class _Neither(KeyedOperator):
    output = "n long"


class _Both(Plain):
    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        return None


class _NoOutput(KeyedOperator):
    def process(self, event: Any, ctx: Context) -> Any:
        return None


class _WrongDdl(Plain):
    output = "user_id strin"


class _OddInput(KeyedOperator[int, Total]):
    def process(self, event: int, ctx: Context) -> None:
        return None


class _OtherColumns(Typed):
    output = "user_id string"


class _MadeInInit(Plain):
    def __init__(self) -> None:
        self.late = ValueState(int)


class _SameName(Plain):
    m = ValueState(str, name="n")


class _Async(Plain):
    async def process(self, event: Any, ctx: Context) -> Any:
        return None


class _OpenYields(Plain):
    def open(self, ctx: OpenContext) -> Any:
        yield 1


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        (_Neither(), "neither process nor process_batch"),
        (_Both(), "both process and process_batch"),
        (_NoOutput(), "does not say what comes out"),
        (_WrongDdl(), "'strin' where a type"),
        (_OddInput(), "give a dataclass as the first generic argument"),
        (_OtherColumns(), "output names user_id, but"),
        (_MadeInInit(), "'late' was made in __init__"),
        (_SameName(), "two states have the name 'n'"),
        (_Async(), "_Async.process is async"),
        (_OpenYields(), "_OpenYields.open yields"),
        (Plain, "give Plain\\(\\)"),
        (object(), "object is not a KeyedOperator"),
    ],
)
def test_what_cannot_run_is_refused_with_what_to_do(operator: Any, words: str) -> None:
    """Case 3: two states with one name and the like are refused before any row is touched."""
    with pytest.raises(StateInvalid, match=words):
        plan_operator(operator, "totals")
