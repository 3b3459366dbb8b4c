"""The tests of what changed: what `make check` runs after style and types.

    python scripts/check.py [BASE] [--list]

Changed is what differs from BASE, deleted files and files that git does not track yet among them. BASE is
`origin/main` where there is one, else the last commit while something is not committed, else the commit
before it. Run are:

- for a module of `src/tidegate`: the tests of its folder, which mirror it, and test modules elsewhere in its
  package that have its name; all tests of the package where none beside it has its name;
- for a test module: itself; for other files of a folder of tests: that folder with its rooms;
- for docs: the links, lists and references, and the commands of the changed pages;
- what ALSO names: tests that depend on a file and do not mirror it;
- always: style and layers.

Changed files for which nothing is chosen are named: `make test` runs everything. Tests marked `crash` are
left to `make test`; so is whatever depends on a module without being named here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALWAYS = ["tests/test_style.py", "tests/test_layers.py"]
PROCESSES = os.environ.get("TEST_PROCESSES", "3")

LISTS = "tests/test_docs.py"
# The beginning of a path, and the tests that depend on it from elsewhere.
ALSO: dict[str, tuple[str, ...]] = {
    # Statements are planned in `query` and run by the door.
    "src/tidegate/query/": ("tests/server/api",),
    "src/tidegate/sql/": ("tests/query", "tests/server/api/test_statements.py"),
    "src/tidegate/storage/group_commit.py": ("tests/ingest",),
    # The client and its types are generated.
    "src/tidegate/sdk/": ("tests/sdk/test_generated.py",),
    "src/tidegate/model/wire/": ("tests/sdk/test_generated.py", "tests/server/openapi"),
    "src/tidegate/spark.py": ("tests/pipeline/test_examples.py", LISTS),
    "src/tidegate/__init__.py": ("tests/sdk/test_client.py", "tests/test_wheel.py"),
    "src/tidegate/__main__.py": ("tests/cli/test_main.py",),
    "src/tidegate/testing/": ("tests/state/runtime", "tests/sdk/test_client.py"),
    # Each error, setting, endpoint, command, statement and metric is on a page.
    "src/tidegate/errors/": (LISTS,),
    "src/tidegate/settings/": (LISTS,),
    "src/tidegate/server/routes.py": ("tests/server", LISTS),
    "src/tidegate/server/app.py": ("tests/server",),
    "src/tidegate/cli/": (LISTS,),
    "src/tidegate/telemetry/": (LISTS,),
    "README.md": (LISTS,),
    "CONTRIBUTING.md": (LISTS, "tests/test_contributing.py"),
    "SECURITY.md": (LISTS, "tests/test_contributing.py"),
    "CHANGELOG.md": (LISTS, "tests/test_contributing.py"),
    "docs/": (LISTS,),
    "examples/": (LISTS, "tests/pipeline/test_examples.py"),
    "LICENSE": ("tests/test_contributing.py",),
    ".pre-commit-config.yaml": ("tests/test_contributing.py",),
    "Makefile": ("tests/test_setup.py", "tests/test_contributing.py"),
    "pyproject.toml": ("tests/test_setup.py", "tests/test_contributing.py", "tests/test_wheel.py"),
    "constraints": ("tests/test_setup.py", "tests/test_sbom.py"),
    "scripts/generate_": ("tests/sdk/test_generated.py",),
    "scripts/": ("tests/test_setup.py",),
    "tests/shake.py": ("tests/test_shake.py",),
    "tests/schedule.py": ("tests/test_shake.py",),
}


class GitFailed(Exception):
    """Git refused a command; what it printed is the message."""


def git(root: Path, *arguments: str) -> list[str]:
    """Return the parts of what git prints, which it separates by NUL or line end; raise GitFailed."""
    answer = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise GitFailed(answer.stderr.strip() or f"git {arguments[0]} failed")
    return [part for part in answer.stdout.replace("\0", "\n").split("\n") if part]


def base_of(root: Path) -> str:
    """Return the commit to compare with: `origin/main`, the last commit, or the one before it."""
    try:
        return git(root, "merge-base", "HEAD", "origin/main")[0]
    except GitFailed:
        return "HEAD" if git(root, "status", "--porcelain") else "HEAD~1"


def changed_files(root: Path, base: str) -> list[str]:
    """Return the paths that differ from the base, deleted ones too; both paths of a renamed file."""
    differing = git(root, "diff", "-z", "--name-only", "--no-renames", base, "--")
    return sorted({*differing, *git(root, "ls-files", "-z", "--others", "--exclude-standard")})


def tests_of(changed: Iterable[str], root: Path) -> list[str]:
    """Return the test modules and folders that belong to the changed files, each once."""
    found = {path for file in changed for path in tests_of_file(Path(file), root)}
    folders = {path for path in found if not path.endswith(".py")}
    return ALWAYS + sorted(path for path in found if path not in ALWAYS and not _is_within_one(path, folders))


def tests_of_file(file: Path, root: Path) -> list[str]:
    """Return the tests that belong to one file, as far as they are there; a deleted file has some, too."""
    found = [test for start, tests in ALSO.items() if file.as_posix().startswith(start) for test in tests]
    if file.parts[:2] == ("src", "tidegate") and len(file.parts) > 3:
        found += _tests_of_source(file, root)
    elif file.parts[:2] == ("src", "tidegate") or file.parts[0] == "scripts":
        found.append(f"tests/test_{file.stem}.py")
    elif file.parts[0] == "tests":
        found += _tests_of_test(file, root)
    return sorted({test for test in found if (root / test).exists()})


def _tests_of_source(file: Path, root: Path) -> list[str]:
    """Return the tests beside the mirror of a module, and those of its name; else all of its package."""
    tests, package = root / "tests", file.parts[2]
    name = f"test_{file.stem}.py"
    beside = set(tests.joinpath(*file.parts[2:-1]).glob("test_*.py"))
    named = {path for path in tests.rglob(name) if package in path.relative_to(tests).parts}
    has_own = any(path.name == name for path in beside) or (file.stem == "__init__" and beside)
    found = {*named, tests / f"test_{package}.py", *(beside if has_own else [tests / package])}
    return [path.relative_to(root).as_posix() for path in found]


def _tests_of_test(file: Path, root: Path) -> list[str]:
    """Return a test module itself; for what tests share or read, the nearest folder of tests."""
    if file.name.startswith("test_") and file.suffix == ".py" and (root / file).exists():
        return [file.as_posix()]
    folders = [folder.as_posix() for folder in file.parents if len(folder.parts) > 1]
    return next(([folder] for folder in folders if any((root / folder).rglob("test_*.py"))), [])


def _is_within_one(path: str, folders: set[str]) -> bool:
    return any(parent.as_posix() in folders for parent in Path(path).parents)


def selection(changed: list[str]) -> list[str]:
    """Return pytest's options: of the pages whose commands are run, the changed ones alone."""
    pages = [file for file in changed if file.endswith(".md")]
    names = " or ".join(["not test_what_a_page_tells_to_type_works", *(f"[{page}]" for page in pages)])
    return ["-m", "not crash", "-k", names]


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Run the tests of what changed, and return pytest's exit code; 2 where git cannot tell what changed."""
    bases = [argument for argument in arguments if not argument.startswith("-")]
    try:
        base = bases[0] if bases else base_of(root)
        changed = changed_files(root, base)
    except GitFailed as problem:
        print(f"Git cannot tell what changed: {problem}\nName a commit: make check BASE=…", file=sys.stderr)
        return 2
    tests = tests_of(changed, root)
    print(f"{len(changed)} files differ from {base}: {' '.join(tests)}", flush=True)
    without = [file for file in changed if not tests_of_file(Path(file), root)]
    if without:
        print(f"No tests are chosen for: {' '.join(without)} (make test runs everything)", flush=True)
    if "--list" in arguments:
        return 0
    command = [sys.executable, "-m", "pytest", *selection(changed), "-n", PROCESSES, "--dist", "loadfile"]
    return subprocess.run([*command, *tests], cwd=root, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
