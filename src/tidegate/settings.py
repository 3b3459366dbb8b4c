"""Settings: takes tidegate.toml, environment and flags; gives one frozen object that knows each origin.

Later wins: default, then `tidegate.toml` in the home folder, then `TIDEGATE_<SECTION>_<NAME>`, then a flag.
An unknown key, a wrong type or a value out of bounds stops the start with an error that names the place
and, for an unknown key, the nearest one that exists.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from tidegate.errors import SettingInvalid

SETTINGS_FILE = "tidegate.toml"
ENVIRONMENT_PREFIX = "TIDEGATE_"
# Variables that begin like a setting but name a place or an address, not a value of the settings object.
ENVIRONMENT_OTHERS = frozenset(
    {
        "TIDEGATE_HOME",
        "TIDEGATE_URL",
        "TIDEGATE_TOKEN",
        "TIDEGATE_TENANT",
        "TIDEGATE_JARS_DIR",
        "TIDEGATE_CA_FILE",
    }
)

_MIB = 1024 * 1024
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _setting(
    default: Any, doc: str, low: float | None = None, high: float | None = None, **more: object
) -> Any:
    """Describe one setting; `secret=True` hides its value, `words=(…)` lists the only texts it takes."""
    # What a traceback shows of the settings must not hold a secret.
    shown = not more.get("secret", False)
    return field(default=default, repr=shown, metadata={"doc": doc, "low": low, "high": high, **more})


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The HTTP door."""

    host: str = _setting("127.0.0.1", "Address to listen on.")
    port: int = _setting(8787, "Port to listen on; 0 takes a free one.", 0, 65_535)
    body_bytes_max: int = _setting(32 * _MIB, "Largest request body.", 1024, 1024 * _MIB)
    header_bytes_max: int = _setting(64 * 1024, "Largest request line and headers together.", 1024, _MIB)
    messages_max: int = _setting(50_000, "Most messages in one publish or consume.", 1, 1_000_000)
    wait_ms_max: int = _setting(60_000, "Longest wait of a consume that finds nothing.", 0, 600_000)
    grace_seconds: float = _setting(10.0, "Time that accepted requests get to finish at a stop.", 0, 600)
    body_seconds_max: float = _setting(30.0, "Time that headers, and then a body, get to arrive.", 0.1, 3600)
    requests_max: int = _setting(256, "Requests that run at the same time; more get 429.", 1, 100_000)
    connections_max: int = _setting(12_000, "Connections that are open at the same time.", 1, 1_000_000)
    waits_max: int = _setting(10_000, "Requests that wait for messages at the same time.", 1, 1_000_000)
    page_rows_max: int = _setting(1_000, "Most entries in one page of a list.", 1, 1_000)
    public_url: str = _setting("", "Address that clients use, when it is not the one listened on.")
    tls_certificate_file: str = _setting("", "PEM certificate (chain); with a key, the server speaks TLS.")
    tls_key_file: str = _setting("", "PEM private key of the certificate.")


@dataclass(frozen=True, slots=True)
class CatalogSettings:
    """The catalog: tenants, users, tokens, audit, leases, jobs."""

    url: str = _setting(
        "", "postgresql://user:password@host/database; empty: SQLite in the home folder.", secret=True
    )
    connections_max: int = _setting(8, "Connections to PostgreSQL at most.", 1, 1000)
    timeout_seconds: float = _setting(5.0, "Longest wait for the database to answer.", 0.1, 600)
    audit_days_max: int = _setting(400, "Audit events and finished jobs older than this go.", 1, 36_500)


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """Tokens and who holds them."""

    token_days_default: int = _setting(90, "Days that a token is valid unless said; 0: no end.", 0, 36_500)
    refresh_seconds: float = _setting(
        2.0, "How soon a token revoked at another server is refused here.", 0.1, 600
    )
    stale_seconds_max: float = _setting(
        60.0, "How long known tokens work while the catalog does not answer.", 0, 86_400
    )
    guesses_max: int = _setting(20, "Wrong tokens from one address in a minute; more get 429.", 1, 100_000)
    link_seconds: float = _setting(600.0, "How long a one-time link can be used.", 1, 86_400)
    session_hours: float = _setting(12.0, "How long a browser stays signed in.", 0.01, 8760)


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What the processes write down."""

    format: str = _setting(
        "people", "people: lines to read; json: an object a line.", words=("people", "json")
    )
    level: str = _setting("info", "The least that is written.", words=("debug", "info", "warning", "error"))
    slow_request_ms: float = _setting(1000.0, "A request that takes longer is logged.", 0, 3_600_000)


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """OpenTelemetry; off while no endpoint is named, and then it costs nothing."""

    endpoint_url: str = _setting("", "OTLP over HTTP, like http://127.0.0.1:4318/v1/traces; empty: off.")
    sample_ratio: float = _setting(1.0, "Part of the requests that are traced.", 0, 1)


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
    catalog: CatalogSettings = field(default_factory=CatalogSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    log: LogSettings = field(default_factory=LogSettings)
    tracing: TracingSettings = field(default_factory=TracingSettings)
    origins: Mapping[str, str] = field(default_factory=dict)

    def origin(self, key: str) -> str:
        """Say where the value of a key came from: a file, a variable, a flag, or `default`."""
        return self.origins.get(key, "default")

    def value(self, key: str) -> object:
        """Give the value of a dotted key."""
        section, name = key.split(".")
        return getattr(getattr(self, section), name)

    def shown(self, key: str) -> object:
        """Give the value as people may see it: a secret is said to be set, and no more."""
        value = self.value(key)
        _, spec = _known()[key]
        return "(set)" if spec.metadata.get("secret") and value else value


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
    "catalog": CatalogSettings,
    "auth": AuthSettings,
    "log": LogSettings,
    "tracing": TracingSettings,
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
