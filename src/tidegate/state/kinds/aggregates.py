"""Aggregate functions: an accumulator into which values are folded, and the result of it.

A user's function need not derive from `AggregateFunction`: any object with `create`,
`add(accumulator, value)` and `result(accumulator)` is one, and so is any with the methods of Flink's
AggregateFunction: `create_accumulator`, `add(value, accumulator)` and `get_result(accumulator)`.
"""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin, get_type_hints

from tidegate.errors import ValueInvalid

IN = TypeVar("IN")
ACC = TypeVar("ACC")
OUT = TypeVar("OUT")

PLACE = "function of an AggregatingState"
_METHODS = ("create", "add", "result")
_FLINK_METHODS = ("create_accumulator", "add", "get_result")
_PLAIN_TYPES = (bool, int, float, str, bytes)
_NO_METHOD = object()


class AggregateFunction(Generic[IN, ACC, OUT]):
    """The function of an AggregatingState: values are folded into an accumulator, which has a result.

    `accumulator` is the accumulator's type, by which it is stored; where it is not set, it is the second
    generic argument, else the return annotation of `create`, else the type of what `create` returns. `add`
    may change the accumulator in place, or return another.
    """

    accumulator: ClassVar[Any] = None

    def create(self) -> ACC:
        """Return an empty accumulator."""
        raise NotImplementedError

    def add(self, accumulator: ACC, value: IN) -> ACC:
        """Fold a value in and return the accumulator."""
        raise NotImplementedError

    def result(self, accumulator: ACC) -> OUT:
        """Return the result of what was added."""
        raise NotImplementedError

    def merge(self, first: ACC, second: ACC) -> ACC:
        """Return the accumulator of the values of both."""
        raise NotImplementedError


class _FlinkAdapter(AggregateFunction[Any, Any, Any]):
    """A function with Flink's names and order of arguments."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def create(self) -> Any:
        return self.function.create_accumulator()

    def add(self, accumulator: Any, value: Any) -> Any:
        return self.function.add(value, accumulator)

    def result(self, accumulator: Any) -> Any:
        return self.function.get_result(accumulator)

    def merge(self, first: Any, second: Any) -> Any:
        return self.function.merge(first, second)


def adapt_function(function: Any) -> tuple[AggregateFunction[Any, Any, Any], Any]:
    """Return an aggregate function and the type of its accumulator; ValueInvalid for any other object."""
    if _has(function, _METHODS):
        return function, _accumulator_of(function, "create")
    if _has(function, _FLINK_METHODS):
        return _FlinkAdapter(function), _accumulator_of(function, "create_accumulator")
    reason = f"{type(function).__name__} has not {', '.join(_METHODS)}; derive it from tide.AggregateFunction"
    raise ValueInvalid(place=PLACE, reason=reason)


def _has(function: Any, names: tuple[str, ...]) -> bool:
    """Return whether the methods are there; the abstract ones of AggregateFunction do not count."""
    if isinstance(function, type):
        return False
    return all(
        callable(getattr(function, name, None))
        and getattr(type(function), name, None) is not getattr(AggregateFunction, name, _NO_METHOD)
        for name in names
    )


def _accumulator_of(function: Any, maker: str) -> Any:
    declared = getattr(function, "accumulator", None)
    if declared is not None:
        return declared
    for parent in getattr(type(function), "__orig_bases__", ()):
        if get_origin(parent) is AggregateFunction and not isinstance(get_args(parent)[1], TypeVar):
            return get_args(parent)[1]
    try:
        hinted = get_type_hints(getattr(type(function), maker)).get("return")
    except NameError:  # the annotation names what only a type checker sees
        hinted = None
    found = hinted if hinted not in (None, Any) else _type_of(getattr(function, maker)())
    if found is None or isinstance(found, TypeVar):
        reason = (
            f"{type(function).__name__} does not say `accumulator = …`, the type of its accumulator, "
            f"and what {maker} returns does not show it"
        )
        raise ValueInvalid(place=PLACE, reason=reason)
    return found


def _type_of(value: Any) -> Any:
    """Return the type by which a value is stored; None where the value does not determine it."""
    if isinstance(value, _PLAIN_TYPES) or is_dataclass(value):
        return type(value)
    if isinstance(value, tuple) and value:
        parts = [_type_of(part) for part in value]
        return None if None in parts else tuple[tuple(parts)]  # type: ignore[misc]
    return None
