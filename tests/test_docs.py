"""Docs are tests: everything people can call is documented, every link leads somewhere, every snippet works.

A fence directly under `<!-- run -->` is run for real, in the order of its page, against a `tidegate up` that
this test starts. Under `<!-- run until it works -->` it is tried again until it succeeds: for what arrives a
moment later. `bash` and `python` fences can be run; 8787 stands for the port of the test's own server. Fences
under `<!-- run in Spark -->` are run by tests/pipeline/test_examples.py.

Prose has one sentence a line, and limitations are listed in the README alone.
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
from itertools import pairwise
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

LINE_CHARS_MAX = 200
# A full stop after one of these, or after an initial, ends no sentence.
ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|cf|vs|etc|approx|[A-Z])\.$")

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


def unfenced(page: str) -> str:
    """Return a page without its fenced blocks; their lines are empty."""
    fence = re.compile(r"^[ \t]*```.*?^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)
    return fence.sub(lambda block: "\n" * block[0].count("\n"), page)


def prose(page: str) -> str:
    """Return a page without its fenced blocks and code spans."""
    return re.sub(r"`[^`\n]*`", "", unfenced(page))


def sentence_ends(line: str) -> list[str]:
    """List where a sentence ends and another one begins, with a few characters on both sides."""
    text = re.sub(r"^\s*(?:(?:[-*]|\d+\.|#+)\s+)*", "", line)
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "`x`", text))
    ends = re.finditer(r"[.!?][)\"*\]]*\s+(?=\S)", text)
    return [
        text[max(0, found.start() - 15) : found.end() + 15]
        for found in ends
        if not ABBREVIATION.search(text[: found.start() + 1])
    ]


def broken_lines(page: str) -> list[str]:
    """List the lines of prose that are too long or hold more than one sentence."""
    found = []
    for number, line in enumerate(unfenced(page).splitlines(), start=1):
        if line.lstrip().startswith("|"):
            continue
        if len(line) > LINE_CHARS_MAX:
            found.append(f"line {number} has {len(line)} characters")
        found += [f"line {number} has two sentences: …{place}…" for place in sentence_ends(line)]
    return found


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


# Files and folders of a home, of a backup and of a checkpoint, whose names begin like those of the code.
PATHS_OF_DATA = {"catalog/catalog.db", "catalog/dump/", "state/count"}


def paths_of_code(page: str, folders: set[str]) -> set[str]:
    """Return the files and folders of the code that a page names: `checkpoint/batch.py`, `server/http/`."""
    spans = set(re.findall(r"`(\w+(?:/[\w*.-]+)*/?)`", unfenced(page)))
    return {
        path
        for path in spans - PATHS_OF_DATA
        if "/" in path and (path.partition("/")[0] in folders or path.endswith(".py"))
    }


def test_every_file_of_the_code_that_a_page_names_is_there() -> None:
    tops = [ROOT / name for name in ("src", "tests", "docs", "benchmarks", "examples", "scripts")]
    found = [path for top in tops for path in (top, *top.rglob("*")) if "__pycache__" not in path.parts]
    files = "\n".join(f"/{path.relative_to(ROOT).as_posix()}" for path in found)
    folders = {
        path.name for path in found if path.is_dir() and path.parent in (ROOT, ROOT / "src" / "tidegate")
    }
    pages = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
    named = {
        (page.name, path)
        for page in pages
        for path in paths_of_code(page.read_text(encoding="utf-8"), folders)
    }
    assert len(named) > 300
    # A page may leave out the folder that it is about.
    ends = {path: re.escape(path.rstrip("/")).replace(r"\*", "[^/\n]*") for _, path in named}
    assert sorted(one for one in named if not re.search(f"/{ends[one[1]]}$", files, re.MULTILINE)) == []


def limitations() -> list[str]:
    """List what README says that is not there: the bold words of its limitations."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("## Limitations")
    return re.findall(r"^- \*\*(.+?)\*\*", rest.partition("\n## ")[0], re.MULTILINE)


def offered() -> list[list[str]]:
    """List what people can type, each as its words: commands, endpoints, statements, settings."""
    import typer.main

    from tidegate.cli.main import app
    from tidegate.server.routes import ROUTES
    from tidegate.settings import describe_settings
    from tidegate.sql.statements import Statement, TopicStatement

    kinds = [*Statement.__subclasses__(), *TopicStatement.__subclasses__()]
    typed = [command.split() for command in commands(typer.main.get_command(app))]
    typed += [[part for part in route.path.split("/") if part.isidentifier()] for route in ROUTES]
    typed += [re.findall(r"[A-Z][a-z]+", kind.__name__) for kind in kinds]
    typed += [re.split(r"[._]", setting.key) for setting in describe_settings()]
    return [[singular(word) for word in words] for words in typed]


