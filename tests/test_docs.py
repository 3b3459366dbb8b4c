"""Docs are tests: everything people can call is documented, every link leads somewhere, every snippet works.

A fence directly under `<!-- run -->` is run for real, in the order of its page, against a `tidegate up` that
this test starts. Under `<!-- run until it works -->` it is tried again until it succeeds: for what arrives a
moment later. `bash` and `python` fences can be run; 8787 stands for the port of the test's own server.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tests.paths import ROOT
from tests.warm import command_line
from tidegate.errors import TidegateError, every_error

REFERENCE = ROOT / "docs" / "reference"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# What they tell to type is for a checkout: `tests/test_contributing.py`.
ROOT_PAGES = [ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]

README_PORT = "8787"
READY_SECONDS_MAX = 300.0
STOP_SECONDS_MAX = 120.0
BLOCK_SECONDS_MAX = 300.0
ARRIVAL_SECONDS_MAX = 300.0


@dataclass(frozen=True)
class Fence:
    """One fenced block of a page."""

    line: int
    language: str
    text: str
    marker: str

    @property
    def runs(self) -> bool:
        return self.marker in {"run", "run until it works"}


def fences(page: str) -> list[Fence]:
    """List the fenced blocks of a page, each with the comment on the line before it."""
    found: list[Fence] = []
    lines = page.splitlines()
    start: int | None = None
    for number, line in enumerate(lines):
        if not line.lstrip().startswith("```"):
            continue
        if start is None:
            start = number
            continue
        language = lines[start].strip().removeprefix("```").split(" ")[0]
        marker = re.fullmatch(r"\s*<!-- (.+?) -->\s*", lines[start - 1]) if start else None
        text = textwrap.dedent("\n".join(lines[start + 1 : number])) + "\n"
        found.append(Fence(start + 1, language, text, marker[1] if marker else ""))
        start = None
    return found


def prose(page: str) -> str:
    """Return a page without its fenced blocks and code spans."""
    without_fences = re.sub(r"^\s*```.*?^\s*```\s*$", "", page, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", without_fences)


def anchors(page: str) -> set[str]:
    """Return the anchors that the headings of a page make, the way code hosts build them."""
    headings = re.findall(r"^#+ +(.+?) *$", page, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(path: Path) -> list[str]:
    found = []
    for target in re.findall(r"\]\(([^)\s]+)[^)]*\)", prose(path.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        place = (path.parent / file).resolve() if file else path
        if not place.exists():
            found.append(f"{path.name}: {target} is not there")
        elif anchor and place.suffix == ".md" and anchor not in anchors(place.read_text(encoding="utf-8")):
            found.append(f"{path.name}: {target} names no heading of {place.name}")
    return found


def words(page: str) -> str:
    """Return a page with tables and code marks flattened, so that `| GET | /x |` reads as `GET /x`."""
    return re.sub(r"[`|\s]+", " ", page)


def mentions(page: str, phrase: str) -> bool:
    """Tell whether a page has the phrase, and not only as the beginning of a longer one."""
    return re.search(rf"(?<![\w/-]){re.escape(phrase)}(?![\w/{{-])", words(page)) is not None


def read(name: str) -> str:
    page = REFERENCE / name
    assert page.exists(), f"docs/reference/{name} is missing"
    return page.read_text(encoding="utf-8")


def missing(page: str, phrases: list[str]) -> list[str]:
    text = read(page)
    return [phrase for phrase in phrases if not mentions(text, phrase)]


def commands(group: Any, path: str = "tidegate") -> Iterator[str]:
    """Walk the command line and give every command that people see."""
    for name, command in group.commands.items():
        if getattr(command, "hidden", False):
            continue
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}"


def test_every_test_that_a_guarantee_names_is_there() -> None:
    page = (ROOT / "docs" / "internals" / "guarantees.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    assert len(named) > 30
    for file, test in named:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not test or re.search(rf"^ *(?:async )?def {test}\(", text, re.MULTILINE), (file, test)


def test_every_error_is_documented() -> None:
    assert missing("errors.md", [kind.code for kind in every_error()]) == []


def test_no_error_is_documented_that_is_not_there() -> None:
    listed = re.findall(r"^\|\s*`([A-Z_]+)`", read("errors.md"), flags=re.MULTILINE)
    assert listed, "docs/reference/errors.md lists errors in tables that open with the code"
    assert sorted(set(listed) - {kind.code for kind in every_error()}) == []


def test_every_command_is_documented() -> None:
    import typer.main

    from tidegate.cli.main import app

    found = list(commands(typer.main.get_command(app)))
    assert len(found) > 5
    assert missing("cli.md", found) == []


def test_every_endpoint_is_documented() -> None:
    from tidegate.server.routes import ROUTES

    assert missing("http.md", [f"{route.method} {route.path}" for route in ROUTES]) == []


def test_no_endpoint_is_documented_that_is_not_there() -> None:
    from tidegate.server.routes import ROUTES

    listed = set(re.findall(r"\b(GET|POST|PUT|PATCH|DELETE) (/[\w/{}-]+(?:\.\w+)?)", words(read("http.md"))))
    assert sorted(listed - {(route.method, route.path) for route in ROUTES}) == []


def test_every_setting_is_documented() -> None:
    from tidegate.settings import describe_settings

    assert missing("settings.md", [setting.key for setting in describe_settings()]) == []


def test_no_setting_is_documented_that_is_not_there() -> None:
    from tidegate.settings import describe_settings

    listed = set(re.findall(r"^\|\s*`([a-z_]+\.[a-z_]+)`", read("settings.md"), flags=re.MULTILINE))
    assert listed, "docs/reference/settings.md lists settings in tables that open with the key"
    assert sorted(listed - {setting.key for setting in describe_settings()}) == []


def test_the_page_of_internals_links_every_page() -> None:
    folder = ROOT / "docs" / "internals"
    linked = set(re.findall(r"\]\((\w[\w-]*\.md)", (folder / "README.md").read_text(encoding="utf-8")))
    assert linked == {page.name for page in folder.glob("*.md")} - {"README.md"}


@pytest.mark.parametrize("name", ["README.md", "architecture.md"])
def test_every_file_of_the_code_that_the_internals_name_is_there(name: str) -> None:
    page = (ROOT / "docs" / "internals" / name).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", page))
    assert len(named) > 15
    roots = (ROOT / "src" / "tidegate", ROOT)
    assert sorted(path for path in named if not any((root / path).exists() for root in roots)) == []


def limitations() -> list[str]:
    """List what README says that is not there: the bold words of its limitations."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("## Limitations")
    return re.findall(r"^- \*\*(.+?)\*\*", rest.partition("\n## ")[0], re.MULTILINE)


