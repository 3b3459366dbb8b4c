"""The Java that Spark runs on.

It is looked for in the environment and on the machine; where none is new enough, the error names each one
that was found. `python -m tidegate.pipeline.java` prints the result.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tidegate.errors import JavaMissing

JAVA_VERSION_MIN = 17
"""Spark 4 runs on Java 17 and newer."""

ANSWER_SECONDS_MAX = 30.0
"""A Java that does not print its version within this time is broken; a cold disk needs a second or two."""

SYSTEM_JAVAS = Path("/usr/lib/jvm")
"""Where Debian and its relatives put every Java."""


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A Java that started when it was asked for its version."""

    path: Path
    version: int

    @property
    def executable(self) -> Path:
        """The `java` command of this home."""
        return self.path / "bin" / "java"


def find_java(environ: Mapping[str, str] | None = None, installed: Path = SYSTEM_JAVAS) -> JavaHome:
    """Return a Java of version 17 or newer, or raise JavaMissing with what was looked at.

    JAVA_HOME comes first, then PATH, then the folder of installed ones, the oldest that is new enough first:
    that is the one Spark has been tested with longest. Each check starts a Java, about 0.1 s.
    """
    environ = os.environ if environ is None else environ
    refused: list[str] = []
    for place, command in _named(environ):
        answer = _probe(command)
        if isinstance(answer, JavaHome) and answer.version >= JAVA_VERSION_MIN:
            return answer
        refused.append(f"{place} {_why_not(answer)}")
    answers = [_probe(command) for command in sorted(installed.glob("*/bin/java"))]
    found = [answer for answer in answers if isinstance(answer, JavaHome)]
    fitting = [java for java in found if java.version >= JAVA_VERSION_MIN]
    if fitting:
        return min(fitting, key=lambda java: (java.version, java.path))
    known = ", ".join(f"Java {java.version}" for java in found) or "no Java"
    refused.append(f"{installed} has {known}")
    raise JavaMissing(reason="; ".join(refused))


def _named(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield the commands that the environment names, each with its origin in words."""
    home = environ.get("JAVA_HOME", "")
    if home:
        yield f"JAVA_HOME ({home})", Path(home) / "bin" / "java"
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path:
        yield f"PATH ({on_path})", Path(on_path)


def _probe(command: Path) -> JavaHome | str:
    """Start a Java and return its home and version, or why there is none."""
    try:
        answer = subprocess.run(
            [str(command), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_SECONDS_MAX,
            check=False,
        )
    except FileNotFoundError:
        return "has no bin/java"
    except (OSError, subprocess.TimeoutExpired) as failure:
        return f"does not start ({failure})"
    return parse_settings(answer.stdout + answer.stderr) or "does not print its version"


def parse_settings(text: str) -> JavaHome | None:
    """Return home and version in the output of `java -XshowSettings:properties -version`, or None.

    Versions up to 8 count as 1.8, later ones as 17.0.15 or 25-ea.
    """
    home = re.search(r"^\s*java\.home = (.+?)\s*$", text, re.MULTILINE)
    version = re.search(r"^\s*java\.version = (?:1\.)?(\d+)", text, re.MULTILINE)
    if home is None or version is None:
        return None
    return JavaHome(path=Path(home[1]), version=int(version[1]))


def _why_not(answer: JavaHome | str) -> str:
    return answer if isinstance(answer, str) else f"is Java {answer.version}"


def main() -> int:
    """Print which Java would be used; 1 where there is none."""
    try:
        java = find_java()
    except JavaMissing as missing:
        print(f"{missing}\n{missing.hint}", file=sys.stderr)
        return 1
    print(f"Java {java.version} in {java.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
