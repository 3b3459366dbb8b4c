"""The schema of an operator's states in a checkpoint.

It is the file `schema.<n>.json` in the operator's folder, written once and never changed; the one with the
highest number is current. It holds the key's type, max_parallelism, and of each state its number, its kind,
and the signature and serializer of every version that ever wrote. A state keeps its number permanently, also
when the code has dropped it. Format version 1: JSON, with a checksum over the rest.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import xxhash

from tidegate.checkpoint.keys.codec import KeyType
from tidegate.checkpoint.keys.layout import PARALLELISM_MAX, STATES_MAX
from tidegate.checkpoint.rescale import RedistributionMode
from tidegate.checkpoint.store import CheckpointStore, schema_name
from tidegate.errors import StateInvalid, StateMismatch, StorageCorrupt
from tidegate.state.schema.migrations import (
    VERSION_MAX,
    VERSION_MIN,
    Migration,
    StateRef,
    StoredForm,
    migration_paths,
)
from tidegate.state.serializers.registry import SERIALIZER_NAMES
from tidegate.state.serializers.signatures import (
    Signature,
    same_shape,
    signature_of,
    signature_text,
    type_text,
)

FORMAT_VERSION = 1
MAGIC = "tidegate state schema"

KINDS = ("value", "list", "map", "reducing", "aggregating", "operator-list")

# Tasks that start together write the same schema; a task that loses this often has another problem.
WRITES_MAX = 100


class SchemaStore(Protocol):
    """The files of one operator in a checkpoint: the methods that schemas need."""

    def put_new(self, name: str, content: bytes) -> bool:
        """Write a file that is not there; False when it is."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a file; None when it is not there."""
        ...


@dataclass(frozen=True, slots=True)
class StateSpec:
    """A state as code declares it.

    `types` are the types of its parts: the value's, for a map the sub-key's before it. Python types become
    signatures. `ttl` describes the TTL for tools, as JSON values.
    """

    name: str
    kind: str
    types: tuple[Signature, ...]
    version: int = 1
    serializer: str = ""
    ttl: Any = None
    redistribute: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", tuple(_signature(one, self.serializer) for one in self.types))


def _signature(declared: Any, serializer: str) -> Signature:
    return declared if isinstance(declared, str | dict) else signature_for(declared, serializer)


def signature_for(python_type: Any, serializer: str) -> Signature:
    """Return the signature of a type; of one that only the user's serializer knows it is the name."""
    try:
        return signature_of(python_type)
    except StateInvalid:
        if serializer in SERIALIZER_NAMES or not serializer:
            raise
        return {"other": type_text(python_type)}