def offered() -> set[str]:
    """List the nouns and verbs that people can type: commands, endpoints, statements, settings."""
    import typer.main

    from tidegate.cli.main import app
    from tidegate.server.routes import ROUTES
    from tidegate.settings import describe_settings
    from tidegate.sql import statements

    typed = set(" ".join(commands(typer.main.get_command(app))).split())
    typed |= {part for route in ROUTES for part in route.path.split("/") if part.isidentifier()}
    typed |= {word for name in dir(statements) for word in re.findall(r"[A-Z][a-z]+", name)}
    typed |= {part for setting in describe_settings() for part in re.split(r"[._]", setting.key)}
    return {word.lower() for word in typed}


def test_what_the_limitations_name_is_not_there() -> None:
    """A thing that exists and is listed as missing: the list is stale."""
    known = offered()
    assert {"topic", "retention", "groups", "subscribe", "pipelines"} <= known
    missing = [word.lower() for item in limitations() for word in re.findall(r"\w+", item)]
    assert len(missing) > 15
    allowed = {
        "in",
        "live",
        "queries",
        "and",
        "a",
        "of",
        "by",
        "at",
        "than",
        "other",
        "web",
        "protocol",
        "wire",
        "key",
        "query",
    }
    stale = {word for word in missing if {word, word.removesuffix("s"), f"{word}s"} & known} - allowed
    assert stale == set()


def test_limitations_are_listed_in_one_place() -> None:
    """Other pages link the list; one of their own would go stale."""
    for page in PAGES:
        text = prose(page.read_text(encoding="utf-8"))
        if page.name not in {"README.md", "CHANGELOG.md"} and page.parent.name != "decisions":
            assert not re.search(r"not (?:in|part of) this version|^Not yet:", text, re.MULTILINE), page


