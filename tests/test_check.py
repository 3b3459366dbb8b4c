"""`make check` chooses tests: those that mirror what changed, and no others."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.paths import ROOT


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check", ROOT / "scripts" / "check.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check = load()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Make a repository with one commit."""
    for file in [
        "src/tidegate/topics/log/log.py",
        "src/tidegate/spark.py",
        "tests/topics/log/test_log.py",
        "tests/topics/log/test_trim.py",
        "tests/topics/groups/test_groups.py",
        "tests/contract/test_log.py",
        "tests/upkeep/topics/test_log.py",
        "docs/a.md",
        "Makefile",
    ]:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("x = 1\n")
    git(tmp_path, "init", "-q", "-b", "main")
    commit(tmp_path)
    return tmp_path


def git(checkout: Path, *arguments: str) -> str:
    names = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    command = ["git", *names, *arguments]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True).stdout.strip()


def commit(checkout: Path) -> str:
    git(checkout, "add", "-A")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "Change")
    return git(checkout, "rev-parse", "HEAD")


def chosen(checkout: Path, *changed: str) -> list[str]:
    found: list[str] = check.tests_of(changed, checkout)
    assert found[:2] == check.ALWAYS
    return found[2:]


def test_a_module_has_the_tests_of_its_folder_and_of_its_name(checkout: Path) -> None:
    assert chosen(checkout, "src/tidegate/topics/log/log.py") == [
        "tests/topics/log/test_log.py",
        "tests/topics/log/test_trim.py",
        "tests/upkeep/topics/test_log.py",
    ]


def test_a_test_is_its_own_and_what_tests_share_is_the_folders(checkout: Path) -> None:
    assert chosen(checkout, "tests/topics/log/test_trim.py") == ["tests/topics/log/test_trim.py"]
    both = ["tests/topics/log/test_trim.py", "tests/topics/world.py"]
    assert chosen(checkout, *both) == ["tests/topics"]


def test_docs_and_set_up_have_their_own(checkout: Path) -> None:
    assert chosen(checkout, "docs/a.md", "README.md") == ["tests/test_docs.py"]
    assert chosen(checkout, "Makefile", "scripts/setup.sh") == ["tests/test_setup.py"]
    assert chosen(checkout, "LICENSE", "benchmarks/publish.py") == []


def test_of_the_pages_only_the_changed_ones_are_run() -> None:
    assert "[docs/a.md]" in check.selection(["docs/a.md", "x.py"])[-1]
    assert check.selection(["x.py"])[-1] == "not test_what_a_page_tells_to_type_works"


def test_the_base_is_the_last_commit_the_one_before_it_or_what_is_shared(checkout: Path) -> None:
    shared = git(checkout, "rev-parse", "HEAD")
    commit(checkout)
    assert check.base_of(checkout) == "HEAD~1"
    (checkout / "new.py").write_text("")
    assert check.base_of(checkout) == "HEAD"
    git(checkout, "update-ref", "refs/remotes/origin/main", shared)
    assert check.base_of(checkout) == shared


def test_changed_are_edited_committed_and_new_files_and_not_deleted_ones(checkout: Path) -> None:
    base = git(checkout, "rev-parse", "HEAD")
    (checkout / "docs" / "a.md").unlink()
    (checkout / "tests" / "topics" / "log" / "test_trim.py").write_text("x = 2\n")
    commit(checkout)
    (checkout / "Makefile").write_text("x = 3\n")
    (checkout / "new.py").write_text("")
    assert check.changed_files(checkout, base) == ["Makefile", "new.py", "tests/topics/log/test_trim.py"]


def test_of_the_real_tree_every_module_has_tests() -> None:
    """A module that has none would be checked by nothing. Every test uses `testing`."""
    modules = [path.relative_to(ROOT).as_posix() for path in (ROOT / "src").rglob("[a-z]*.py")]
    without = [module for module in modules if check.tests_of([module], ROOT) == check.ALWAYS]
    left = [module for module in without if not module.startswith("src/tidegate/testing/")]
    assert left in ([], ["src/tidegate/spark.py"])
