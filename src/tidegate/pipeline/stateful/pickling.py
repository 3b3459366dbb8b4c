"""Classes that travel: takes the classes of an operator, gives them as Spark can send them to its workers.

Classes of a script or of a pipeline file travel by value, with everything that stands in them. msgspec leaves
in a class what it found out about it, and that cannot be sent; it is found out again on the other side.
To import this is enough for dataclasses.MISSING to be itself on the other side.
"""

from __future__ import annotations

import copyreg
import dataclasses
import typing
from collections.abc import Iterable, Iterator
from typing import Any

from tidegate.state.operator_plan import OperatorPlan
from tidegate.state.schema.signatures import hints_of

_MSGSPEC_CACHE = "__msgspec_cache__"


def _by_name(_missing: object) -> str:
    return "MISSING"


# A field without a default says so by this very object. Sent by value it would be another one on the other
# side, and every field would seem to have a default.
copyreg.pickle(type(dataclasses.MISSING), _by_name)


def prepare_pickling(plan: OperatorPlan) -> None:
    """Take from the operator's classes what cannot be sent; to be called last before they are."""
    types = [plan.in_type, plan.out_type, *(kind for state in plan.states.values() for kind in state.types)]
    for found in classes_in(types):
        if _MSGSPEC_CACHE in vars(found):
            delattr(found, _MSGSPEC_CACHE)


def classes_in(types: Iterable[Any]) -> Iterator[type]:
    """Yield every class that the types are made of, with its parents, each once."""
    waiting, seen = list(types), set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        waiting.extend(typing.get_args(one))
        if isinstance(one, type):
            yield one
            waiting.extend(parent for parent in one.__mro__[1:] if parent is not object)
            if dataclasses.is_dataclass(one):
                waiting.extend(hints_of(one).values())
