"""Aggregate functions: take values into an accumulator, give a result; known by what they can do.

A user's function need not derive from `AggregateFunction`: whatever has `create`, `add(accumulator, value)`
and `result(accumulator)` is one, and so is whatever has the names that Flink's users know:
`create_accumulator`, `add(value, accumulator)` and `get_result(accumulator)`.
"""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin, get_type_hints

from tidegate.errors import ValueInvalid

IN = TypeVar("IN")
ACC = TypeVar("ACC")
OUT = TypeVar("OUT")

PLACE = "function of an AggregatingState"
_OURS = ("create", "add", "result")
_FLINKS = ("create_accumulator", "add", "get_result")
_PLAIN_TYPES = (bool, int, float, str, bytes)


class AggregateFunction(Generic[IN, ACC, OUT]):
    """How an AggregatingState folds: values go into an accumulator, from which the result is made.

    `accumulator` is the accumulator's type, by which it is stored; where it is not set, it is the second
    generic argument, else what `create` says that it returns, else the type of what it returns. `add` may
    change the accumulator that it is given, or make another.
    """

    accumulator: ClassVar[Any] = None

    def create(self) -> ACC:
        """Return an accumulator in which nothing is yet."""
        raise NotImplementedError

    def add(self, accumulator: ACC, value: IN) -> ACC:
        """Fold a value in and give the accumulator."""
        raise NotImplementedError

    def result(self, accumulator: ACC) -> OUT:
        """Return the result of what was added."""
        raise NotImplementedError

    def merge(self, first: ACC, second: ACC) -> ACC:
        """Return the accumulator of what was added to either."""
        raise NotImplementedError


class _Renamed(AggregateFunction[Any, Any, Any]):
    """A function with Flink's names and their order."""

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


def adapted(function: Any) -> tuple[AggregateFunction[Any, Any, Any], Any]:
    """Return a function under our names, and the type of its accumulator; ValueInvalid where it is none."""
    if _has(function, _OURS):
        return function, _accumulator_of(function, "create")
    if _has(function, _FLINKS):
        return _Renamed(function), _accumulator_of(function, "create_accumulator")
    reason = f"{type(function).__name__} has not {', '.join(_OURS)}; derive it from tide.AggregateFunction"
    raise ValueInvalid(place=PLACE, reason=reason)


def _has(function: Any, names: tuple[str, ...]) -> bool:
    """Return whether the methods are there; those that AggregateFunction only names do not count."""
    if isinstance(function, type):
        return False
    written = (getattr(type(function), name, None) for name in names)
    unwritten = (getattr(AggregateFunction, name, None) for name in names)
    return all(
        callable(getattr(function, name, None)) and (method is None or method is not bare)
        for name, method, bare in zip(names, written, unwritten, strict=True)
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
            f"and what {maker} returns does not tell"
        )
        raise ValueInvalid(place=PLACE, reason=reason)
    return found


def _type_of(value: Any) -> Any:
    """Return the type by which a value is stored; None where the value alone does not say."""
    if isinstance(value, _PLAIN_TYPES) or is_dataclass(value):
        return type(value)
    if isinstance(value, tuple) and value:
        parts = [_type_of(part) for part in value]
        return None if None in parts else tuple[tuple(parts)]  # type: ignore[misc]
    return None