@dataclass(frozen=True, slots=True)
class StoredState:
    """A state in the checkpoint; `versions` are all that ever wrote."""

    number: int
    kind: str
    versions: Mapping[int, tuple[Signature, ...]]
    serializers: Mapping[int, str]
    ttl: Any = None
    redistribute: str | None = None
    dropped: bool = False

    @property
    def version(self) -> int:
        """Return the newest version."""
        return max(self.versions)

    def forms(self) -> dict[int, StoredForm]:
        """Return the stored form of each version."""
        return {
            version: StoredForm(types[-1], self.serializers[version])
            for version, types in self.versions.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        versions = {
            str(version): {"types": list(self.versions[version]), "serializer": self.serializers[version]}
            for version in sorted(self.versions)
        }
        rest = {"ttl": self.ttl, "redistribute": self.redistribute, "dropped": self.dropped}
        return {"number": self.number, "kind": self.kind, "versions": versions, **rest}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> StoredState:
        """Return the state of what `to_json` returned."""
        versions = {int(version): form for version, form in stored["versions"].items()}
        return cls(
            number=stored["number"],
            kind=stored["kind"],
            versions={version: tuple(form["types"]) for version, form in versions.items()},
            serializers={version: form["serializer"] for version, form in versions.items()},
            ttl=stored["ttl"],
            redistribute=stored["redistribute"],
            dropped=stored["dropped"],
        )


@dataclass(frozen=True, slots=True)
class OperatorSchema:
    """The key, max_parallelism and states of one operator in a checkpoint; `number` is that of its file."""

    operator: str
    key: KeyType
    max_parallelism: int
    states: Mapping[str, StoredState]
    number: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the schema as JSON values, without the checksum."""
        return {
            "magic": MAGIC,
            "format": FORMAT_VERSION,
            "number": self.number,
            "operator": self.operator,
            "key": self.key.to_json(),
            "max_parallelism": self.max_parallelism,
            "states": {name: state.to_json() for name, state in self.states.items()},
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> OperatorSchema:
        """Return the schema of what `to_json` returned."""
        return cls(
            operator=stored["operator"],
            key=KeyType.from_json(stored["key"]),
            max_parallelism=stored["max_parallelism"],
            states={name: StoredState.from_json(state) for name, state in stored["states"].items()},
            number=stored["number"],
        )


@dataclass(frozen=True, slots=True)
class SchemaRequest:
    """The key, max_parallelism and states that the code requests of a checkpoint."""

    operator: str
    key: KeyType
    max_parallelism: int
    specs: tuple[StateSpec, ...]
    migrations: Mapping[str, tuple[Migration, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SchemaChanges:
    """The names of the states that a new schema changes."""

    added: tuple[str, ...]
    dropped: tuple[str, ...]
    migrated: tuple[str, ...]
    returned: tuple[str, ...]


def resolve_schema(store: SchemaStore, request: SchemaRequest) -> OperatorSchema:
    """Return the schema with which the code runs; write the next file when something changed.

    StateMismatch or StateInvalid when the code does not fit the checkpoint; nothing was written then.
    """
    for _ in range(WRITES_MAX):
        stored = newest_schema(store, request.operator)
        planned = plan_schema(stored, request)
        if planned is stored or store.put_new(schema_name(planned.number), dump_schema(planned)):
            return planned
    reason = f"its schema was changed by others {WRITES_MAX} times while this one started."
    raise StateMismatch(operator=request.operator, reason=reason)


def check_schema(store: SchemaStore, request: SchemaRequest) -> OperatorSchema:
    """Return what `resolve_schema` would return, and write nothing."""
    return plan_schema(newest_schema(store, request.operator), request)


def newest_schema(store: SchemaStore, operator: str) -> OperatorSchema | None:
    """Return the current schema; None when there is none yet."""
    newest, number = None, 1
    while (content := store.read(schema_name(number))) is not None:
        newest, number = content, number + 1
    return None if newest is None else load_schema(newest, f"{operator}/{schema_name(number - 1)}")


def dump_schema(schema: OperatorSchema) -> bytes:
    """Return the bytes of a schema's file."""
    content = schema.to_json()
    return json.dumps({**content, "checksum": _checksum(content)}, indent=1, ensure_ascii=False).encode()


def load_schema(content: bytes, place: str) -> OperatorSchema:
    """Return the schema of a file's bytes; StorageCorrupt for damaged ones and for an unknown format."""
    try:
        stored = json.loads(content)
        checksum = stored.pop("checksum")
        if stored["magic"] != MAGIC or stored["format"] != FORMAT_VERSION:
            reason = (
                f"it is '{stored['magic']}' of format {stored['format']}; this version reads {FORMAT_VERSION}"
            )
            raise StorageCorrupt(place=place, reason=reason, hint="Run a newer version of Tidegate.")
        if checksum != _checksum(stored):
            raise StorageCorrupt(place=place, reason="its checksum is wrong")
        return OperatorSchema.from_json(stored)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageCorrupt(place=place, reason=f"it is no schema: {error}") from error


def _checksum(content: dict[str, Any]) -> str:
    plain = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return str(xxhash.xxh64_hexdigest(plain.encode()))


def schema_changes(old: OperatorSchema | None, new: OperatorSchema) -> SchemaChanges:
    """Return what a new schema changes."""
    before = {} if old is None else old.states
    both = [(name, before[name], state) for name, state in new.states.items() if name in before]
    return SchemaChanges(
        added=tuple(name for name in new.states if name not in before),
        dropped=tuple(name for name, was, state in both if state.dropped and not was.dropped),
        migrated=tuple(name for name, was, state in both if state.version > was.version),
        returned=tuple(name for name, was, state in both if was.dropped and not state.dropped),
    )


def plan_schema(stored: OperatorSchema | None, request: SchemaRequest) -> OperatorSchema:
    """Return the schema that follows from a stored one and a request: the stored one if nothing changes."""
    _check_request(request)
    if stored is None:
        states = {spec.name: _stored(spec, number) for number, spec in enumerate(request.specs, 1)}
        return OperatorSchema(request.operator, request.key, request.max_parallelism, states, 1)
    _check_same(stored, request)
    states = dict(stored.states)
    following = max((state.number for state in states.values()), default=0) + 1
    for spec in request.specs:
        if spec.name in states:
            states[spec.name] = _continued(states[spec.name], spec, request)
        else:
            states[spec.name] = _stored(spec, following)
            following += 1
    names = {spec.name for spec in request.specs}
    for name, state in states.items():
        if name not in names and not state.dropped:
            states[name] = replace(state, dropped=True)
    if following > STATES_MAX + 1:
        reason = f"it has had {following - 1} states; {STATES_MAX} is the most."
        raise StateInvalid(operator=request.operator, reason=reason)
    return stored if states == stored.states else replace(stored, states=states, number=stored.number + 1)


def _stored(spec: StateSpec, number: int) -> StoredState:
    versions, serializers = {spec.version: spec.types}, {spec.version: spec.serializer}
    return StoredState(number, spec.kind, versions, serializers, spec.ttl, spec.redistribute)


def _check_request(request: SchemaRequest) -> None:
    """Raise StateInvalid for a request that contradicts itself, whatever the checkpoint holds."""
    operator = request.operator
    repeated = [name for name, count in Counter(spec.name for spec in request.specs).items() if count > 1]
    if repeated:
        raise StateInvalid(operator=operator, reason=f"two of its states are named '{repeated[0]}'.")
    if not 1 <= request.max_parallelism <= PARALLELISM_MAX:
        reason = f"max_parallelism is {request.max_parallelism}; it must be 1 to {PARALLELISM_MAX}."
        raise StateInvalid(operator=operator, reason=reason)
    for spec in request.specs:
        if spec.kind not in KINDS:
            raise StateInvalid(
                operator=operator, reason=f"state '{spec.name}' is of no known kind '{spec.kind}'."
            )
        if not VERSION_MIN <= spec.version <= VERSION_MAX:
            reason = f"state '{spec.name}' has version {spec.version}, not {VERSION_MIN} to {VERSION_MAX}."
            raise StateInvalid(operator=operator, reason=reason)
        migration_paths(
            request.migrations.get(spec.name, ()), (), spec.version, StateRef(operator, spec.name)
        )
    unknown = sorted(set(request.migrations) - {spec.name for spec in request.specs})
    if unknown:
        raise StateInvalid(
            operator=operator, reason=f"there are migrations for '{unknown[0]}', which is no state."
        )


def _check_same(stored: OperatorSchema, request: SchemaRequest) -> None:
    """Raise StateMismatch for another key or max_parallelism: the keys of all entries depend on them."""
    if stored.key != request.key:
        reason = f"its key is ({stored.key}), and the code has ({request.key}). Entries lie under their keys."
        raise StateMismatch(operator=request.operator, reason=reason)
    if stored.max_parallelism != request.max_parallelism:
        reason = (
            f"max_parallelism was fixed at {stored.max_parallelism} when it first started, and the code has "
        )
        reason += f"{request.max_parallelism}. Change `partitions` instead, up to that number."
        raise StateMismatch(operator=request.operator, reason=reason)


def _continued(state: StoredState, spec: StateSpec, request: SchemaRequest) -> StoredState:
    """Return a stored state as the code continues it; StateMismatch where it cannot."""
    ref = StateRef(request.operator, spec.name)
    if state.kind != spec.kind:
        reason = f"state '{spec.name}' is a {state.kind} state there and a {spec.kind} state in the code. "
        raise StateMismatch(operator=request.operator, reason=f"{reason}Give the new one another name.")
    old_keys = state.versions[state.version][:-1]
    if not _same(old_keys, spec.types[:-1]):
        reason = f"the keys of map '{spec.name}' are {_texts(old_keys)} there and {_texts(spec.types[:-1])} "
        reason += "in the code, and keys cannot be migrated. Give the new map another name."
        raise StateMismatch(operator=request.operator, reason=reason)
    migration_paths(request.migrations.get(spec.name, ()), state.versions, spec.version, ref)
    if spec.version not in state.versions:
        versions = {**state.versions, spec.version: spec.types}
        serializers = {**state.serializers, spec.version: spec.serializer}
    else:
        _check_version(state, spec, request.operator)
        versions, serializers = dict(state.versions), dict(state.serializers)
    return StoredState(
        state.number, state.kind, versions, serializers, spec.ttl, spec.redistribute, dropped=False
    )


def _check_version(state: StoredState, spec: StateSpec, operator: str) -> None:
    """Raise StateMismatch for a type or a serializer that changed while the version did not."""
    was = state.versions[spec.version]
    advice = f"Raise its version to {spec.version + 1} and add a Migration."
    if not _same(was, spec.types):
        reason = (
            f"version {spec.version} of state '{spec.name}' is {_texts(was)} there and {_texts(spec.types)} "
        )
        raise StateMismatch(operator=operator, reason=f"{reason}in the code. {advice}")
    if state.serializers[spec.version] != spec.serializer:
        reason = f"version {spec.version} of state '{spec.name}' was written by the serializer "
        reason += f"'{state.serializers[spec.version]}', and the code has '{spec.serializer}'. {advice}"
        raise StateMismatch(operator=operator, reason=reason)


def _same(one: tuple[Signature, ...], other: tuple[Signature, ...]) -> bool:
    return len(one) == len(other) and all(map(same_shape, one, other))


def _texts(types: tuple[Signature, ...]) -> str:
    return " → ".join(map(signature_text, types))


def redistribution_of(store: CheckpointStore) -> dict[int, RedistributionMode]:
    """Return how a rescale distributes the elements of each operator list, by the state's number."""
    schema = newest_schema(store, store.root.name)
    lists = [state for state in (schema.states.values() if schema else ()) if state.kind == "operator-list"]
    return {state.number: "union" if state.redistribute == "union" else "split" for state in lists}
