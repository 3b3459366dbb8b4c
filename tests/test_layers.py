"""Imports point down: the layers of the code, and who may import whom.

    errors → settings → model → storage, catalog, sql, telemetry → checkpoint
           → holders → movers → query → doors

A module imports from layers below its own and from its own package. `tidegate.testing` is shipped for tests
and imported by nothing else. Inside a package the same holds for its rooms, the folders beside each other: of
two rooms one imports the other, never both, nor in a circle. What lies in the package's own folder may join
its rooms and be used by them.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.paths import ROOT

SRC = ROOT / "src"

HOLDERS = ["streams", "tables", "topics", "state", "dedup", "archives"]
MOVERS = ["ingest", "live", "pipeline", "rollups", "upkeep"]
# "" is tidegate/__init__.py, "spark" is tidegate/spark.py
DOORS = ["server", "cli", "sdk", "spark", "", "__main__"]

ORDER: list[list[str]] = [
    ["errors"],
    ["settings"],
    ["model"],
    ["storage", "catalog", "sql", "telemetry"],
    ["checkpoint"],
    HOLDERS,
    MOVERS,
    ["query"],
    DOORS,
    ["testing"],
]
HEIGHT = {package: height for height, layer in enumerate(ORDER) for package in layer}

# Who stands beside whom and may still call in: the command line starts everything, the front of the package
# lends out `connect`, and the other doors may read the version.
BESIDE = {("cli", door) for door in DOORS} | {("server", ""), ("sdk", ""), ("spark", "")}
BESIDE |= {("", "sdk"), ("__main__", "cli")}

SPARK_ONLY_IN = ["tidegate.pipeline", "tidegate.spark"]
SPARK_PACKAGES = {"pyspark", "py4j", "delta"}

# The worker is another process: what the server holds open reaches it over HTTP alone.
NOT_FOR_PIPELINE = [
    "tidegate.topics",
    "tidegate.tables",
    "tidegate.streams",
    "tidegate.catalog",
    "tidegate.storage.rocksdb.engine",
    "tidegate.storage.memory",
    "tidegate.storage.group_commit",
]

HEAVY = [
    "pyspark",
    "pyarrow",
    "rocksdict",
    "duckdb",
    "deltalake",
    "typer",
    "rich",
    "httpx",
    "numpy",
    "pandas",
    "sqlalchemy",
    "alembic",
    "prometheus_client",
    "opentelemetry",
    "psycopg",
]


@dataclass(frozen=True)
class Import:
    """One import of one module, wherever in the file it stands."""

    importer: str
    line: int
    target: str

    def __str__(self) -> str:
        return f"{self.importer}, line {self.line}, imports {self.target}"


def module_name(file: Path, src: Path = SRC) -> str:
    parts = file.relative_to(src).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(module: str) -> str:
    """Return the part of a module's name that a layer is made of: `topics` of `tidegate.topics.keys`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def known_modules() -> set[str]:
    return {module_name(file) for file in SRC.rglob("*.py")}


