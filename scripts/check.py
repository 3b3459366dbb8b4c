"""The tests of what changed: what `make check` runs after style and types.

    python scripts/check.py [BASE] [--list]

Changed is what differs from BASE, files that git does not track yet among them. BASE is `origin/main` where
there is one, else the last commit while something is not committed, else the commit before it. Run are:

- for a module of `src/tidegate`: the tests of its folder, which mirror it, and test modules elsewhere that
  have its name;
- for a test module: itself; for other files of a folder of tests: that folder with its rooms;
- for docs: the links, lists and references, and the commands of the changed pages;
- for what sets up: `tests/test_setup.py`;
- always: style and layers.

Tests marked `crash` are left to `make test`; so is whatever depends on a module without lying beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALWAYS = ["tests/test_style.py", "tests/test_layers.py"]
SET_UP = {"Makefile", "pyproject.toml", "constraints.txt", "constraints-test.txt"}
PROCESSES = os.environ.get("TEST_PROCESSES", "3")


def git(root: Path, *arguments: str) -> list[str]:
    """Return the lines that git prints; none where it fails."""
    answer = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return answer.stdout.splitlines() if answer.returncode == 0 else []


def base_of(root: Path) -> str:
    """Return the commit to compare with: `origin/main`, the last commit, or the one before it."""
    shared = git(root, "merge-base", "HEAD", "origin/main")
    if shared:
        return shared[0]
    return "HEAD" if git(root, "status", "--porcelain") else "HEAD~1"


def changed_files(root: Path, base: str) -> list[str]:
    """Return the paths that differ from the base and are still there."""
    differing = git(root, "diff", "--name-only", "--diff-filter=d", base)
    return sorted({*differing, *git(root, "ls-files", "--others", "--exclude-standard")})


def tests_of(changed: Iterable[str], root: Path) -> list[str]:
    """Return the test modules and folders that belong to the changed files, each once."""
    found = {path for file in changed for path in _tests_of_file(Path(file), root)}
    folders = {path for path in found if not path.endswith(".py")}
    return ALWAYS + sorted(path for path in found if not _is_within_one(path, folders))


def _tests_of_file(file: Path, root: Path) -> list[str]:
    if file.parts[:2] == ("src", "tidegate"):
        return _tests_of_source(file, root)
    if file.parts[0] == "tests" and file.suffix == ".py" and len(file.parts) > 2:
        return [file.as_posix() if file.name.startswith("test_") else file.parent.as_posix()]
    if file.parts[0] == "tests" and file.name.startswith("test_"):
        return [file.as_posix()]
    if file.suffix == ".md" or file.parts[0] in {"docs", "examples"}:
        return ["tests/test_docs.py"]
    return ["tests/test_setup.py"] if file.name in SET_UP or file.parts[0] == "scripts" else []


def _tests_of_source(file: Path, root: Path) -> list[str]:
    """Return the test modules that have the name of a module, or lie in the mirror of its folder or above."""
    tests, package = root / "tests", file.parts[2].removesuffix(".py")
    found = {path for path in tests.rglob(f"test_{file.stem}.py") if package in path.parts}
    found |= set(tests.glob(f"test_{package}.py"))
    for room in [Path(*file.parts[2:-1]), *Path(*file.parts[2:-1]).parents][: len(file.parts) - 3]:
        beside = set((tests / room).glob("test_*.py"))
        if beside:
            found |= beside
            break
    return [path.relative_to(root).as_posix() for path in found]


def _is_within_one(path: str, folders: set[str]) -> bool:
    return any(parent.as_posix() in folders for parent in Path(path).parents)


def selection(changed: list[str]) -> list[str]:
    """Return pytest's options: of the pages whose commands are run, the changed ones alone."""
    pages = [file for file in changed if file.endswith(".md")]
    names = " or ".join(["not test_what_a_page_tells_to_type_works", *(f"[{page}]" for page in pages)])
    return ["-m", "not crash", "-k", names]


def main(arguments: list[str]) -> int:
    """Run the tests of what changed, and return pytest's exit code."""
    bases = [argument for argument in arguments if not argument.startswith("-")]
    base = bases[0] if bases else base_of(ROOT)
    changed = changed_files(ROOT, base)
    tests = tests_of(changed, ROOT)
    print(f"{len(changed)} files differ from {base}: {' '.join(tests)}", flush=True)
    if "--list" in arguments:
        return 0
    command = [sys.executable, "-m", "pytest", *selection(changed), "-n", PROCESSES, "--dist", "loadfile"]
    return subprocess.run([*command, *tests], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
