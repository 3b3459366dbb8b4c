"""The jars that Spark needs beyond its own to read and write Delta tables.

They are fetched once from a Maven repository, with the Apache Ivy that Spark ships, and compared with the
hashes of `DELTA_JARS` below before they are used. The cache folder is filled beside its place and renamed
into it, so that it is whole or not there. Later calls need no network and no Java.

    <cache>/<artifact>-<version>/*.jar    the jars, without those that Spark ships itself
    <cache>/ivy.log                       what Ivy printed when it last failed

The cache is `tidegate/jars` in XDG_CACHE_HOME, else in ~/.cache. TIDEGATE_JARS_DIR names a folder of jars to
use instead. `python -m tidegate.pipeline.jars` fetches what is missing, checks every hash and prints a line;
with `--check` it fetches nothing; with `--hashes` it fetches the jars of `DELTA` into a folder of its own and
prints their hashes, for whoever raises the version.

Ivy gets a cache of its own and never looks at the user's ~/.ivy2 or ~/.m2: every machine resolves the same.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
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
    """Ivy failed; `log` is all that it printed."""

    def __init__(self, reason: str, log: str) -> None:
        super().__init__(reason)
        self.log = log


def retrieve(artifact: Coordinates, scratch: Path, target: Path, environ: Mapping[str, str]) -> None:
    """Put the artifact and what it needs beyond Spark's own jars into `target`; raise FetchError.

    What one attempt has fetched, the next does not fetch again.
    """
    spark_jars = spark_jars_folder()
    request = scratch / "ivy.xml"
    request.write_text(write_request(artifact, shipped_artifacts(spark_jars)), encoding="utf-8")
    command = [
        str(find_java(environ).executable),
        f"-Divy.default.ivy.user.dir={scratch / 'ivy'}",
        f"-Dsun.net.client.defaultConnectTimeout={CONNECT_MS_MAX}",
        f"-Dsun.net.client.defaultReadTimeout={READ_MS_MAX}",
        *proxy_options(environ),
        *("-cp", str(next(spark_jars.glob("ivy-*.jar"))), "org.apache.ivy.Main", "-warn"),
        *("-cache", str(scratch / "ivy" / "cache"), "-ivy", str(request), "-confs", "default"),
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


def write_request(artifact: Coordinates, left_out: list[str]) -> str:
    """Write the file that tells Ivy what to fetch and which artifacts to leave alone."""
    exclusions = "".join(f"    <exclude module={quoteattr(name)}/>\n" for name in left_out)
    return (
        '<ivy-module version="2.0">\n'
        '  <info organisation="tidegate" module="jars"/>\n'
        "  <dependencies>\n"
        f"    <dependency org={quoteattr(artifact.group)} name={quoteattr(artifact.artifact)}"
        f' rev={quoteattr(artifact.version)} conf="default->default"/>\n'
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
        output = slow.output or b""
        log = output.decode("utf-8", "replace") if isinstance(output, bytes) else output
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


MAKING_PREFIX = ".making-"

DELTA = Coordinates("io.delta", "delta-spark_4.2_2.13", "4.4.0")
"""Delta Lake for Spark 4.2 on Scala 2.13. It moves together with the pyspark that pyproject.toml pins."""

OFFLINE_HINT = (
    "Run 'make setup' once with a connection to a Maven repository (HTTPS_PROXY is respected). Without one, "
    "copy the jars from the cache of a machine that has them and name their folder in TIDEGATE_JARS_DIR."
)


@dataclass(frozen=True, slots=True)
class JarHash:
    """What a jar must be, to the byte."""

    name: str
    size_bytes: int
    sha256: str


DELTA_JARS = (
    JarHash(
        "delta-kernel-api-4.4.0.jar",
        2_838_619,
        "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    ),
    JarHash(
        "delta-kernel-defaults-4.4.0.jar",
        227_185,
        "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    ),
    JarHash(
        "delta-kernel-unitycatalog-4.4.0.jar",
        43_048,
        "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
    ),
    JarHash(
        "delta-spark_4.2_2.13-4.4.0.jar",
        9_515_916,
        "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    ),
    JarHash(
        "delta-storage-4.4.0.jar", 113_863, "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"
    ),
    JarHash(
        "jackson-datatype-jdk8-2.13.5.jar",
        34_800,
        "e58761751fea8a00dc626aae1c5f1be38c5cfd487aeb333d933a4ab5f5a73c55",
    ),
    JarHash(
        "unitycatalog-client-0.6.0.jar",
        564_136,
        "48257499a86b801a3e2372cec55ac226ca1c1c7eabe5c118e7302f29a1fdbc19",
    ),
    JarHash(
        "unitycatalog-hadoop-0.6.0.jar",
        78_389,
        "c47b63c961c87102b9e1d63809a0915ba4c86b7652f57c8d39ca3a05b441a150",
    ),
)
"""What Ivy fetches for `DELTA` beside the jars of the pinned pyspark; `--hashes` prints this table."""


def delta_jars(
    cache: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    check_hashes: bool = False,
    fetch: bool = True,
    expected: Sequence[JarHash] = DELTA_JARS,
) -> list[Path]:
    """Return the jars for `spark.jars`, fetched once; raise JarsMissing with why and what to do.

    A second call takes about a millisecond: it compares names and sizes with `expected`, and hashes only when
    asked. A cache that does not match is fetched again, unless `fetch` is off: then it raises. Calls from
    several processes wait for the one that fetches.
    """
    environ = os.environ if environ is None else environ
    named = environ.get("TIDEGATE_JARS_DIR", "")
    if named:
        return _jars_of_folder(Path(named), expected if check_hashes else ())
    root = cache if cache is not None else cache_folder(environ)
    folder = root / f"{DELTA.artifact}-{DELTA.version}"
    wrong = _difference(folder, expected, check_hashes=check_hashes)
    if wrong and not fetch:
        raise JarsMissing(reason=f"{wrong} in {folder}, and nothing was to be fetched")
    try:
        if wrong:
            with _only_one(root):
                if _difference(folder, expected, check_hashes=check_hashes):
                    _make(folder, environ, expected)
    except OSError as failure:
        hint = "Make room in that folder and make it writable, or choose another with XDG_CACHE_HOME."
        raise JarsMissing(reason=f"the cache in {root} cannot be written ({failure})", hint=hint) from failure
    return [folder / jar.name for jar in expected]


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Name the folder that holds the jars of every version; a relative XDG_CACHE_HOME does not count."""
    named = Path(environ.get("XDG_CACHE_HOME", ""))
    top = named if named.is_absolute() else Path(environ.get("HOME", "~")).expanduser() / ".cache"
    return top / "tidegate" / "jars"