def imports_of(
    importer: str, source: str, modules: set[str], *, is_package: bool = False
) -> Iterator[Import]:
    """Yield every import of a source text, those inside functions and `import_module("…")` among them."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (Import(importer, node.lineno, name.name) for name in names)
            case ast.ImportFrom(module=named, names=names, level=level):
                start = _absolute(importer, named, level, is_package)
                for name in names:
                    full = f"{start}.{name.name}"
                    # `from tidegate import spark` names a module, `from tidegate import connect` does not.
                    yield Import(importer, node.lineno, full if full in modules else start)
            case ast.Call(func=func, args=[ast.Constant(value=str(target)), *_]) if _is_dynamic(func):
                yield Import(importer, node.lineno, target)


def _absolute(importer: str, named: str | None, level: int, is_package: bool) -> str:
    if level == 0:
        return named or ""
    parts = importer.split(".")
    kept = parts[: len(parts) - level + (1 if is_package else 0)]
    return ".".join([*kept, named] if named else kept)


def _is_dynamic(func: ast.expr) -> bool:
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    return name in {"import_module", "__import__"}


def why_wrong(found: Import) -> str | None:
    """Return which rule an import breaks and what to do instead; None where it is fine."""
    importer, top = package_of(found.importer), found.target.split(".")[0]
    if top in SPARK_PACKAGES and not any(_is_within(found.importer, place) for place in SPARK_ONLY_IN):
        return "only tidegate.pipeline and tidegate/spark.py import Spark; move the code there"
    if top != "tidegate":
        return None
    target = package_of(found.target)
    for package in (importer, target):
        if package not in HEIGHT:
            return f"'{package}' is in no layer; add it to ORDER in tests/test_layers.py where it belongs"
    if importer == "pipeline" and any(_is_within(found.target, module) for module in NOT_FOR_PIPELINE):
        return "the worker never opens what the server holds; ask over HTTP (pipeline/topic/client.py)"
    if target == importer or HEIGHT[target] < HEIGHT[importer] or (importer, target) in BESIDE:
        return None
    return _which_rule(importer, target)


def _is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _which_rule(importer: str, target: str) -> str:
    if target == "testing":
        return "tidegate.testing is for tests; take what you need as an argument"
    if HEIGHT[target] > HEIGHT[importer]:
        return f"'{target or 'tidegate'}' lies above '{importer}', and imports point down; pass it in"
    for kind, members in (("holders", HOLDERS), ("movers", MOVERS), ("doors", DOORS)):
        if importer in members:
            return f"{kind} never import {kind}; let the layer above join '{importer}' and '{target}'"
    return f"'{importer}' and '{target}' stand side by side; put what both need below them"


def findings(
    importer: str, source: str, modules: set[str] | None = None, *, is_package: bool = False
) -> list[str]:
    modules = known_modules() if modules is None else modules
    judged = [
        (found, why_wrong(found)) for found in imports_of(importer, source, modules, is_package=is_package)
    ]
    return sorted({f"{found}: {why}" for found, why in judged if why})


def test_imports_point_down() -> None:
    modules = known_modules()
    wrong = [
        finding
        for file in sorted((SRC / "tidegate").rglob("*.py"))
        for finding in findings(
            module_name(file),
            file.read_text(encoding="utf-8"),
            modules,
            is_package=file.name == "__init__.py",
        )
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def room_of(module: str, packages: set[str]) -> str:
    """Return the room that a module lies in: `tidegate.server.http` of `tidegate.server.http.request`."""
    parts = module.split(".")
    room = ".".join(parts[:3])
    return room if len(parts) >= 3 and room in packages else ""


def room_imports() -> dict[str, set[str]]:
    """Return which rooms each room imports of its own package, for types alone, too."""
    modules = known_modules()
    packages = {module_name(file) for file in SRC.rglob("__init__.py")}
    found: dict[str, set[str]] = {}
    for file in SRC.rglob("*.py"):
        importer = module_name(file)
        room = room_of(importer, packages)
        if not room:
            continue
        source = file.read_text(encoding="utf-8")
        for one in imports_of(importer, source, modules, is_package=file.name == "__init__.py"):
            other = room_of(one.target, packages)
            if other not in {"", room} and package_of(one.target) == package_of(importer):
                found.setdefault(room, set()).add(other)
    return found


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of rooms that import each other, straight or through others."""
    reached = {room: _reachable(room, imports) for room in imports}
    groups = {
        tuple(sorted(other for other in reached[room] if room in reached.get(other, set())))
        for room in imports
        if room in reached[room]
    }
    return [list(group) for group in sorted(groups)]


