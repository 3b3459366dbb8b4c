"""Settings: takes tidegate.toml, environment and flags; gives one frozen object that knows each origin.

Later wins: default, then `tidegate.toml` in the home folder, then `TIDEGATE_<SECTION>_<NAME>`, then a flag.
An unknown key, a wrong type or a value out of bounds stops the start with an error that names the place
and, for an unknown key, the nearest one that exists.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from tidegate.errors import SettingInvalid

SETTINGS_FILE = "tidegate.toml"
ENVIRONMENT_PREFIX = "TIDEGATE_"
# Variables that begin like a setting but name a place or an address, not a value of the settings object.
ENVIRONMENT_OTHERS = frozenset({"TIDEGATE_HOME", "TIDEGATE_URL", "TIDEGATE_TOKEN", "TIDEGATE_JARS_DIR"})

_MIB = 1024 * 1024
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _setting(default: Any, doc: str, low: float | None = None, high: float | None = None) -> Any:
    return field(default=default, metadata={"doc": doc, "low": low, "high": high})


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The HTTP door."""

    host: str = _setting("127.0.0.1", "Address to listen on.")
    port: int = _setting(8787, "Port to listen on; 0 takes a free one.", 0, 65_535)
    body_bytes_max: int = _setting(32 * _MIB, "Largest request body.", 1024, 1024 * _MIB)
    messages_max: int = _setting(50_000, "Most messages in one publish or consume.", 1, 1_000_000)
    wait_ms_max: int = _setting(60_000, "Longest wait of a consume that finds nothing.", 0, 600_000)
    grace_seconds: float = _setting(10.0, "Time that accepted requests get to finish at a stop.", 0, 600)


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """RocksDB and the write path."""

    sync_writes: bool = _setting(
        True, "Acknowledge only what is on the disk (fsync, shared by waiting writers)."
    )
    block_cache_bytes: int = _setting(256 * _MIB, "Cache for blocks read from disk.", _MIB, 1 << 40)
    write_buffer_bytes: int = _setting(
        64 * _MIB, "Memory for writes before they are sorted to disk.", _MIB, 1 << 34
    )
    free_bytes_min: int = _setting(
        64 * _MIB, "Writes are refused when less disk than this is free.", 0, 1 << 44
    )


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Limits of topics."""

    partitions_max: int = _setting(256, "Most partitions that a topic may have.", 1, 65_536)
    message_bytes_max: int = _setting(4 * _MIB, "Largest key and payload of one message.", 1, 64 * _MIB)


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """Limits of SELECT."""

    timeout_seconds: float = _setting(60.0, "A statement that runs longer is stopped.", 0.001, 86_400)
    rows_max: int = _setting(100_000, "Most rows in a JSON or Arrow answer.", 1, 100_000_000)
    memory_mb: int = _setting(1024, "Memory that DuckDB may use before it spills.", 64, 1 << 20)
    threads: int = _setting(2, "Threads that DuckDB may use.", 1, 1024)
    statements_max: int = _setting(4, "Statements that run at the same time; more wait their turn.", 1, 1024)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The Spark driver."""

    spark_master: str = _setting("local[*,4]", "Spark master; ',4' lets a local task be tried again.")
    driver_memory_mb: int = _setting(2048, "Heap of the Spark driver.", 512, 1 << 20)
    trigger_interval_seconds: float = _setting(
        1.0, "Time between two micro-batches of a pipeline.", 0, 86_400
    )
    backoff_seconds_max: float = _setting(
        30.0, "Longest pause before a failed pipeline is tried again.", 0.1, 3600
    )


