"""Style is a test: sizes, folders, banned calls with their replacement, names, docstrings, log lines.

The words that names may not have come from `docs/reference/words.md`.
"""

from __future__ import annotations

import ast
import functools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.paths import ROOT

SRC = ROOT / "src" / "tidegate"
TESTS = ROOT / "tests"
WORDS = ROOT / "docs" / "reference" / "words.md"

FILE_LINES_MAX = 600
FOLDER_FILES_MAX = 20
FUNCTION_LINES_MAX = 50
LINE_CHARS_MAX = 110

CODE_FOLDERS = ["src", "tests", "benchmarks", "examples", "scripts"]
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".sh", ".yml", ".yaml", ".json", ".sql", ""}
NOT_OURS = {".git", ".venv", ".home", ".hypothesis", "build", "artifacts", "node_modules", "__pycache__"}
NOT_OURS |= {"golden"}  # bytes that older versions wrote

# Files and folders of src/tidegate that may look at the clock and draw random numbers themselves.
CLOCK_ALLOWED = ("server/", "cli/", "sdk/", "testing/", "model/clock.py")

CLOCK = "take a Clock (model/clock.py) as an argument"
RANDOM = "take a random.Random as an argument"
READS_CLOCK = ["time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns"]
READS_CLOCK += ["time.perf_counter", "time.perf_counter_ns", "datetime.date.today"]
READS_CLOCK += [f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")]
BANNED_BELOW_DOORS = dict.fromkeys(READS_CLOCK, CLOCK) | dict.fromkeys(["random.*", "numpy.random.*"], RANDOM)
RANDOM_TYPES = {"random.Random", "numpy.random.Generator"}
SPELLED_OUT = "write the bytes with a codec that has a version byte"
BANNED_EVERYWHERE = {
    "os.system": "call subprocess.run with a list",
    "os.popen": "call subprocess.run with a list",
    "pickle.*": SPELLED_OUT,
    "cloudpickle.*": SPELLED_OUT,
    "marshal.*": SPELLED_OUT,
    "shelve.*": SPELLED_OUT,
}

# Made by scripts/generate_sdk.py from sdk/_async: the same classes, without await.
GENERATED = "sdk/_sync/"
# Twins by hand of modules of sdk/_async, with the same names, so that the generator need only swap imports.
TWINS = "sdk/blocking/"

# Nouns of the interface and of the formats that contain such a word.
NOUNS_ALLOWED = ("object_id", "base_offset")
# Words that say nothing in the name of a module, class or function, and little harm in that of a variable.
ALLOWED_IN_VARIABLES = {"thing", "stuff", "helper", "helpers", "util", "utils", "common", "misc"}
ALLOWED_IN_VARIABLES |= {"process", "handle", "manage", "data", "info", "item", "object", "base"}
# The public door keeps the words its users know; a protocol of asyncio has asyncio's.
NAMES_ALLOWED_IN = {"spark.py", "server/http/protocol.py", "state/operator.py", "pipeline/stateful/keyed.py"}
NAMES_ALLOWED_IN |= {"cli/demo/sessions_pipeline.py"}  # an operator, as users write them

# "Takes a row, gives a key": right for a package, whose docstring says what it keeps, and empty on a module.
FORMULA = re.compile(r"\b(?:takes|gives|keeps)\b", re.IGNORECASE)
NOT_PLAIN = {"Give": "Return", "Gives": "Returns", "Say": "Return", "Says": "Returns", "Tell": "Return"}
# A placeholder of a log line, and the name that stands before it: `partition=%d`.
PLACEHOLDER = re.compile(r"(\w+=)?'?%(?:\(\w+\))?[-0-9.]*[sdrf]")
# `log`, `self._logger`, `logging.getLogger("tidegate")`.
LOGGER = re.compile(r"(?:^|[._])log(?:ger)?$|getLogger\(.*\)$")
LOG_CALLS = {"debug", "info", "warning", "error", "exception", "critical"}

Finding = tuple[int, str]
Check = Callable[[str, ast.Module], Iterator[Finding]]


def below_doors(path: str) -> bool:
    return not path.startswith(CLOCK_ALLOWED)


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    """Return the full name behind `now`, `dt.now` or `datetime.datetime.now`, by the imports of the file."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        front = dotted(node.value, names)
        return f"{front}.{node.attr}" if front else ""
    return ""


def imported_names(tree: ast.Module) -> dict[str, str]:
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0]
                for a in node.names
            }
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return names


def replacement(name: str, banned: dict[str, str]) -> str | None:
    if name in RANDOM_TYPES:
        return None
    return banned.get(name) or next(
        (instead for rule, instead in banned.items() if rule.endswith("*") and name.startswith(rule[:-1])),
        None,
    )


def banned_names(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Find every mention of a banned name, called or passed on."""
    banned = BANNED_EVERYWHERE | (BANNED_BELOW_DOORS if below_doors(path) else {})
    names = imported_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            name = dotted(node, names)
            instead = replacement(name, banned)
            if instead:
                yield node.lineno, f"{name} is banned here: {instead}"


def banned_calls(path: str, tree: ast.Module) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        for keyword in node.keywords:
            if (
                keyword.arg == "shell"
                and isinstance(keyword.value, ast.Constant)
                and keyword.value.value is True
            ):
                yield node.lineno, "shell=True is banned: pass a list of arguments"
        suppressed = [arg.id for arg in node.args if isinstance(arg, ast.Name)]
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called == "suppress" and {"Exception", "BaseException"} & set(suppressed):
            yield node.lineno, "suppress(Exception) swallows everything: name the narrowest type"


def banned_statements(path: str, tree: ast.Module) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield node.lineno, "bare assert: raise InvariantBroken(reason=…), which -O does not remove"
        if isinstance(node, ast.ExceptHandler) and _is_broad(node.type) and all(map(_is_nothing, node.body)):
            yield node.lineno, "a broad except that says nothing: catch the narrowest type, or log and raise"


def _is_broad(caught: ast.expr | None) -> bool:
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(kind is None or getattr(kind, "id", "") in {"Exception", "BaseException"} for kind in kinds)


def _is_nothing(statement: ast.stmt) -> bool:
    is_dots = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_dots or isinstance(statement, ast.Pass | ast.Continue)


def prints(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Find prints outside the command line and outside `main` of a module that can be run by itself."""
    if path.startswith("cli/"):
        return
    is_entry = any(isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in tree.body)
    for statement in tree.body:
        if is_entry and isinstance(statement, ast.FunctionDef) and statement.name == "main":
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
                yield node.lineno, "print: use logging, or give the text to the command line"


def words_of(name: str) -> set[str]:
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    for noun in NOUNS_ALLOWED:
        snake = snake.replace(noun, "")
    return set(snake.split("_"))


@functools.cache
def words_to_avoid() -> dict[str, str]:
    """Read the second table of words.md: each word that is not used, with the one to use."""
    _, _, table = WORDS.read_text(encoding="utf-8").partition("## Words that we do not use")
    rows = re.findall(r"^\| ([\w, ]+) \| (.+) \|$", table, re.MULTILINE)[1:]
    return {word: instead for words, instead in rows for word in words.split(", ")}


def names_to_avoid(path: str, tree: ast.Module) -> Iterator[Finding]:
    if path in NAMES_ALLOWED_IN:
        return
    avoid = words_to_avoid()
    named = [(1, part.removesuffix(".py"), set(avoid)) for part in path.split("/")]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            named.append((node.lineno, node.name, set(avoid)))
    named += [(line, name, set(avoid) - ALLOWED_IN_VARIABLES) for line, name in sorted(variables(tree))]
    for line, name, words in named:
        for word in sorted(words_of(name) & words):
            yield line, f"'{name}' contains '{word}': {avoid[word]} (docs/reference/words.md)"


def variables(tree: ast.Module) -> set[tuple[int, str]]:
    """Return the names of parameters, assigned variables and attributes, with their lines."""
    found: set[tuple[int, str]] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            found.add((node.lineno, node.arg))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add((node.lineno, node.id))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add((node.lineno, node.attr))
    return found


def long_functions(path: str, tree: ast.Module) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1 - _docstring_lines(node)
            if lines > FUNCTION_LINES_MAX:
                yield (
                    node.lineno,
                    f"{node.name} has {lines} lines, {FUNCTION_LINES_MAX} are allowed: split it",
                )


def _docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[0]
    has_one = ast.get_docstring(node, clean=False) is not None
    return (first.end_lineno or first.lineno) - first.lineno + 1 if has_one else 0


def missing_docstrings(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Find modules, public classes, functions and methods without a promise.

    Left out: errors (their tree documents them), methods of a class with bases (the base makes the promise),
    of protocols, and those whose name a protocol of this code promises; methods of one statement.
    """
    if ast.get_docstring(tree) is None:
        yield 1, "the module has no docstring: a noun phrase with the field's word"
    for node in tree.body:
        if not isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ) or node.name.startswith("_"):
            continue
        if ast.get_docstring(node) is None and not (
            path.startswith("errors/") and isinstance(node, ast.ClassDef)
        ):
            yield node.lineno, f"{node.name} has no docstring: its first line is the promise"
        if isinstance(node, ast.ClassDef) and not node.bases:
            yield from _methods_without_docstring(node)


def _methods_without_docstring(kind: ast.ClassDef) -> Iterator[Finding]:
    promised = protocol_methods()
    for node in kind.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        if ast.get_docstring(node) is None and node.name not in promised and len(node.body) > 1:
            yield node.lineno, f"{kind.name}.{node.name} has no docstring: its first line is the promise"


def formulas(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Find modules whose first line says what they take, give and keep; packages may."""
    first = (ast.get_docstring(tree) or "").partition("\n")[0]
    if not path.endswith("__init__.py") and FORMULA.search(first):
        yield 1, "the module's first line takes, gives or keeps: write a noun phrase with the field's word"


def odd_verbs(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Find docstrings that begin with a verb that nobody else uses for it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            verb = re.match(r"\w*", ast.get_docstring(node) or "")
            if verb and verb[0] in NOT_PLAIN:
                yield node.lineno, f"{node.name}: write '{NOT_PLAIN[verb[0]]}', not '{verb[0]}'"


def log_lines(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Find log lines with a value that has no name: they are an event and `key=value`."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        if node.func.attr not in LOG_CALLS or not LOGGER.search(ast.unparse(node.func.value)):
            continue
        text = node.args[0]
        if not (isinstance(text, ast.Constant) and isinstance(text.value, str)):
            yield node.lineno, "the log line is no literal: an event, then key=value"
        elif any(not name for name in PLACEHOLDER.findall(text.value)):
            yield node.lineno, f"a value without a name in '{text.value[:60]}': write key=%s"


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@functools.cache
def protocol_methods() -> frozenset[str]:
    """Return the names of all methods that a Protocol of the code promises."""
    return frozenset(
        part.name
        for file in SRC.rglob("*.py")
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(kind) for kind in node.bases)
        for part in node.body
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def sizes(text: str) -> Iterator[Finding]:
    lines = text.splitlines()
    if len(lines) > FILE_LINES_MAX:
        yield 1, f"{len(lines)} lines, {FILE_LINES_MAX} are allowed: split it by noun"
    for number, line in enumerate(lines, start=1):
        if len(line) > LINE_CHARS_MAX:
            yield number, f"{len(line)} characters, {LINE_CHARS_MAX} are allowed"


# Written with brackets, so that this file does not contain what it looks for.
REGISTRIES = r"pypi[.]org|python[h]osted|maven[.]org|repo1?[.]maven|npmjs[.](?:org|com)"
MACHINE_PATHS = r"(?<![\w.$}~*<>-])/(?:[w]ork|[r]oot)\b"
FORBIDDEN = [
    (re.compile(REGISTRIES), "names the address of a registry: each machine has its own settings for that"),
    (re.compile(MACHINE_PATHS), "names a path of one machine: start at the checkout"),
]


def forbidden_texts(text: str) -> Iterator[Finding]:
    for number, line in enumerate(text.splitlines(), start=1):
        for pattern, why in FORBIDDEN:
            if pattern.search(line):
                yield number, f"{why} ({line.strip()[:80]})"


SRC_CHECKS: list[Check] = [
    banned_names,
    banned_calls,
    banned_statements,
    prints,
    names_to_avoid,
    long_functions,
    missing_docstrings,
    formulas,
    odd_verbs,
    log_lines,
]


def text_files() -> list[Path]:
    """List the texts of the checkout, without what tools and runs leave behind."""
    found: list[Path] = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [n for n in folders if n not in NOT_OURS and not n.endswith(("_cache", ".egg-info"))]
        found += [Path(folder, name) for name in files if Path(name).suffix in TEXT_SUFFIXES]
    return sorted(found)


def report(found: Iterable[tuple[Path, Finding]]) -> str:
    return "\n".join(f"{path.relative_to(ROOT)}:{line}: {why}" for path, (line, why) in found)


@pytest.mark.parametrize("check", SRC_CHECKS, ids=lambda check: check.__name__)
def test_source_keeps_the_rule(check: Check) -> None:
    found: list[tuple[Path, Finding]] = []
    for file in sorted(SRC.rglob("*.py")):
        found += [(file, finding) for finding in check(file.relative_to(SRC).as_posix(), parsed(file))]
    assert not found, "\n" + report(found)


def test_files_functions_and_lines_stay_short() -> None:
    found: list[tuple[Path, Finding]] = []
    for file in text_files():
        if file.suffix not in {".py", ".sh"} or file.relative_to(ROOT).parts[0] not in CODE_FOLDERS:
            continue
        text = file.read_text(encoding="utf-8")
        found += [(file, finding) for finding in sizes(text)]
        if file.suffix == ".py":
            found += [(file, finding) for finding in long_functions(file.name, ast.parse(text))]
    assert not found, "\n" + report(found)


def crowded_folders(files: Iterable[str]) -> dict[str, int]:
    """Count the modules of each folder, and return those with too many."""
    counts = Counter(file.rpartition("/")[0] for file in files)
    return {folder: count for folder, count in counts.items() if count > FOLDER_FILES_MAX}


def test_folders_have_few_modules() -> None:
    files = [
        file.relative_to(ROOT).as_posix()
        for folder in CODE_FOLDERS
        for file in (ROOT / folder).rglob("*.py")
        if not NOT_OURS & set(file.parts)
    ]
    assert crowded_folders(files) == {}, f"a folder has at most {FOLDER_FILES_MAX} modules: make rooms"


def shared_class_names(trees: Iterable[tuple[str, ast.Module]]) -> dict[str, list[str]]:
    """Return the names that several classes have, with the modules of these."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees:
        if not path.startswith((GENERATED, TWINS)):
            for node in tree.body:
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(path)
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def test_a_class_name_has_one_meaning() -> None:
    trees = ((file.relative_to(SRC).as_posix(), parsed(file)) for file in sorted(SRC.rglob("*.py")))
    assert shared_class_names(trees) == {}


def test_the_words_that_we_use_are_where_their_table_says() -> None:
    used, _, _ = WORDS.read_text(encoding="utf-8").partition("## Words that we do not use")
    rows = re.findall(r"^\|.+\|.+\| (`.+`) \|$", used, re.MULTILINE)
    places = [place for row in rows for place in re.findall(r"`([^`]+)`", row)]
    assert len(places) > 50
    assert [place for place in places if not (SRC / place).exists()] == []


def test_no_text_names_a_registry_or_a_path_of_one_machine() -> None:
    found = [
        (file, one) for file in text_files() for one in forbidden_texts(file.read_text(encoding="utf-8"))
    ]
    assert not found, "\n" + report(found)


def check_source(check: Check, source: str, path: str = "topics/log/log.py") -> list[str]:
    return [why for _, why in check(path, ast.parse(source))]


LONG_METHOD = "class A:\n    '''D.'''\n    def f(self):\n        x = 1\n        return x"


@pytest.mark.parametrize(
    ("check", "source", "words"),
    [
        (banned_names, "import time\ntime.time()", "take a Clock"),
        (banned_names, "from time import monotonic as m\nm()", "time.monotonic is banned"),
        (
            banned_names,
            "def f(clock=None):\n    import time\n    return clock or time.monotonic",
            "take a Clock",
        ),
        (banned_names, "from datetime import datetime\ndatetime.now()", "take a Clock"),
        (banned_names, "import datetime as dt\ndt.datetime.now(dt.UTC)", "take a Clock"),
        (banned_names, "import random\nrandom.random()", "take a random.Random"),
        (banned_names, "from random import choice\nchoice([1])", "take a random.Random"),
        (banned_names, "import os\nos.system('ls')", "subprocess.run"),
        (banned_names, "import pickle\npickle.loads(b'')", "version byte"),
        (banned_calls, "import subprocess\nsubprocess.run('ls', shell=True)", "list of arguments"),
        (banned_calls, "with contextlib.suppress(Exception):\n    f()", "narrowest"),
        (banned_statements, "assert x", "InvariantBroken"),
        (banned_statements, "try:\n    f()\nexcept Exception:\n    pass", "says nothing"),
        (banned_statements, "try:\n    f()\nexcept:\n    ...", "says nothing"),
        (prints, "print(1)", "logging"),
        (prints, "def f():\n    print(1)\nif __name__ == '__main__':\n    f()", "logging"),
        (names_to_avoid, "def process_rows(): ...", "'process'"),
        (names_to_avoid, "class RowInfo: ...", "'info'"),
        (names_to_avoid, "class StateDepot: ...", "checkpoint store"),
        (names_to_avoid, "def rows_told(): ...", "'told'"),
        (names_to_avoid, "def f(rows_told): ...", "'told'"),
        (names_to_avoid, "def f(*, kept=1): ...", "'kept'"),
        (names_to_avoid, "kept = 1", "'kept'"),
        (names_to_avoid, "SNAPSHOTS_KEPT = 3", "'kept'"),
        (names_to_avoid, "for wanted in f(): ...", "'wanted'"),
        (names_to_avoid, "with f() as opened: ...", "'opened'"),
        (names_to_avoid, "x = [said for said in f()]", "'said'"),
        (names_to_avoid, "class A:\n    placed: int = 0", "'placed'"),
        (names_to_avoid, "class A:\n    def f(self): self._lent = 1", "'lent'"),
        (formulas, '"Segments: takes keys, gives their times."', "noun phrase"),
        (odd_verbs, 'def f():\n    "Give the rows."', "'Return', not 'Give'"),
        (log_lines, "log.warning('partition %d is damaged', 1)", "key=%s"),
        (log_lines, "log.info(f'served {n}')", "no literal"),
        (log_lines, "self._logger.info('served %5d', 1)", "key=%s"),
        (log_lines, "logging.getLogger('tidegate').info('served %(n)s', {})", "key=%s"),
        (long_functions, "def f():\n" + "    x = 1\n" * 50, "51 lines"),
        (missing_docstrings, "x = 1", "the module has no docstring"),
        (missing_docstrings, "'''Doc.'''\ndef f(): ...", "f has no docstring"),
        (missing_docstrings, f"'''Doc.'''\n{LONG_METHOD}", "A.f has no docstring"),
    ],
)
def test_what_breaks_a_rule_is_found_and_the_way_out_named(check: Check, source: str, words: str) -> None:
    (why,) = check_source(check, source)
    assert words in why


@pytest.mark.parametrize(
    ("check", "source", "path"),
    [
        (banned_names, "import time\ntime.time()", "server/app.py"),
        (banned_names, "import time\ntime.time()", "model/clock.py"),
        (banned_names, "import time\ntime.sleep(1)\nclock.now()", "topics/log/log.py"),
        (banned_names, "import random\ndef f(r: random.Random): ...", "topics/log/log.py"),
        (banned_statements, "try:\n    f()\nexcept OSError:\n    pass", "topics/log/log.py"),
        (banned_statements, "try:\n    f()\nexcept Exception as e:\n    log(e)", "topics/log/log.py"),
        (prints, "def main():\n    print(1)\nif __name__ == '__main__':\n    main()", "pipeline/jars.py"),
        (prints, "print(1)", "cli/main.py"),
        (names_to_avoid, "class ObjectId: ...\ndef base_offset(): ...\ndef metadata(): ...", "model/ids.py"),
        (names_to_avoid, "def process(): ...", "spark.py"),
        (names_to_avoid, "def f(data):\n    item = data[0]", "topics/log/log.py"),
        (names_to_avoid, "raise SequenceTooOld(kept=answer.kept)", "topics/log/log.py"),
        (
            long_functions,
            "def f():\n    '''A\n" + "    b\n" * 40 + "    '''\n" + "    x = 1\n" * 49,
            "topics/log/log.py",
        ),
        (missing_docstrings, "'''Doc.'''\nclass NameInvalid(E): ...", "errors/refused.py"),
        (missing_docstrings, "'''Doc.'''\ndef _f(): ...", "topics/log/log.py"),
        (formulas, '"Segments: takes keys, gives their times, keeps them."', "dedup/__init__.py"),
        (log_lines, "log.warning('snapshot damaged epoch=%d file=%s', 1, 2)", "topics/log.py"),
    ],
)
def test_what_keeps_the_rules_is_left_alone(check: Check, source: str, path: str) -> None:
    assert check_source(check, source, path) == []


def test_a_module_named_for_nothing_is_found() -> None:
    assert check_source(names_to_avoid, "", "storage/utils.py")


def test_long_files_and_lines_are_found() -> None:
    assert [line for line, _ in sizes("x\n" * 600 + "y" * 111)] == [1, 601]
    assert list(sizes("x\n" * 599 + "y" * 110)) == []


@pytest.mark.parametrize(
    "text", [f"pip install -i https://{'py'}pi.org/simple", f"cd {'/'}work/main", f"see '{'/'}root/.m2'"]
)
def test_forbidden_texts_are_found(text: str) -> None:
    assert list(forbidden_texts(text))


@pytest.mark.parametrize("text", ["src/work/x.py", "<home>/root", "the network works", "a Maven repository"])
def test_harmless_texts_are_left_alone(text: str) -> None:
    assert list(forbidden_texts(text)) == []


def test_a_crowded_folder_and_a_shared_class_name_are_found() -> None:
    files = [f"src/a/m{number}.py" for number in range(21)] + ["src/b/m.py"]
    assert crowded_folders(files) == {"src/a": 21}
    tree = ast.parse("class Place: ...")
    assert shared_class_names([("a.py", tree), ("b/c.py", tree), (f"{GENERATED}d.py", tree)]) == {
        "Place": ["a.py", "b/c.py"]
    }
