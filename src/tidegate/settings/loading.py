"""The loader of the settings: the file, then the environment, then flags; and the description of each."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any

from tidegate.errors import SettingInvalid
from tidegate.settings.sections import SECTIONS, Settings, known_settings

SETTINGS_FILE = "tidegate.toml"
ENVIRONMENT_PREFIX = "TIDEGATE_"
# Variables with the prefix of settings that name a folder or an address, not a value of the settings object.
ENVIRONMENT_OTHERS = frozenset(
    {
        "TIDEGATE_HOME",
        "TIDEGATE_URL",
        "TIDEGATE_TOKEN",
        "TIDEGATE_TENANT",
        "TIDEGATE_JARS_DIR",
        "TIDEGATE_CA_FILE",
        "TIDEGATE_STATE_DIR",
        "TIDEGATE_PIPELINE_TOKEN_FILE",
    }
)

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


@dataclass(frozen=True, slots=True)
class SettingNote:
    """The description of one setting, for the documentation."""

    key: str
    kind: str
    default: object
    doc: str
    low: float | None
    high: float | None
    environment: str


def describe_settings() -> list[SettingNote]:
    """Return every setting with its type, default, bounds and one line of explanation."""
    return [_note(key, kind, spec) for key, (kind, spec) in known_settings().items()]


def load_settings(
    home: Path | None, environ: Mapping[str, str], flags: Mapping[str, object] | None = None
) -> Settings:
    """Return the settings; raise SettingInvalid for what is unknown, of a wrong type or out of bounds."""
    chosen: dict[str, tuple[object, str]] = {}
    for key, value, origin in _sources(home, environ, flags or {}):
        chosen[key] = (_checked(key, value, origin), origin)
    sections = {}
    for name, kind in SECTIONS.items():
        values = {f.name: chosen[f"{name}.{f.name}"][0] for f in fields(kind) if f"{name}.{f.name}" in chosen}
        sections[name] = kind(**values)
    return Settings(**sections, origins={key: origin for key, (_, origin) in chosen.items()})


def _sources(
    home: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]
) -> Iterator[tuple[str, object, str]]:
    """Yield key, value and origin from every source; of one key, a later one replaces an earlier."""
    if home is not None:
        yield from _from_file(home / SETTINGS_FILE)
    by_variable = {_variable(key): key for key in known_settings()}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in ENVIRONMENT_OTHERS:
            continue
        if variable not in by_variable:
            raise SettingInvalid(
                setting=variable, origin="environment", reason=_unknown(variable, by_variable)
            )
        yield by_variable[variable], text, f"environment {variable}"
    for key, value in flags.items():
        if value is not None:
            yield key, value, "flag"


def _from_file(path: Path) -> Iterator[tuple[str, object, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, UnicodeDecodeError) as problem:
        raise SettingInvalid(
            setting="(file)", origin=str(path), reason=f"it cannot be read: {problem}"
        ) from problem
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise SettingInvalid(setting="(file)", origin=str(path), reason=f"not TOML: {problem}") from problem
    for section, values in tree.items():
        if not isinstance(values, dict):
            reason = f"settings belong in sections: {', '.join(f'[{name}]' for name in SECTIONS)}"
            raise SettingInvalid(setting=section, origin=str(path), reason=reason)
        for name, value in values.items():
            yield f"{section}.{name}", value, str(path)


def _checked(key: str, value: object, origin: str) -> object:
    known = known_settings()
    if key not in known:
        raise SettingInvalid(setting=key, origin=origin, reason=_unknown(key, known))
    kind, spec = known[key]
    converted = _converted(key, kind, value, origin)
    words = spec.metadata.get("words")
    if words and converted not in words:
        raise SettingInvalid(setting=key, origin=origin, reason=f"it is one of {', '.join(words)}")
    low, high = spec.metadata["low"], spec.metadata["high"]
    if isinstance(converted, float) and not math.isfinite(converted):
        # Not a number is neither below nor above a bound: without this it would pass both.
        raise SettingInvalid(setting=key, origin=origin, reason=f"{converted} is not a finite number")
    if isinstance(converted, (int, float)) and not isinstance(converted, bool):
        if low is not None and converted < low:
            raise SettingInvalid(
                setting=key, origin=origin, reason=f"{converted} is below the least, {low:g}"
            )
        if high is not None and converted > high:
            raise SettingInvalid(
                setting=key, origin=origin, reason=f"{converted} is above the most, {high:g}"
            )
    return converted


def _converted(key: str, kind: type, value: object, origin: str) -> object:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    try:
        if kind is bool and isinstance(value, str):
            return words[value.strip().lower()]
        if kind in (int, float) and isinstance(value, str):
            return kind(value.replace("_", ""))
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
    except (KeyError, ValueError, OverflowError) as problem:
        raise SettingInvalid(
            setting=key, origin=origin, reason=f"'{value}' is not {_KINDS[kind]}"
        ) from problem
    if type(value) is not kind:
        raise SettingInvalid(setting=key, origin=origin, reason=f"{value!r} is not {_KINDS[kind]}")
    return value


def _unknown(key: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    return f"there is no such setting (did you mean '{near[0]}'?)" if near else "there is no such setting"


def _note(key: str, kind: type, spec: Field[Any]) -> SettingNote:
    bounds = spec.metadata
    return SettingNote(
        key, kind.__name__, spec.default, bounds["doc"], bounds["low"], bounds["high"], _variable(key)
    )


def _variable(key: str) -> str:
    return ENVIRONMENT_PREFIX + key.replace(".", "_").upper()
