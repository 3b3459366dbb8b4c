"""The plan of an operator: its states, its form and its types, checked before any row is touched.

Errors name the operator, and the state where one is wrong.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import pyarrow as pa

from tidegate.checkpoint.keys.codec import KeyType
from tidegate.errors import SchemaInvalid, StateInvalid
from tidegate.state.arrow.ddl import schema_of_ddl
from tidegate.state.arrow.types import arrow_schema_of
from tidegate.state.kinds.declaration import State
from tidegate.state.kinds.map import MapState
from tidegate.state.kinds.map_keys import SubKeyCodec
from tidegate.state.operator import KeyedOperator
from tidegate.state.schema.migrations import Migration
from tidegate.state.schema.schema import SchemaRequest, StateSpec
from tidegate.state.ttl import Ttl

Form = Literal["rows", "batches"]


@dataclass(frozen=True, slots=True)
class OperatorPlan:
    """An operator with its states, its form and the types of its input and output."""

    operator: KeyedOperator[Any, Any]
    name: str
    # attribute of the class -> the state as declared there
    states: dict[str, State]
    specs: tuple[StateSpec, ...]
    # a dataclass, dict, or None: a record with the columns as attributes
    in_type: type | None
    # a dataclass, or None: rows come as dicts and tuples
    out_type: type | None
    out_schema: pa.Schema
    form: Form
    has_timers: bool

    def schema_request(self, key: KeyType, max_parallelism: int) -> SchemaRequest:
        """Return the schema that the operator requests of a checkpoint."""
        migrations = {
            state.name: tuple(state.options.migrations)
            for state in self.states.values()
            if state.options.migrations
        }
        return SchemaRequest(self.name, key, max_parallelism, self.specs, migrations)


def plan_operator(operator: KeyedOperator[Any, Any], name: str) -> OperatorPlan:
    """Return the plan of an operator; StateInvalid says what to change where it cannot run."""
    if isinstance(operator, type):
        raise StateInvalid(
            operator=name, reason=f"{operator.__name__} is a class; give {operator.__name__}()."
        )
    if not isinstance(operator, KeyedOperator):
        raise StateInvalid(operator=name, reason=f"{type(operator).__name__} is not a KeyedOperator.")
    check_declared(operator, name)
    kind = type(operator)
    form = _form(kind, name)
    states = _states(operator, name)
    in_type, out_type = _generic_types(kind)
    return OperatorPlan(
        operator=operator,
        name=name,
        states=states,
        specs=tuple(state.spec() for state in states.values()),
        in_type=_checked_in(in_type, form, name),
        out_type=out_type if dataclasses.is_dataclass(out_type) and isinstance(out_type, type) else None,
        out_schema=_out_schema(operator, out_type, name),
        form=form,
        has_timers=kind.on_timer is not KeyedOperator.on_timer,
    )


def _form(kind: type[KeyedOperator[Any, Any]], name: str) -> Form:
    has_rows = kind.process is not KeyedOperator.process
    has_batches = kind.process_batch is not KeyedOperator.process_batch
    if has_rows == has_batches:
        found = "both process and process_batch" if has_rows else "neither process nor process_batch"
        raise StateInvalid(operator=name, reason=f"{kind.__name__} has {found}; write one of them.")
    for method in ("process", "process_batch", "on_timer", "open", "close"):
        function = getattr(kind, method)
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise StateInvalid(
                operator=name, reason=f"{kind.__name__}.{method} is async; write a plain function."
            )
        if method in ("open", "close") and inspect.isgeneratorfunction(function):
            raise StateInvalid(operator=name, reason=f"{kind.__name__}.{method} yields; it cannot give rows.")
    return "rows" if has_rows else "batches"


def _states(operator: KeyedOperator[Any, Any], name: str) -> dict[str, State]:
    """Return the states that are class attributes, those of parents first, each once."""
    for attribute, value in getattr(operator, "__dict__", {}).items():
        if isinstance(value, State):
            reason = f"the state '{attribute}' was made in __init__; make it an attribute of the class."
            raise StateInvalid(operator=name, reason=reason)
    attributes: dict[str, State] = {}
    for owner in reversed(type(operator).__mro__):
        for attribute, value in vars(owner).items():
            attributes.pop(attribute, None)
            if isinstance(value, State):
                attributes[attribute] = value
    counts = Counter(state.name for state in attributes.values())
    for attribute, state in attributes.items():
        if counts[state.name] > 1:
            reason = f"two states have the name '{state.name}' ('{attribute}' is one); give each its own."
            raise StateInvalid(operator=name, reason=reason)
    return attributes


def _checked_in(in_type: Any, form: Form, name: str) -> type | None:
    if in_type is Any or isinstance(in_type, TypeVar):
        return None
    if in_type is dict or typing.get_origin(in_type) is dict:
        return dict
    if form == "batches" or (dataclasses.is_dataclass(in_type) and isinstance(in_type, type)):
        return in_type if isinstance(in_type, type) else None
    reason = f"events cannot be built as {in_type}; give a dataclass as the first generic argument, or none."
    raise StateInvalid(operator=name, reason=reason)


def _out_schema(operator: KeyedOperator[Any, Any], out_type: Any, name: str) -> pa.Schema:
    output = operator.output if operator.output is not None else out_type
    if isinstance(output, str):
        try:
            output = schema_of_ddl(output)
        except SchemaInvalid as error:
            raise StateInvalid(operator=name, reason=f"its output {error.values['reason']}.") from error
    elif dataclasses.is_dataclass(output) and isinstance(output, type):
        output = arrow_schema_of(output, operator=name)
    if not isinstance(output, pa.Schema):
        reason = 'it does not say what comes out; write output = "user_id string, n long" in the class, '
        reason += "or an output dataclass as the second generic argument."
        raise StateInvalid(operator=name, reason=reason)
    if not len(output):
        raise StateInvalid(operator=name, reason="its output has no column; give it one.")
    _check_fields(output, operator, out_type, name)
    return output


def _check_fields(schema: pa.Schema, operator: KeyedOperator[Any, Any], out_type: Any, name: str) -> None:
    """Refuse an output dataclass beside an `output` that has other columns."""
    if operator.output is None or not dataclasses.is_dataclass(out_type):
        return
    fields = {field.name for field in dataclasses.fields(out_type)}
    if fields != set(schema.names):
        reason = f"output names {', '.join(schema.names)}, but {out_type} has {', '.join(sorted(fields))}."
        raise StateInvalid(operator=name, reason=reason)


def _generic_types(kind: type) -> tuple[Any, Any]:
    """Return the generic arguments of KeyedOperator[…], also when a parent of the class has them."""
    for parent in getattr(kind, "__orig_bases__", ()):
        origin, arguments = typing.get_origin(parent), typing.get_args(parent)
        if origin is KeyedOperator:
            return arguments[0], arguments[1]
        if isinstance(origin, type) and issubclass(origin, KeyedOperator):
            values = dict(zip(getattr(origin, "__parameters__", ()), arguments, strict=False))
            found = _generic_types(origin)
            return values.get(found[0], found[0]), values.get(found[1], found[1])
    for parent in kind.__bases__:
        if issubclass(parent, KeyedOperator) and parent is not KeyedOperator:
            return _generic_types(parent)
    return Any, Any


def check_declared(operator: object, name: str) -> None:
    """Refuse states with options or types that they cannot have."""
    for attribute, state in _states_of(type(operator)):
        wrong = _wrong_option(state) or _wrong_type(state)
        if wrong is not None:
            raise StateInvalid(operator=name, reason=f"of its state '{attribute}' {wrong}")


def _states_of(kind: type) -> Iterator[tuple[str, State]]:
    for owner in kind.__mro__:
        for attribute, value in vars(owner).items():
            if isinstance(value, State):
                yield attribute, value


def _wrong_option(state: State) -> str | None:
    """Return what is wrong with the type of an option; None where all are right."""
    options = state.options
    name: object = options.name
    if name is not None and (not isinstance(name, str) or not name.strip()):
        return f"the name is {name!r}; it is a text, or None for the name of the attribute"
    ttl: object = options.ttl
    if ttl is not None and not isinstance(ttl, Ttl):
        return f"the ttl is {ttl!r}; write tide.Ttl('24 h')"
    steps: object = options.migrations
    if not isinstance(steps, Sequence) or not all(isinstance(step, Migration) for step in steps):
        return f"the migrations are {steps!r}; they are a list of tide.Migration"
    return None


def _wrong_type(state: State) -> str | None:
    """Return what is wrong with the type of the values; None where they can be stored."""
    try:
        state.spec()
        if isinstance(state, MapState):
            SubKeyCodec(state.types[0])
    except StateInvalid as problem:
        return f"the type is wrong: {problem.values['reason']}"
    return None
