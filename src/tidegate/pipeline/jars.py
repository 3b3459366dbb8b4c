"""Jars: what Spark needs beyond its own to read and write Delta tables.

Takes a connection to a Maven repository once; gives the jars as files; keeps them in a cache folder that is
made beside its place and renamed into it, so that it is whole or not there. Later calls need no network and
no Java.

    <cache>/<artifact>-<version>/*.jar            the jars, without those that Spark ships itself
    <cache>/<artifact>-<version>/manifest.json    version, coordinates, and name, bytes and sha256 of each jar
    <cache>/ivy.log                               what Ivy said when it last failed

The cache is `tidegate/jars` in XDG_CACHE_HOME, else in ~/.cache. TIDEGATE_JARS_DIR names a folder of jars to
use instead. `python -m tidegate.pipeline.jars` fetches what is missing, checks every hash and prints a line;
with `--check` it fetches nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidegate.errors import JarsMissing, TidegateError
from tidegate.pipeline import ivy

MANIFEST_VERSION = 1
MANIFEST_NAME = "manifest.json"
MAKING_PREFIX = ".making-"

DELTA = ivy.Coordinates("io.delta", "delta-spark_4.2_2.13", "4.4.0")
"""Delta Lake for Spark 4.2 on Scala 2.13. It moves together with the pyspark that pyproject.toml pins."""

OFFLINE_HINT = (
    "Run 'make setup' once with a connection to a Maven repository (HTTPS_PROXY is respected). Without one, "
    "copy the jars from the cache of a machine that has them and name their folder in TIDEGATE_JARS_DIR."
)


@dataclass(frozen=True, slots=True)
class KeptJar:
    """One line of the manifest."""

    name: str
    size_bytes: int
    sha256: str


def delta_jars(
    cache: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    check_hashes: bool = False,
    fetch: bool = True,
) -> list[Path]:
    """Give the jars for `spark.jars`, fetched once; raise JarsMissing with why and what to do.

    A second call takes about a millisecond: it compares names and sizes with the manifest, and hashes only
    when asked. A cache that does not match is made anew, unless `fetch` is off: then it raises. Calls from
    several processes wait for the one that fetches.
    """
    environ = os.environ if environ is None else environ
    named = environ.get("TIDEGATE_JARS_DIR", "")
    if named:
        return _jars_of_folder(Path(named))
    root = cache if cache is not None else cache_folder(environ)
    folder = root / f"{DELTA.artifact}-{DELTA.version}"
    jars = _kept_jars(folder, check_hashes=check_hashes)
    if jars is not None:
        return jars
    if not fetch:
        raise JarsMissing(reason=f"they are not in {folder}, and nothing was to be fetched")
    try:
        with _only_one(root):
            jars = _kept_jars(folder, check_hashes=check_hashes)
            return jars if jars is not None else _make(folder, environ)
    except OSError as failure:
        hint = "Make room in that folder and make it writable, or choose another with XDG_CACHE_HOME."
        raise JarsMissing(reason=f"the cache in {root} cannot be written ({failure})", hint=hint) from failure


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Name the folder that holds the jars of every version; a relative XDG_CACHE_HOME does not count."""
    named = Path(environ.get("XDG_CACHE_HOME", ""))
    top = named if named.is_absolute() else Path(environ.get("HOME", "~")).expanduser() / ".cache"
    return top / "tidegate" / "jars"


def _jars_of_folder(folder: Path) -> list[Path]:
    jars = sorted(folder.glob("*.jar"))
    if not any(jar.name.startswith(f"{DELTA.artifact}-") for jar in jars):
        reason = f"TIDEGATE_JARS_DIR names {folder}, where no {DELTA.artifact}-….jar lies"
        raise JarsMissing(reason=reason, hint="Put the jars there, or unset TIDEGATE_JARS_DIR to fetch them.")
    return jars


def _kept_jars(folder: Path, *, check_hashes: bool) -> list[Path] | None:
    """Give the jars of a whole folder; None where something is missing or of another size."""
    manifest = _read_manifest(folder)
    for kept in manifest:
        jar = folder / kept.name
        if not jar.is_file() or jar.stat().st_size != kept.size_bytes:
            return None
        if check_hashes and _sha256(jar) != kept.sha256:
            return None
    return [folder / kept.name for kept in manifest] or None


def _read_manifest(folder: Path) -> list[KeptJar]:
    """Give the lines of a manifest; none where it is not there, damaged or of another version."""
    try:
        manifest = json.loads((folder / MANIFEST_NAME).read_bytes())
        if manifest["version"] != MANIFEST_VERSION or manifest["coordinates"] != str(DELTA):
            return []
        return [KeptJar(jar["name"], jar["bytes"], jar["sha256"]) for jar in manifest["jars"]]
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return []


def _write_manifest(folder: Path) -> None:
    jars = [
        {"name": jar.name, "bytes": jar.stat().st_size, "sha256": _sha256(jar)}
        for jar in sorted(folder.glob("*.jar"))
    ]
    manifest = {"version": MANIFEST_VERSION, "coordinates": str(DELTA), "jars": jars}
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@contextmanager
def _only_one(root: Path) -> Iterator[None]:
    """Let one process at a time make things in the cache; what a killed one left half made is removed."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left_over in root.glob(f"{MAKING_PREFIX}*"):
            shutil.rmtree(left_over, ignore_errors=True)
        yield


def _make(folder: Path, environ: Mapping[str, str]) -> list[Path]:
    """Fetch the jars beside their place, then rename: a kill leaves a whole folder or none."""
    workshop = Path(tempfile.mkdtemp(prefix=MAKING_PREFIX, dir=folder.parent))
    try:
        made = workshop / "jars"
        _fetch(workshop, made, environ)
        _write_manifest(made)
        if folder.exists():
            folder.rename(workshop / "replaced")
        made.rename(folder)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
    return [folder / kept.name for kept in _read_manifest(folder)]


def _fetch(workshop: Path, target: Path, environ: Mapping[str, str]) -> None:
    log = workshop.parent / "ivy.log"
    try:
        ivy.retrieve(DELTA, workshop, target, environ)
    except ivy.FetchError as failure:
        log.write_text(failure.log, encoding="utf-8")
        raise JarsMissing(reason=f"{failure} (log: {log})", hint=OFFLINE_HINT) from failure
    log.unlink(missing_ok=True)
    if not (target / f"{DELTA.artifact}-{DELTA.version}.jar").is_file():
        raise JarsMissing(reason=f"the repository answered without {DELTA}", hint=OFFLINE_HINT)


def main() -> int:
    """Fetch what is missing, check every hash and print where the jars are; 1 where they cannot be had."""
    try:
        jars = delta_jars(check_hashes=True, fetch="--check" not in sys.argv[1:])
    except TidegateError as failure:
        print(f"{failure}\n{failure.hint}", file=sys.stderr)
        return 1
    print(f"{len(jars)} jars of {DELTA} in {jars[0].parent}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
