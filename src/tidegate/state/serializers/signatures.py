"""Signatures: the types of states as JSON values, which a checkpoint stores.

A signature describes the bytes without the class that wrote them, so that a changed type is noticed and tools
can read a state whose code they do not have:

    "int" "float" "bool" "str" "bytes" "datetime" "date" "decimal" "arrow" "ndarray"
    {"list": x}  {"map": [key, value]}  {"tuple": [x, …]}  {"optional": x}
    {"record": name, "fields": [[name, x], …]}
    {"other": name}    a type that only the user's serializer knows
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import types
import typing
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tidegate.errors import InvariantBroken, StateInvalid

Signature: TypeAlias = Any  # a JSON value of the forms above

# Records nested deeper than this count as a type that contains itself.
DEPTH_MAX = 32

PLAIN: dict[Any, str] = {
    int: "int",
    float: "float",
    bool: "bool",
    str: "str",
    bytes: "bytes",
    dt.datetime: "datetime",
    dt.date: "date",
    Decimal: "decimal",
    pa.RecordBatch: "arrow",
    pa.Table: "arrow",
    np.ndarray: "ndarray",
}
_PLAIN_TYPES: dict[str, Any] = {name: kind for kind, name in PLAIN.items() if kind is not pa.Table}

_KNOWN = "int, float, bool, str, bytes, datetime, date, Decimal, list, dict, tuple, Optional and dataclasses"


def signature_of(python_type: Any, *, operator: str = "(not named yet)") -> Signature:
    """Return the signature of a type; StateInvalid says what to use instead of one that cannot be stored."""
    return _signature(python_type, operator, 0)


def _signature(python_type: Any, operator: str, depth: int) -> Signature:
    if depth > DEPTH_MAX:
        raise StateInvalid(operator=operator, reason=f"the type {type_text(python_type)} contains itself.")
    python_type = unwrapped(python_type)
    if isinstance(python_type, type) and python_type in PLAIN:
        return PLAIN[python_type]
    origin, arguments = typing.get_origin(python_type), typing.get_args(python_type)
    if origin is np.ndarray:
        return "ndarray"
    if origin is list and len(arguments) == 1:
        return {"list": _signature(arguments[0], operator, depth + 1)}
    if origin is dict and len(arguments) == 2:
        return {"map": [_signature(one, operator, depth + 1) for one in arguments]}
    if origin is tuple and arguments and ... not in arguments:
        return {"tuple": [_signature(one, operator, depth + 1) for one in arguments]}
    inner = optional_inner(python_type)
    if inner is not None:
        return {"optional": _signature(inner, operator, depth + 1)}
    if dataclasses.is_dataclass(python_type) and isinstance(python_type, type):
        fields = hints_of(python_type, operator=operator)
        members = [[name, _signature(kind, operator, depth + 1)] for name, kind in fields.items()]
        return {"record": python_type.__name__, "fields": members}
    raise StateInvalid(operator=operator, reason=_why_not(python_type))


def _why_not(python_type: Any) -> str:
    name = type_text(python_type)
    if python_type in (list, dict, tuple):
        return f"{name} does not say what it holds; write list[int], dict[str, int] or tuple[str, int]."
    if typing.get_origin(python_type) is tuple:
        return f"{name} has no fixed length; use list[…] instead."
    if typing.get_origin(python_type) in (set, frozenset) or python_type in (set, frozenset):
        return f"{name} cannot be kept in state; use dict[…, bool], or a MapState."
    return f"{name} cannot be kept in state; known are {_KNOWN}."


def unwrapped(python_type: Any) -> Any:
    """Return the type below a NewType or an Annotated."""
    while True:
        if hasattr(python_type, "__supertype__"):
            python_type = python_type.__supertype__
        elif typing.get_origin(python_type) is typing.Annotated:
            python_type = typing.get_args(python_type)[0]
        else:
            return python_type


def optional_inner(python_type: Any) -> Any:
    """Return X of Optional[X]; None for every other type."""
    if typing.get_origin(python_type) not in (typing.Union, types.UnionType):
        return None
    others = [one for one in typing.get_args(python_type) if one is not type(None)]
    return others[0] if len(others) == 1 and len(typing.get_args(python_type)) == 2 else None


def hints_of(record: type, *, operator: str = "(not named yet)") -> dict[str, Any]:
    """Return the fields of a dataclass with their types, in order.

    Annotations that are text are replaced in the class by the types they name, so that a class that is
    pickled without its module has its types with it.
    """
    try:
        hints = typing.get_type_hints(record, localns={record.__name__: record}, include_extras=True)
    except (NameError, TypeError, SyntaxError) as error:
        reason = f"the annotations of {record.__name__} cannot be read ({error}); "
        reason += "define the types they name at the top of the module, before it."
        raise StateInvalid(operator=operator, reason=reason) from error
    for owner in record.__mro__:
        own = vars(owner).get("__annotations__", {})
        for name, kind in own.items():
            if isinstance(kind, str) and name in hints:
                own[name] = hints[name]
    return {field.name: hints[field.name] for field in dataclasses.fields(record)}


def type_text(python_type: Any) -> str:
    """Return a type as its user wrote it."""
    if isinstance(python_type, type) and not typing.get_args(python_type):
        return python_type.__name__
    return str(python_type).replace("typing.", "")


def same_shape(one: Signature, other: Signature) -> bool:
    """Return whether bytes of one signature can be read as the other.

    Names of records and the order of their fields do not matter.
    """
    return bool(_shape(one) == _shape(other))


def _shape(signature: Signature) -> Any:
    if isinstance(signature, str):
        return signature
    if "record" in signature:
        return ("record", tuple(sorted((name, _shape(kind)) for name, kind in signature["fields"])))
    ((form, inner),) = signature.items()
    return (form, tuple(map(_shape, inner)) if isinstance(inner, list) else _shape(inner))


def signature_text(signature: Signature) -> str:
    """Return a signature as text for people: `Session(start: int, name: str | None)`."""
    if isinstance(signature, str):
        return signature
    if "record" in signature:
        fields = ", ".join(f"{name}: {signature_text(kind)}" for name, kind in signature["fields"])
        return f"{signature['record']}({fields})"
    ((form, inner),) = signature.items()
    if form == "optional":
        return f"{signature_text(inner)} | None"
    members = inner if isinstance(inner, list) else [inner]
    return f"{'dict' if form == 'map' else form}[{', '.join(map(signature_text, members))}]"


def type_of(signature: Signature) -> Any:
    """Return a Python type for a signature: records become dicts with typed fields."""
    if isinstance(signature, str):
        if signature not in _PLAIN_TYPES:
            raise InvariantBroken(reason=f"there is no signature '{signature}'")
        return _PLAIN_TYPES[signature]
    if "record" in signature:
        fields = {name: type_of(kind) for name, kind in signature["fields"]}
        return typing.TypedDict(signature["record"], fields)  # type: ignore[operator]
    ((form, inner),) = signature.items()
    match form:
        case "list":
            return list[type_of(inner)]  # type: ignore[misc]
        case "map":
            return dict[type_of(inner[0]), type_of(inner[1])]  # type: ignore[misc]
        case "tuple":
            return tuple[tuple(map(type_of, inner))]  # type: ignore[misc]
        case "optional":
            return typing.Optional[type_of(inner)]  # noqa: UP045 - made at run time
    raise InvariantBroken(reason=f"there is no signature '{form}'")
