"""The preparation of an operator's classes for pickling to Spark's workers.

Classes of a script or of a pipeline file are pickled by value, with all their attributes. msgspec caches in a
class what it found out about it, and that cannot be pickled; the worker finds it out again. Importing this
module is enough for dataclasses.MISSING to be the same object in the worker.
"""

from __future__ import annotations

import copyreg
import dataclasses
import typing
from collections.abc import Iterable, Iterator
from typing import Any

from tidegate.state.operator_plan import OperatorPlan
from tidegate.state.serializers.signatures import hints_of

_MSGSPEC_CACHE = "__msgspec_cache__"


def _by_name(_missing: object) -> str:
    return "MISSING"


# A field without a default is marked by this very object. Pickled by value it would be another object in the
# worker, and every field would seem to have a default.
copyreg.pickle(type(dataclasses.MISSING), _by_name)


def prepare_pickling(plan: OperatorPlan) -> None:
    """Remove from the operator's classes what cannot be pickled; called directly before they are."""
    types = [plan.in_type, plan.out_type, *(kind for state in plan.states.values() for kind in state.types)]
    for found in classes_in(types):
        if _MSGSPEC_CACHE in vars(found):
            delattr(found, _MSGSPEC_CACHE)


def classes_in(types: Iterable[Any]) -> Iterator[type]:
    """Yield every class that the types refer to, with its parents, each once."""
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
