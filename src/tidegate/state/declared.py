"""Declared states: takes an operator as its user wrote it, gives a refusal of states that cannot be kept.

Everything here is found out before a row is touched, and told with the names of the operator and the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidegate.errors import StateInvalid
from tidegate.state.evolution import Migration
from tidegate.state.map_state import MapState
from tidegate.state.states import State
from tidegate.state.subkeys import SubKeyCodec
from tidegate.state.ttl import Ttl


def check_declared(operator: object, name: str) -> None:
    """Refuse states with options or types that they cannot have."""
    for attribute, state in _states(type(operator)):
        wrong = _wrong_option(state) or _wrong_type(state)
        if wrong is not None:
            raise StateInvalid(operator=name, reason=f"of its state '{attribute}' {wrong}")


def _states(kind: type) -> Iterator[tuple[str, State]]:
    for owner in kind.__mro__:
        for attribute, value in vars(owner).items():
            if isinstance(value, State):
                yield attribute, value


def _wrong_option(state: State) -> str | None:
    """Say which option is of another type than it must have."""
    options = state.options
    given: object = options.name
    if given is not None and (not isinstance(given, str) or not given.strip()):
        return f"the name is {given!r}; it is a text, or None for the name of the attribute"
    ttl: object = options.ttl
    if ttl is not None and not isinstance(ttl, Ttl):
        return f"the ttl is {ttl!r}; write tide.Ttl('24 h')"
    steps: object = options.migrations
    if not isinstance(steps, Sequence) or not all(isinstance(step, Migration) for step in steps):
        return f"the migrations are {steps!r}; they are a list of tide.Migration"
    return None


def _wrong_type(state: State) -> str | None:
    """Say which type cannot be kept."""
    try:
        state.spec()
        if isinstance(state, MapState):
            SubKeyCodec(state.types[0])
    except StateInvalid as problem:
        return f"the type is wrong: {problem.values['reason']}"
    return None