def _reachable(room: str, imports: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [room]
    while waiting:
        fresh = imports.get(waiting.pop(), set()) - found
        found |= fresh
        waiting += fresh
    return found


def test_rooms_of_a_package_import_one_way() -> None:
    imports = room_imports()
    assert {"tidegate.server.api", "tidegate.state.runtime", "tidegate.query.statements"} <= imports.keys()
    assert circles(imports) == [], "let the package's own folder join the two, or move what both need"


def test_a_circle_of_rooms_is_found() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "e": {"a"}}
    assert circles(imports) == [["a", "b", "c"]]
    assert circles({"a": {"b"}, "e": {"a", "b"}}) == []
    packages = {"tidegate.server", "tidegate.server.http", "tidegate.state"}
    assert room_of("tidegate.server.http.request", packages) == "tidegate.server.http"
    assert room_of("tidegate.server.serve", packages) == ""


def test_import_tidegate_loads_nothing_heavy() -> None:
    code = f"import sys, tidegate; print(*[name for name in {HEAVY} if name in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not loaded, (
        f"'import tidegate' loads {', '.join(loaded)}; import them inside the functions that need them"
    )


MODULES = {
    "tidegate",
    "tidegate.topics.log.log",
    "tidegate.storage.rocksdb.engine",
    "tidegate.spark",
    "tidegate.sdk.client",
}


@pytest.mark.parametrize(
    ("importer", "source", "rule"),
    [
        ("tidegate.model.ids", "from tidegate.storage.rocksdb import engine", "imports point down"),
        (
            "tidegate.storage.lake.tables",
            "def f():\n    import tidegate.topics.log.log",
            "imports point down",
        ),
        ("tidegate.query.plan", "from tidegate.server import app", "imports point down"),
        (
            "tidegate.ingest.write",
            "if TYPE_CHECKING:\n    from tidegate.query import plan",
            "imports point down",
        ),
        ("tidegate.topics.log.log", "from tidegate.tables import rows", "holders never import holders"),
        ("tidegate.ingest.write", "from ..pipeline import session", "movers never import movers"),
        ("tidegate.sdk.client", "from tidegate.server import app", "doors never import doors"),
        ("tidegate.storage.lake.tables", "from tidegate.catalog import leases", "side by side"),
        ("tidegate.server.app", "from tidegate.testing.clock import ManualClock", "is for tests"),
        ("tidegate.server.app", "import pyspark.sql", "import Spark"),
        ("tidegate.query.plan", "import importlib\nimportlib.import_module('pyspark')", "import Spark"),
        (
            "tidegate.pipeline.worker.worker",
            "from tidegate.storage.rocksdb.engine import RocksEngine",
            "over HTTP",
        ),
        ("tidegate.pipeline.worker.worker", "from tidegate.topics import log", "over HTTP"),
        ("tidegate.pipeline.worker.worker", "from tidegate import spark", "imports point down"),
        ("tidegate.model.ids", "from tidegate import __version__", "imports point down"),
        ("tidegate.nowhere.at_all", "from tidegate.model import ids", "is in no layer"),
    ],
)
def test_a_wrong_import_is_found_and_its_rule_named(importer: str, source: str, rule: str) -> None:
    (finding,) = findings(importer, source, MODULES)
    assert rule in finding
    assert importer in finding


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        (
            "tidegate.topics.log.log",
            "from tidegate.storage.rocksdb import engine\nfrom .keys import offset_key",
        ),
        ("tidegate.pipeline.worker.worker", "import pyspark\nfrom tidegate.storage.home.home import Home"),
        ("tidegate.spark", "from tidegate.pipeline import session\nimport pyspark"),
        (
            "tidegate.cli.commands.up",
            "def up():\n    from tidegate.server import app\n    from tidegate.pipeline import worker",
        ),
        ("tidegate.server.api.status", "from tidegate import __version__"),
        ("tidegate.testing.clock", "from tidegate.model.clock import Clock"),
        ("tidegate.query.plan", "import json, duckdb"),
    ],
)
def test_a_right_import_is_left_alone(importer: str, source: str) -> None:
    assert findings(importer, source, MODULES) == []


def test_a_relative_import_of_a_package_starts_at_the_package() -> None:
    (found,) = imports_of("tidegate.topics.log", "from . import log", MODULES, is_package=True)
    assert found.target == "tidegate.topics.log.log"
