"""The wheel runs by itself: with what `constraints.txt` pins, and nothing of the checkout.

`make wheel` installs those packages from an index. Here they are linked out of this environment, one by one,
so that a dependency which only the tests bring is missing here, too.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

from tests.paths import ROOT
from tests.test_setup import normal, pins


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wheel", ROOT / "scripts" / "wheel.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = load()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built: Path = script.build_wheel(tmp_path_factory.mktemp("dist"))
    return built


def link_dependencies(target: Path) -> None:
    """Link every installed package that the program needs to run into a folder."""
    target.mkdir()
    for name in pins("constraints.txt"):
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # for another platform
            continue
        for top in {file.parts[0] for file in found.files or [] if not file.parts[0].startswith("..")}:
            if not (target / top).exists() and top != "__pycache__":
                (target / top).symlink_to(Path(str(found.locate_file(top))))


def test_it_has_every_file_of_the_source_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        inside = {name for name in opened.namelist() if ".dist-info/" not in name}
        licence = [name for name in opened.namelist() if name.endswith("LICENSE")]
    assert inside == {name.removeprefix("src/") for name in script.source_files() if name.startswith("src/")}
    assert "tidegate/py.typed" in inside
    assert len(licence) == 1


def test_it_names_its_licence_and_needs_no_tool_of_the_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        (name,) = [name for name in opened.namelist() if name.endswith("METADATA")]
        text = opened.read(name).decode("utf-8")
    assert "License-Expression: Apache-2.0" in text
    needed = re.findall(r"^Requires-Dist: ([\w.-]+)(?!.*extra ==)", text, re.MULTILINE)
    assert {normal(name) for name in needed} - pins("constraints.txt").keys() == set()


def test_the_demo_runs_from_it_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    environment, environ = tmp_path / "environment", script.plain_environ()
    subprocess.run([sys.executable, "-m", "venv", environment], check=True, env=environ)
    python = environment / "bin" / "python"
    options = ["--no-deps", "--no-index", "--quiet", "--disable-pip-version-check"]
    subprocess.run([python, "-m", "pip", "install", *options, wheel], check=True, env=environ)
    link_dependencies(tmp_path / "packages")
    (packages,) = (environment / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{tmp_path / 'packages'}\n")
    found = subprocess.run(
        [python, "-c", "import tidegate; print(tidegate.__file__)"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(found.stdout.strip()).is_relative_to(packages)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert script.run_demo(environment / "bin" / "tidegate", elsewhere) > 0