def _jars_of_folder(folder: Path, expected: Sequence[JarHash]) -> list[Path]:
    """Return the jars of a folder that the user made; those named as ours must be ours."""
    jars = sorted(folder.glob("*.jar"))
    if not any(jar.name.startswith(f"{DELTA.artifact}-") for jar in jars):
        reason = f"TIDEGATE_JARS_DIR names {folder}, where no {DELTA.artifact}-….jar lies"
        raise JarsMissing(reason=reason, hint="Put the jars there, or unset TIDEGATE_JARS_DIR to fetch them.")
    present = {jar.name for jar in jars}
    wrong = _difference(folder, [jar for jar in expected if jar.name in present], check_hashes=True)
    if wrong:
        hint = "Copy the jars again, or unset TIDEGATE_JARS_DIR to fetch them."
        raise JarsMissing(reason=f"{wrong} in {folder}, which TIDEGATE_JARS_DIR names", hint=hint)
    return jars


def _difference(folder: Path, expected: Sequence[JarHash], *, check_hashes: bool) -> str:
    """Return what is wrong with the first jar of a folder that is not as expected; nothing where all are."""
    for jar in expected:
        file = folder / jar.name
        if not file.is_file():
            return f"{jar.name} is not there"
        if file.stat().st_size != jar.size_bytes or (check_hashes and _sha256(file) != jar.sha256):
            return f"{jar.name} is not the file whose hash Tidegate knows"
    return ""


def _sha256(file: Path) -> str:
    with file.open("rb") as jar_file:
        return hashlib.file_digest(jar_file, "sha256").hexdigest()


@contextmanager
def _only_one(root: Path) -> Iterator[None]:
    """Lock the cache, and remove what a killed process left half made."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left_over in root.glob(f"{MAKING_PREFIX}*"):
            shutil.rmtree(left_over, ignore_errors=True)
        yield


def _make(folder: Path, environ: Mapping[str, str], expected: Sequence[JarHash]) -> None:
    """Fetch the jars beside their place, check them, then rename: a kill leaves a whole folder or none."""
    scratch = Path(tempfile.mkdtemp(prefix=MAKING_PREFIX, dir=folder.parent))
    try:
        fetched = scratch / "jars"
        _fetch(scratch, fetched, environ)
        wrong = _difference(fetched, expected, check_hashes=True)
        if wrong:
            hint = "The repository or something on the way to it changed the file: fetch from another one."
            raise JarsMissing(reason=f"{wrong} in what the repository sent", hint=hint)
        if folder.exists():
            folder.rename(scratch / "replaced")
        fetched.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _fetch(scratch: Path, target: Path, environ: Mapping[str, str]) -> None:
    log = scratch.parent / "ivy.log"
    try:
        retrieve(DELTA, scratch, target, environ)
    except FetchError as failure:
        log.write_text(failure.log, encoding="utf-8")
        raise JarsMissing(reason=f"{failure} (log: {log})", hint=OFFLINE_HINT) from failure
    log.unlink(missing_ok=True)
    if not (target / f"{DELTA.artifact}-{DELTA.version}.jar").is_file():
        raise JarsMissing(reason=f"the repository answered without {DELTA}", hint=OFFLINE_HINT)


def hash_rows() -> Iterator[str]:
    """Fetch the jars of `DELTA` and yield the rows of `DELTA_JARS`, for a new version."""
    with tempfile.TemporaryDirectory() as scratch:
        _fetch(Path(scratch), Path(scratch, "jars"), os.environ)
        for jar in sorted(Path(scratch, "jars").glob("*.jar")):
            yield f'    JarHash("{jar.name}", {jar.stat().st_size:_}, "{_sha256(jar)}"),'


def main() -> int:
    """Fetch what is missing, check every hash and print where the jars are; 1 where they cannot be had."""
    try:
        if "--hashes" in sys.argv[1:]:
            print("\n".join(hash_rows()))
            return 0
        jars = delta_jars(check_hashes=True, fetch="--check" not in sys.argv[1:])
    except TidegateError as failure:
        print(f"{failure}\n{failure.hint}", file=sys.stderr)
        return 1
    print(f"{len(jars)} jars of {DELTA} in {jars[0].parent}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
