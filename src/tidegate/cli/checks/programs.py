"""The checks of programs: Python and its packages, Java, Spark and its jars."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tidegate.cli.checks.finding import Finding, fail, ok, warn
from tidegate.errors import JarsMissing, JavaMissing

# What pyproject.toml says in requires-python.
PYTHON_MIN = (3, 11)
# Named in a finding; a longer list helps nobody.
NAMED_MAX = 5
INSTALL_FIX = "Run 'make setup' in the checkout, or 'pip install --upgrade tidegate'."

VersionOf = Callable[[str], str | None]


def check_python(version: tuple[int, int, int], executable: str) -> Finding:
    """Check that Python is new enough."""
    shown = ".".join(map(str, version))
    if version[:2] < PYTHON_MIN:
        least = ".".join(map(str, PYTHON_MIN))
        return fail("python", f"Python {shown} in {executable}", f"Install Python {least} or newer.")
    return ok("python", f"Python {shown} in {executable}")


def check_java(environ: Mapping[str, str], installed: Path) -> Finding:
    """Check that there is a Java that Spark supports."""
    from tidegate.pipeline.java import find_java

    try:
        java = find_java(environ, installed)
    except JavaMissing as missing:
        return fail("java", f"{missing} The server works without it, the worker does not.", missing.hint)
    return ok("java", f"Java {java.version} in {java.path}")


def check_packages(requirements: Sequence[str], version_of: VersionOf) -> Finding:
    """Check that every package is there, in a version that Tidegate was tested with."""
    wrong = []
    for requirement in requirements:
        name, ranges = _split(requirement)
        version = version_of(name)
        if version is None:
            wrong.append(f"{name} is not installed")
        elif not in_ranges(version, ranges):
            wrong.append(f"{name} is {version}, not {ranges}")
    if not requirements:
        return warn("packages", "the list of packages that Tidegate needs is not there", INSTALL_FIX)
    if wrong:
        return fail("packages", _named(wrong), INSTALL_FIX)
    return ok("packages", f"{len(requirements)} packages in versions that fit")


def check_spark(version: str | None, jars: Path | None, environ: Mapping[str, str]) -> Finding:
    """Check that Spark is the version of the Delta jars, and that no other Spark is configured."""
    from tidegate.pipeline.jars import DELTA

    match = re.fullmatch(r"delta-spark_(\d+\.\d+)_(\d+\.\d+)", DELTA.artifact)
    needed, scala = (match[1], match[2]) if match else ("", "")
    if version is None:
        return fail("spark", "pyspark is not installed", INSTALL_FIX)
    if not version.startswith(f"{needed}."):
        return fail("spark", f"pyspark {version}, and {DELTA} is for Spark {needed}", INSTALL_FIX)
    if jars is None or not any(jars.glob(f"spark-core_{scala}-*.jar")):
        found = f"pyspark {version} without its jars for Scala {scala}"
        return fail("spark", found, "pip install --force-reinstall --no-deps pyspark")
    other = environ.get("SPARK_HOME", "")
    if other and Path(other).resolve() != jars.parent.resolve():
        found = f"pyspark {version}, and SPARK_HOME names another Spark: {other}"
        return warn("spark", found, "unset SPARK_HOME, unless that Spark is the same version.")
    return ok("spark", f"pyspark {version} for Scala {scala}")


def check_jars(environ: Mapping[str, str], cache: Path | None = None) -> Finding:
    """Check that the Delta jars are there and complete; nothing is fetched."""
    from tidegate.pipeline.jars import DELTA, delta_jars

    fetch = "python -m tidegate.pipeline.jars (it needs a connection to a Maven repository, once)."
    try:
        jars = delta_jars(cache, environ=environ, fetch=False, check_hashes=True)
    except JarsMissing as missing:
        if environ.get("TIDEGATE_JARS_DIR"):
            return fail("jars", str(missing), missing.hint)
        return fail("jars", f"the Delta jars are not whole: {missing.values['reason']}", fetch)
    return ok("jars", f"{len(jars)} jars of {DELTA} in {jars[0].parent}")


def check_python_of_spark(environ: Mapping[str, str], executable: str) -> Finding:
    """Check that no variable names another Python for Spark; the worker sets its own, other jobs may not."""
    name = "python of spark"
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        named = environ.get(variable, "")
        if not named:
            continue
        place = _which(named, environ)
        if place is None:
            found = f"{variable} names {named}, which is not there"
            return warn(
                name, f"{found}; Tidegate's worker ignores it, other Spark jobs fail", f"unset {variable}"
            )
        if place.resolve() != Path(executable).resolve():
            found = f"{variable} is {named}, Tidegate runs in {executable}"
            return warn(
                name, f"{found}; Tidegate's worker ignores it", f"unset {variable}, or set it to {executable}"
            )
    return ok(name, "the one that runs Tidegate")


def requirements_of_package(pyproject: Path) -> list[str]:
    """Return the dependencies of Tidegate, as installed, or of a checkout that is not installed."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        listed = requires("tidegate") or []
        return [entry for entry in listed if "extra ==" not in entry]
    except PackageNotFoundError:
        if not pyproject.is_file():
            return []
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    return [str(entry) for entry in project["dependencies"]]


def installed_version(name: str) -> str | None:
    """Return the version of an installed package; None where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def in_ranges(version: str, ranges: str) -> bool:
    """True if a version is within all ranges, such as `>=1.6,<2`."""
    actual = _numbers(version)
    for sign, text in re.findall(r"(>=|<=|==|!=|~=|<|>)\s*([\w.*]+)", ranges):
        bound = _numbers(text)
        # 2 and 2.0.0 are the same; of 2.*, the first number alone counts.
        width = len(bound) if text.endswith(".*") else max(len(actual), len(bound))
        left, right = _padded(actual, width), _padded(bound, width)
        holds = {
            ">=": left >= right,
            "<=": left <= right,
            "==": left == right,
            "!=": left != right,
            "~=": left >= right and left[: len(bound) - 1] == right[: len(bound) - 1],
            "<": left < right,
            ">": left > right,
        }
        if not holds[sign]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, release[0].split("."))) if release else ()


def _padded(numbers: tuple[int, ...], width: int) -> tuple[int, ...]:
    return (numbers + (0,) * width)[:width]


def _split(requirement: str) -> tuple[str, str]:
    """Return name and ranges of a requirement such as `psycopg[binary]>=3,<4; python_version > "3"`."""
    plain = requirement.partition(";")[0].strip()
    name = re.match(r"[\w.-]+", plain)
    if name is None:
        return plain, ""
    return name[0], re.sub(r"^\[.*?\]", "", plain[name.end() :]).strip(" ()")


def _which(named: str, environ: Mapping[str, str]) -> Path | None:
    import shutil

    found = shutil.which(named, path=environ.get("PATH"))
    return Path(found) if found else None


def _named(wrong: Sequence[str]) -> str:
    rest = len(wrong) - NAMED_MAX
    return "; ".join(wrong[:NAMED_MAX]) + (f"; and {rest} more" if rest > 0 else "")
