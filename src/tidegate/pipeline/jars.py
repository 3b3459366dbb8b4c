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

Ivy: fetches jars and what they depend on from a Maven repository, with the Apache Ivy that Spark ships.

Takes the coordinates of one artifact; gives its jars and those it needs in a folder, without those that lie
in Spark's own folder already; keeps nothing: its cache lives in the work folder it is given. Ivy knows the
public repository by itself. It never looks at the user's ~/.ivy2 or ~/.m2: every machine resolves the same.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from tidegate.errors import InvariantBroken, JarsMissing, TidegateError
from tidegate.pipeline.java import find_java

ATTEMPTS_MAX = 3
"""A dropped connection is common, a repository that is back on the fourth call is not."""

ATTEMPT_PAUSE_SECONDS = 2.0
"""Grows with each attempt."""

ATTEMPT_SECONDS_MAX = 600.0
"""15 MB over a slow line; a line that says nothing for a minute is given up before that."""

CONNECT_MS_MAX = 20_000
READ_MS_MAX = 60_000


@dataclass(frozen=True, slots=True)
class Coordinates:
    """The name of one artifact in a Maven repository."""

    group: str
    artifact: str
    version: str

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"


class FetchError(Exception):
    """Ivy gave up; `log` is everything it said."""

    def __init__(self, reason: str, log: str) -> None:
        super().__init__(reason)
        self.log = log


def retrieve(wanted: Coordinates, workshop: Path, target: Path, environ: Mapping[str, str]) -> None:
    """Put the wanted jar and what it needs beyond Spark's own jars into `target`; raise FetchError.

    What one attempt has fetched, the next does not fetch again.
    """
    spark_jars = spark_jars_folder()
    request = workshop / "ivy.xml"
    request.write_text(write_request(wanted, shipped_artifacts(spark_jars)), encoding="utf-8")
    command = [
        str(find_java(environ).executable),
        f"-Divy.default.ivy.user.dir={workshop / 'ivy'}",
        f"-Dsun.net.client.defaultConnectTimeout={CONNECT_MS_MAX}",
        f"-Dsun.net.client.defaultReadTimeout={READ_MS_MAX}",
        *proxy_options(environ),
        *("-cp", str(next(spark_jars.glob("ivy-*.jar"))), "org.apache.ivy.Main", "-warn"),
        *("-cache", str(workshop / "ivy" / "cache"), "-ivy", str(request), "-confs", "default"),
        *("-retrieve", f"{target}/[artifact]-[revision].[ext]"),
    ]
    for attempt in range(1, ATTEMPTS_MAX + 1):
        failure = _attempt(command, environ)
        if failure is None:
            return
        if attempt < ATTEMPTS_MAX:
            time.sleep(ATTEMPT_PAUSE_SECONDS * attempt)
    raise failure or InvariantBroken(reason="no attempt was made to fetch the jars")


def spark_jars_folder() -> Path:
    """Name the folder of jars that pyspark ships, without importing pyspark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise InvariantBroken(reason="pyspark is not installed beside tidegate")
    return Path(spec.origin).parent / "jars"


def shipped_artifacts(folder: Path) -> list[str]:
    """List the artifact names of a folder of jars: `commons-io` for `commons-io-2.22.0.jar`."""
    names = (re.match(r"(.+?)-\d[^/]*\.jar$", jar.name) for jar in folder.glob("*.jar"))
    return sorted({name[1] for name in names if name})


def write_request(wanted: Coordinates, left_out: list[str]) -> str:
    """Write the file that tells Ivy what to fetch and which artifacts to leave alone."""
    exclusions = "".join(f"    <exclude module={quoteattr(name)}/>\n" for name in left_out)
    return (
        '<ivy-module version="2.0">\n'
        '  <info organisation="tidegate" module="jars"/>\n'
        "  <dependencies>\n"
        f"    <dependency org={quoteattr(wanted.group)} name={quoteattr(wanted.artifact)}"
        f' rev={quoteattr(wanted.version)} conf="default->default"/>\n'
        f"{exclusions}"
        "  </dependencies>\n"
        "</ivy-module>\n"
    )


def proxy_options(environ: Mapping[str, str]) -> Iterator[str]:
    """Turn HTTPS_PROXY and HTTP_PROXY into the options that Java knows; it does not read them itself."""
    for scheme in ("https", "http"):
        named = environ.get(f"{scheme}_proxy") or environ.get(f"{scheme.upper()}_PROXY") or ""
        address = urlsplit(named if "//" in named else f"//{named}")
        if address.hostname:
            yield f"-D{scheme}.proxyHost={address.hostname}"
            yield f"-D{scheme}.proxyPort={address.port or 3128}"


def _attempt(command: list[str], environ: Mapping[str, str]) -> FetchError | None:
    try:
        answer = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=ATTEMPT_SECONDS_MAX,
            check=False,
            env=dict(environ),
        )
    except subprocess.TimeoutExpired as slow:
        said = slow.output or b""
        log = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
        return FetchError(f"Ivy was not done after {ATTEMPT_SECONDS_MAX:.0f} s", log)
    return None if answer.returncode == 0 else FetchError(why_failed(answer.stdout), answer.stdout)


def why_failed(log: str) -> str:
    """Find the line of Ivy's log that says most: what the network answered, else what is not there."""
    lines = [line.strip(" \t:") for line in log.splitlines()]
    for sign in ("Exception", "Server access error", "not found", "FAILED"):
        found = next((line for line in lines if sign in line), None)
        if found:
            return found
    return next((line for line in reversed(lines) if line), "Ivy failed without a word")


MANIFEST_VERSION = 1
MANIFEST_NAME = "manifest.json"
MAKING_PREFIX = ".making-"

DELTA = Coordinates("io.delta", "delta-spark_4.2_2.13", "4.4.0")
"""Delta Lake for Spark 4.2 on Scala 2.13. It moves together with the pyspark that pyproject.toml pins."""

OFFLINE_HINT = (
    "Run 'make setup' once with a connection to a Maven repository (HTTPS_PROXY is respected). Without one, "
    "copy the jars from the cache of a machine that has them and name their folder in TIDEGATE_JARS_DIR."
)


@dataclass(frozen=True, slots=True)
class CachedJar:
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
    """Return the jars for `spark.jars`, fetched once; raise JarsMissing with why and what to do.

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
    jars = _cached_jars(folder, check_hashes=check_hashes)
    if jars is not None:
        return jars
    if not fetch:
        raise JarsMissing(reason=f"they are not in {folder}, and nothing was to be fetched")
    try:
        with _only_one(root):
            jars = _cached_jars(folder, check_hashes=check_hashes)
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


def _cached_jars(folder: Path, *, check_hashes: bool) -> list[Path] | None:
    """Return the jars of a whole folder; None where something is missing or of another size."""
    manifest = _read_manifest(folder)
    for kept in manifest:
        jar = folder / kept.name
        if not jar.is_file() or jar.stat().st_size != kept.size_bytes:
            return None
        if check_hashes and _sha256(jar) != kept.sha256:
            return None
    return [folder / kept.name for kept in manifest] or None


def _read_manifest(folder: Path) -> list[CachedJar]:
    """Return the lines of a manifest; none where it is not there, damaged or of another version."""
    try:
        manifest = json.loads((folder / MANIFEST_NAME).read_bytes())
        if manifest["version"] != MANIFEST_VERSION or manifest["coordinates"] != str(DELTA):
            return []
        return [CachedJar(jar["name"], jar["bytes"], jar["sha256"]) for jar in manifest["jars"]]
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
        retrieve(DELTA, workshop, target, environ)
    except FetchError as failure:
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