@dataclass(frozen=True, slots=True)
class SupervisorSettings:
    """`tidegate up`."""

    backoff_seconds_min: float = _setting(0.5, "First pause before a fallen child is started again.", 0, 60)
    backoff_seconds_max: float = _setting(30.0, "Longest such pause.", 0.1, 3600)
    stable_seconds: float = _setting(
        30.0, "A child that stayed up this long starts at the first pause again.", 0, 3600
    )
    grace_seconds: float = _setting(20.0, "Time that a child gets to stop by itself.", 0, 600)


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting, and the origin of each that is not a default."""

    server: ServerSettings = field(default_factory=ServerSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    topics: TopicSettings = field(default_factory=TopicSettings)
    query: QuerySettings = field(default_factory=QuerySettings)
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    supervisor: SupervisorSettings = field(default_factory=SupervisorSettings)
    origins: Mapping[str, str] = field(default_factory=dict)

    def origin(self, key: str) -> str:
        """Say where the value of a key came from: a file, a variable, a flag, or `default`."""
        return self.origins.get(key, "default")

    def value(self, key: str) -> object:
        """Give the value of a dotted key."""
        section, name = key.split(".")
        return getattr(getattr(self, section), name)


@dataclass(frozen=True, slots=True)
class SettingNote:
    """What the docs say of one setting."""

    key: str
    kind: str
    default: object
    doc: str
    low: float | None
    high: float | None
    environment: str


SECTIONS: Mapping[str, type] = {
    "server": ServerSettings,
    "storage": StorageSettings,
    "topics": TopicSettings,
    "query": QuerySettings,
    "worker": WorkerSettings,
    "supervisor": SupervisorSettings,
}


def describe_settings() -> list[SettingNote]:
    """List every setting with its type, default, bounds and one line of explanation."""
    return [_note(key, kind, spec) for key, (kind, spec) in _known().items()]


def load_settings(
    home: Path | None, environ: Mapping[str, str], flags: Mapping[str, object] | None = None
) -> Settings:
    """Read the file, then the environment, then flags; refuse what is unknown or out of bounds."""
    chosen: dict[str, tuple[object, str]] = {}
    for key, value, origin in _given(home, environ, flags or {}):
        chosen[key] = (_checked(key, value, origin), origin)
    sections = {}
    for name, kind in SECTIONS.items():
        values = {f.name: chosen[f"{name}.{f.name}"][0] for f in fields(kind) if f"{name}.{f.name}" in chosen}
        sections[name] = kind(**values)
    return Settings(**sections, origins={key: origin for key, (_, origin) in chosen.items()})


def _given(
    home: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]
) -> Iterator[tuple[str, object, str]]:
    if home is not None:
        yield from _from_file(home / SETTINGS_FILE)
    by_variable = {_variable(key): key for key in _known()}
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
            reason = f"settings stand in sections: {', '.join(f'[{name}]' for name in SECTIONS)}"
            raise SettingInvalid(setting=section, origin=str(path), reason=reason)
        for name, value in values.items():
            yield f"{section}.{name}", value, str(path)


def _checked(key: str, value: object, origin: str) -> object:
    known = _known()
    if key not in known:
        raise SettingInvalid(setting=key, origin=origin, reason=_unknown(key, known))
    kind, spec = known[key]
    converted = _converted(key, kind, value, origin)
    low, high = spec.metadata["low"], spec.metadata["high"]
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
    except (KeyError, ValueError) as problem:
        raise SettingInvalid(
            setting=key, origin=origin, reason=f"'{value}' is not {_KINDS[kind]}"
        ) from problem
    if type(value) is not kind:
        raise SettingInvalid(setting=key, origin=origin, reason=f"{value!r} is not {_KINDS[kind]}")
    return value


def _unknown(key: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    return f"there is no such setting (did you mean '{near[0]}'?)" if near else "there is no such setting"


def _known() -> dict[str, tuple[type, Field[Any]]]:
    found: dict[str, tuple[type, Field[Any]]] = {}
    for section, kind in SECTIONS.items():
        hints = get_type_hints(kind)
        for spec in fields(kind):
            found[f"{section}.{spec.name}"] = (hints[spec.name], spec)
    return found


def _note(key: str, kind: type, spec: Field[Any]) -> SettingNote:
    bounds = spec.metadata
    return SettingNote(
        key, kind.__name__, spec.default, bounds["doc"], bounds["low"], bounds["high"], _variable(key)
    )


def _variable(key: str) -> str:
    return ENVIRONMENT_PREFIX + key.replace(".", "_").upper()
