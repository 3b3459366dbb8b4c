"""Ivy: fetches jars and what they depend on from a Maven repository, with the Apache Ivy that Spark ships.

Takes the coordinates of one artifact; gives its jars and those it needs in a folder, without those that lie
in Spark's own folder already; keeps nothing: its cache lives in the work folder it is given. Ivy knows the
public repository by itself. It never looks at the user's ~/.ivy2 or ~/.m2: every machine resolves the same.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from tidegate.errors import InvariantBroken
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
