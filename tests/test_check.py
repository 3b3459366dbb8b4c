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


def test_a_module_without_a_test_of_its_name_has_all_of_the_package(checkout: Path) -> None:
    assert chosen(checkout, "src/tidegate/topics/log/reader.py") == ["tests/topics"]
    assert chosen(checkout, "src/tidegate/topics/log/__init__.py") == [
        "tests/topics/log/test_log.py",
        "tests/topics/log/test_trim.py",
    ]


def test_deleted_and_renamed_files_have_the_tests_of_where_they_were(checkout: Path) -> None:
    base = git(checkout, "rev-parse", "HEAD")
    git(checkout, "mv", "src/tidegate/topics/log/log.py", "src/tidegate/topics/tail.py")
    git(checkout, "rm", "-q", "tests/topics/log/test_trim.py")
    changed = check.changed_files(checkout, base)
    assert changed == [
        "src/tidegate/topics/log/log.py",
        "src/tidegate/topics/tail.py",
        "tests/topics/log/test_trim.py",
    ]
    assert check.tests_of_file(Path(changed[0]), checkout) == [
        "tests/topics/log/test_log.py",
        "tests/upkeep/topics/test_log.py",
    ]
    assert check.tests_of_file(Path(changed[2]), checkout) == ["tests/topics/log"]


def test_a_base_that_git_does_not_know_is_refused(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing changed and nothing known are not the same: the first is green."""
    assert check.main(["no-such-commit", "--list"], checkout) == 2
    assert "no-such-commit" in capsys.readouterr().err
    assert check.main(["--list"], checkout) == 2  # there is one commit, and nothing before it
    commit(checkout)
    assert check.main(["--list"], checkout) == 0


def test_files_without_tests_are_named(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkout / "tests" / "conftest.py").write_text("")
    (checkout / "größe.txt").write_text("")
    assert check.main(["--list"], checkout) == 0
    assert "No tests are chosen for: größe.txt tests/conftest.py (" in capsys.readouterr().out


def test_a_test_is_its_own_and_what_tests_share_is_the_folders(checkout: Path) -> None:
    assert chosen(checkout, "tests/topics/log/test_trim.py") == ["tests/topics/log/test_trim.py"]
    both = ["tests/topics/log/test_trim.py", "tests/topics/world.py"]
    assert chosen(checkout, *both) == ["tests/topics"]


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("docs/a.md", ["tests/test_docs.py"]),
        ("SECURITY.md", ["tests/test_contributing.py", "tests/test_docs.py"]),
        ("Makefile", ["tests/test_contributing.py", "tests/test_setup.py"]),
        ("scripts/sbom.py", ["tests/test_sbom.py", "tests/test_setup.py"]),
        ("constraints.txt", ["tests/test_sbom.py", "tests/test_setup.py"]),
        ("tests/topics/golden/0001", ["tests/topics"]),
        ("src/tidegate/query/statements/dml.py", ["tests/query", "tests/server/api"]),
        ("src/tidegate/server/routes.py", ["tests/server", "tests/test_docs.py"]),
        ("benchmarks/topics/publish.py", []),
    ],
)
def test_other_files_have_the_tests_that_depend_on_them(file: str, tests: list[str]) -> None:
    assert chosen(ROOT, file) == tests


def test_the_table_of_what_depends_names_what_is_there() -> None:
    names = {test for tests in check.ALSO.values() for test in tests}
    assert [name for name in names if not (ROOT / name).exists()] == []
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [start for start in check.ALSO if f"\n{start}" not in f"\n{files}"] == []


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


def test_changed_are_edited_committed_deleted_and_new_files(checkout: Path) -> None:
    base = git(checkout, "rev-parse", "HEAD")
    (checkout / "docs" / "a.md").unlink()
    (checkout / "tests" / "topics" / "log" / "test_trim.py").write_text("x = 2\n")
    commit(checkout)
    (checkout / "Makefile").write_text("x = 3\n")
    (checkout / "new.py").write_text("")
    changed = ["Makefile", "docs/a.md", "new.py", "tests/topics/log/test_trim.py"]
    assert check.changed_files(checkout, base) == changed


def test_of_the_real_tree_every_module_has_tests() -> None:
    """A module that has none would be checked by nothing."""
    modules = [path.relative_to(ROOT) for path in (ROOT / "src").rglob("*.py")]
    assert [module for module in modules if not check.tests_of_file(module, ROOT)] == []