def singular(word: str) -> str:
    lower = word.lower()
    return f"{lower.removesuffix('ies')}y" if lower.endswith("ies") else lower.removesuffix("s")


# Offered in another sense than that of the limitation; two of them in a row may still name what exists.
WORDS_SHARED = {"in", "live", "query", "a", "key", "drop", "alter", "column", "file"}


def stale_limitations(items: list[str], typed: list[list[str]]) -> list[str]:
    """List the words, and the pairs of words, that a list of missing things shares with what is there."""
    known = {word for name in typed for word in name} - WORDS_SHARED
    pairs = {pair for name in typed for pair in pairwise(name)}
    found: set[str] = set()
    for item in items:
        words = [singular(word) for word in re.findall(r"\w+", item)]
        found |= {word for word in words if word in known}
        found |= {" ".join(pair) for pair in pairwise(words) if pair in pairs}
    return sorted(found)


def test_what_the_limitations_name_is_not_there() -> None:
    """A thing that exists and is listed as missing: the list is stale."""
    assert len(limitations()) > 10
    assert stale_limitations(limitations(), offered()) == []


def test_limitation_that_is_a_command_an_endpoint_or_a_statement_is_found() -> None:
    typed = offered()
    assert stale_limitations(["Retention by size", "Consumer groups"], typed) == ["group", "retention"]
    assert stale_limitations(["Backups of one table"], typed) == ["backup", "table"]
    assert stale_limitations(["ADD COLUMN and DROP COLUMN"], typed) == ["add", "add column"]
    assert stale_limitations(["DROP COLUMN"], [*typed, ["alter", "drop", "column"]]) == ["drop column"]
    assert stale_limitations(["Replication", "UNIQUE and CHECK"], typed) == []


SECOND_LIST = re.compile(
    r"not (?:in|part of) this version|^Not yet:|\bTidegate yet\b|\bTidegate [^.\n]*\bnot\b[^.\n]* yet\b"
    r"|^#+ (?:What is (?:not there|missing)|(?:Known )?[Ll]imitations|Not (?:supported|implemented))\b",
    re.MULTILINE,
)


@pytest.mark.parametrize(
    "path", [*PAGES[1:], *ROOT_PAGES], ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_limitations_are_listed_in_the_readme_alone(path: Path) -> None:
    """Other pages link the list; one of their own would go stale."""
    if path.name != "CHANGELOG.md" and path.parent.name != "decisions":
        assert SECOND_LIST.findall(prose(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "text",
    [
        "## What is not there",
        "### Known limitations",
        "Not yet: archives.",
        "Copies on other machines are not kept by Tidegate yet.",
        "Tidegate does not replicate a home yet.",
        "Archives are not in this version.",
    ],
)
def test_second_list_of_limitations_is_found(text: str) -> None:
    assert SECOND_LIST.search(f"# A page\n\n{text}\n")


def test_link_to_the_limitations_is_no_second_list() -> None:
    assert not SECOND_LIST.search("## Tables\n\nTidegate does not replicate it ([limitations](README.md)).\n")


@pytest.mark.parametrize("path", [*PAGES, *ROOT_PAGES], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(path: Path) -> None:
    assert broken_links(path) == []


@pytest.mark.parametrize("path", [*PAGES, *ROOT_PAGES], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_prose_has_one_sentence_a_line(path: Path) -> None:
    """Split a line at its sentences, and a long sentence in two, or make a list of it."""
    assert broken_lines(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "line",
    [
        "It is one. It is two.",
        "Is it one? Yes.",
        "- **Volume.** There are no quotas.",
        "An answer ends. `sequence` is a number.",
        "It is at most 400. httpcore is another matter.",
        '  (It is in brackets.) It says "so." And then?',
        f"{'word ' * 40}.",
    ],
)
def test_line_with_two_sentences_or_too_many_characters_is_found(line: str) -> None:
    assert broken_lines(f"# A page\n\n{line}\n")


@pytest.mark.parametrize(
    "line",
    [
        "Version 1.2.3 and e.g. Debian 12, or D. Knuth, or … the rest.",
        "1. First step of `a. B` and `c. D`.",
        "### 2. The second part",
        "- **A name**: what it is; [a link](page.md#a. b).",
        "It ends here.",
        "| a table. May have | two sentences. In a cell |",
        "```text",
    ],
)
def test_line_with_one_sentence_is_left_alone(line: str) -> None:
    fence = f"```bash\necho one. Echo two. {'x' * 300}\n```"
    assert broken_lines(f"# A page\n\n{fence}\n\n{line}\n") == []


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