@pytest.mark.parametrize("path", [*PAGES, *ROOT_PAGES], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(path: Path) -> None:
    assert broken_links(path) == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_python_snippet_compiles(path: Path) -> None:
    for fence in fences(path.read_text(encoding="utf-8")):
        if fence.language == "python":
            name = f"{path.name}, line {fence.line}"
            assert compile(fence.text, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), name


def pages_that_run() -> list[Path]:
    """List the README and every page with something to run, the README first."""
    return [PAGES[0], *(p for p in PAGES[1:] if any(f.runs for f in fences(p.read_text(encoding="utf-8"))))]


@dataclass(frozen=True)
class Reader:
    """Someone who types what a page says: a shell with `tidegate` on PATH and a server that runs."""

    environ: dict[str, str]
    port: int

    def type(self, fence: Fence, folder: Path) -> str:
        """Run one block; give what went wrong, or nothing."""
        command = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}[
            fence.language
        ]
        text = fence.text.replace(README_PORT, str(self.port))
        deadline = time.monotonic() + (ARRIVAL_SECONDS_MAX if "until" in fence.marker else 0)
        while True:
            answer = subprocess.run(
                [*command, text],
                cwd=folder,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=BLOCK_SECONDS_MAX,
                check=False,
            )
            if answer.returncode == 0:
                return ""
            if time.monotonic() >= deadline:
                return f"line {fence.line} ended with {answer.returncode}:\n{fence.text}\n{answer.stdout}"
            time.sleep(1)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Start `tidegate up` on a new home, wait until it is ready, and stop it with Ctrl-C at the end."""
    folder = tmp_path_factory.mktemp("reader")
    tools = commands_folder(folder)
    environ = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    environ |= {"TIDEGATE_HOME": str(folder / "home"), "COLUMNS": "120"}
    log = folder / "up.log"
    with log.open("wb") as output:
        up = subprocess.Popen(
            [tools / "tidegate", "up", "--port", "0"],
            env=environ,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Reader(environ, port_when_ready(up, folder / "home", log))
        up.send_signal(signal.SIGINT)
        assert up.wait(STOP_SECONDS_MAX) == 0, log.read_text(errors="replace")[-4000:]
    finally:
        if up.poll() is None:
            os.killpg(up.pid, signal.SIGKILL)
            up.wait()


def commands_folder(folder: Path) -> Path:
    """Make a folder with `tidegate` and `python` of the Python that runs the tests."""
    made = folder / "bin"
    made.mkdir()
    cold = shlex.join([sys.executable, "-m", "tidegate"])
    # What stays is a process like any other; all else is a fork of a warm one, which is quicker.
    choice = f'case "$1" in up | serve | worker) exec {cold} "$@" ;; esac\n'
    for name, line in {
        "tidegate": f"{choice}exec {shlex.join(command_line())}",
        "python": f"exec {shlex.quote(sys.executable)}",
        "python3": f"exec {shlex.quote(sys.executable)}",
    }.items():
        script = made / name
        script.write_text(f'#!/bin/sh\n{line} "$@"\n')
        script.chmod(0o755)
    return made


def port_when_ready(up: subprocess.Popen[bytes], home: Path, log: Path) -> int:
    """Wait for the server, and for the worker, whose Spark takes longer to start; give the port."""
    deadline = time.monotonic() + READY_SECONDS_MAX
    while up.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(TidegateError), tidegate.connect(home=home, retry_seconds=0) as client:
            if client.status()["worker"]:
                return int(client.url.rpartition(":")[2])
        time.sleep(0.2)
    pytest.fail(f"'tidegate up' is not ready:\n{log.read_text(errors='replace')[-4000:]}")


@pytest.mark.spark
@pytest.mark.parametrize("path", pages_that_run(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_a_page_tells_to_type_works(path: Path, reader: Reader, tmp_path: Path) -> None:
    # 1. a folder that looks like the checkout, so that new files stay out of it
    for entry in ROOT.iterdir():
        if entry.name not in {".git", ".home"}:
            (tmp_path / entry.name).symlink_to(entry)
    # 2. every block, in order
    blocks = [fence for fence in fences(path.read_text(encoding="utf-8")) if fence.runs]
    assert blocks, f"{path.name} has nothing under <!-- run -->"
    for fence in blocks:
        wrong = reader.type(fence, tmp_path)
        assert not wrong, wrong


PAGE = """# A page: with *marks*

See [one](#a-page-with-marks), [two](other.md), `[three](not-a-link.md)`.

<!-- run -->
```bash
echo [four](not-a-link.md)
```

```python
x =
```

<!-- run until it works -->
```bash
true
```
"""


def test_fences_know_their_language_and_their_marker() -> None:
    found = fences(PAGE)
    assert [(f.language, f.runs) for f in found] == [("bash", True), ("python", False), ("bash", True)]
    assert found[0].text == "echo [four](not-a-link.md)\n"
    assert found[0].line == 6


def test_a_link_into_nothing_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert broken_links(page) == ["page.md: other.md is not there"]
    page.write_text("# A\n[b](#b) [c](page.md#a)")
    assert broken_links(page) == ["page.md: #b names no heading of page.md"]


def test_a_longer_phrase_is_no_mention_of_a_shorter_one() -> None:
    assert mentions("| `GET` | `/api/v1/topics` |", "GET /api/v1/topics")
    assert not mentions("GET /api/v1/topics/{topic}", "GET /api/v1/topics")
    assert not mentions("`TOPIC_NOT_FOUND`", "NOT_FOUND")
    assert not mentions("tidegate pipeline list", "tidegate pipeline li")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_block_that_fails_is_reported_with_what_it_said(tmp_path: Path) -> None:
    reader = Reader(dict(os.environ), port=1234)
    said = reader.type(Fence(7, "bash", "echo hello 8787; false; echo never\n", "run"), tmp_path)
    assert "line 7 ended with 1" in said
    assert "hello 1234" in said
    assert "\nnever" not in said
    assert reader.type(Fence(1, "python", "print(1)\n", "run"), tmp_path) == ""
