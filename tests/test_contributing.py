"""What CONTRIBUTING.md and SECURITY.md name exists, and hooks run what `make lint` runs."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tomllib
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.paths import ROOT

FILES = ["CONTRIBUTING.md", "SECURITY.md"]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def recipe(target: str) -> list[str]:
    """Return the commands of a target, as make would run them."""
    plan = ["make", "--no-print-directory", "-n", target]
    return subprocess.run(plan, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("name", FILES)
def test_every_path_that_is_named_is_there(name: str) -> None:
    text = read(name)
    named = set(re.findall(r"(?<![\w/.])((?:tests|scripts|docs|src|benchmarks|pipeline)/[\w./-]*\w)", text))
    named -= {path for path in named if "*" in path}
    assert len(named) > 10
    roots = (ROOT, ROOT / "src" / "tidegate")
    assert sorted(path for path in named if not any((root / path).exists() for root in roots)) == []


@pytest.mark.parametrize("name", FILES)
def test_every_module_that_is_run_can_be_found(name: str) -> None:
    modules = set(re.findall(r"python -m ([\w.]+)", read(name))) | set(
        re.findall(r"`(tests\.[\w.]+)", read(name))
    )
    assert modules
    assert sorted(module for module in modules if importlib.util.find_spec(module) is None) == []


def test_every_target_that_is_named_is_one_and_sets_up_first() -> None:
    targets = set(re.findall(r"(?:`|^)make ([a-z]+)", read("CONTRIBUTING.md"), re.MULTILINE))
    assert targets >= {
        "setup",
        "run",
        "check",
        "test",
        "crash",
        "soak",
        "shake",
        "bench",
        "wheel",
        "sbom",
        "lint",
    }
    assert {target for target in targets if recipe(target)[0] != "scripts/setup.sh"} == set()


def test_every_target_is_explained_in_the_list_of_make() -> None:
    makefile = read("Makefile")
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    assert phony
    explained = set(re.findall(r"^([a-z]+):[^#\n]*## ", makefile, re.MULTILINE))
    assert explained == set(phony[1].split())


def test_hooks_run_what_lint_runs() -> None:
    (repo,) = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    assert repo["repo"] == "local"
    hooks: list[dict[str, Any]] = repo["hooks"]
    assert [hook["entry"] for hook in hooks] == recipe("lint")[1:]
    for hook in hooks:
        assert re.search(hook["files"], "src/tidegate/spark.py")
        assert re.search(hook["files"], "pyproject.toml")
        assert not re.search(hook["files"], "README.md")


def test_hooks_can_be_read_by_the_tool() -> None:
    answer = subprocess.run(
        [ROOT / ".venv" / "bin" / "pre-commit", "validate-config"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_the_licence_is_the_one_that_the_package_names() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    assert project["license"] == "Apache-2.0"
    assert project["license-files"] == ["LICENSE"]
    text = read("LICENSE")
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
