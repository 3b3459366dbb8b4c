"""The evolution of a state's values: migrations from older versions to the one of the code.

An entry keeps the version it was written with. It is migrated when it is read, step by step, and written in
the new version when it is next updated; nothing is rewritten at the start.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tidegate.errors import StateInvalid, StateMismatch, StorageCorrupt, ValueInvalid
from tidegate.state.serializers.registry import Serializer, stored_serializer
from tidegate.state.serializers.signatures import Signature, type_text

VERSION_MIN, VERSION_MAX = 1, 255  # one byte of every entry


@dataclass(frozen=True, slots=True)
class Migration:
    """One step: how a value of `from_version` becomes one of `to_version`.

    The function takes and returns a record as a dict, or takes the old dataclass when `source` names it;
    other values are passed as they are. Added fields with a default, dropped fields and an int that became a
    float need no function.
    """

    from_version: int
    to_version: int
    function: Callable[[Any], Any] | None = None
    source: type | None = None


@dataclass(frozen=True, slots=True)
class StoredForm:
    """The stored form of one version of a state: its values' signature, and their serializer."""

    signature: Signature
    serializer: str


@dataclass(frozen=True, slots=True)
class StateRef:
    """The operator and the state, for messages of errors."""

    operator: str
    state: str


def migration_paths(
    migrations: Sequence[Migration], stored: Iterable[int], version: int, ref: StateRef
) -> dict[int, tuple[Migration, ...]]:
    """Return the steps from every stored version to that of the code.

    StateMismatch for a version that is newer than the code, and for a step that is missing; StateInvalid for
    steps that contradict each other.
    """
    steps = _steps(migrations, version, ref)
    newest = max(stored := list(stored), default=version)
    if newest > version:
        reason = (
            f"state '{ref.state}' was written in version {newest}, and this code knows version {version}. "
        )
        raise StateMismatch(operator=ref.operator, reason=f"{reason}Run the newer code.")
    return {old: _path(steps, old, version, ref) for old in stored}


def _steps(migrations: Sequence[Migration], version: int, ref: StateRef) -> dict[int, Migration]:
    steps: dict[int, Migration] = {}
    for step in migrations:
        arrow = f"the migration {step.from_version} → {step.to_version} of state '{ref.state}'"
        if not VERSION_MIN <= step.from_version < step.to_version <= version:
            reason = f"{arrow} does not lead up to its version {version}."
            raise StateInvalid(operator=ref.operator, reason=reason)
        if step.from_version in steps:
            reason = f"{arrow} is not the only one from version {step.from_version}."
            raise StateInvalid(operator=ref.operator, reason=reason)
        steps[step.from_version] = step
    return steps


def _path(steps: Mapping[int, Migration], old: int, version: int, ref: StateRef) -> tuple[Migration, ...]:
    path: list[Migration] = []
    at = old
    while at < version:
        if at not in steps:
            reason = f"state '{ref.state}' holds values of version {old}, and no migration leads from "
            reason += f"version {at} towards {version}. Add Migration({at}, {at + 1}, …)."
            raise StateMismatch(operator=ref.operator, reason=reason)
        path.append(steps[at])
        at = steps[at].to_version
    return tuple(path)


class Upgrader:
    """Reads the values of one state in all stored versions; the newest is that of the code."""

    def __init__(
        self,
        python_type: Any,
        forms: Mapping[int, StoredForm],
        migrations: Sequence[Migration],
        *,
        serializer: Serializer[Any],
        ref: StateRef,
    ) -> None:
        self.version = version = max(forms)
        self._type = python_type
        self._ref = ref
        self._serializer = serializer
        self._paths = migration_paths(migrations, forms, version, ref)
        self._readers = {
            old: _reader(forms[old], path, ref) for old, path in self._paths.items() if old != version
        }

    def decode(self, version: int, payload: bytes) -> Any:
        """Return a value of any stored version as a value of the code's type."""
        if version == self.version:
            return self._serializer.decode(payload)
        reader = self._readers.get(version)
        if reader is None:
            place = f"state '{self._ref.state}' of operator '{self._ref.operator}'"
            raise StorageCorrupt(place=place, reason=f"version {version} was never written")
        value = reader.decode(payload)
        for step in self._paths[version]:
            value = self._stepped(step, value)
        return self._converted(value, self._type, version)

    def _stepped(self, step: Migration, value: Any) -> Any:
        if step.source is not None:
            value = self._converted(value, step.source, step.from_version)
        else:
            value = _undressed(value)
        return value if step.function is None else step.function(value)

    def _converted(self, value: Any, python_type: Any, version: int) -> Any:
        if isinstance(python_type, type) and type(value) is python_type:
            return value
        try:
            return msgspec.convert(_undressed(value), python_type)
        except msgspec.ValidationError as error:
            ref = self._ref
            place = f"a value of version {version} of state '{ref.state}' of operator '{ref.operator}'"
            raise ValueInvalid(
                place=place,
                reason=f"it became {value!r:.200}, which is no {type_text(python_type)}: {error}",
                hint="Correct the migration; nothing was written.",
            ) from error


def _undressed(value: Any) -> Any:
    """Return records as dicts, nested ones too."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value


def _reader(form: StoredForm, path: Sequence[Migration], ref: StateRef) -> Serializer[Any]:
    source = path[0].source if path else None
    reader = stored_serializer(form.signature, form.serializer, source)
    if reader is None:
        reason = f"state '{ref.state}' holds values of version {path[0].from_version}, written by the "
        reason += f"serializer '{form.serializer}', which only its own version can read."
        raise StateMismatch(operator=ref.operator, reason=reason)
    return reader
