from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT
from tidegate.cli.checks.programs import (
    check_jars,
    check_java,
    check_packages,
    check_python,
    check_python_of_spark,
    check_spark,
    in_ranges,
    installed_version,
    requirements_of_package,
)
from tidegate.pipeline.jars import DELTA, delta_jars


def java_of(folder: Path, version: str) -> Path:
    """Make a Java that tells this version and its own folder."""
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(
        f"#!/bin/sh\necho '    java.home = {folder}'\necho '    java.version = {version}'\n", encoding="utf-8"
    )
    command.chmod(0o755)
    return folder


def test_an_old_python_fails() -> None:
    assert check_python((3, 10, 4), "/usr/bin/python3").state == "fail"
    assert check_python((3, 11, 0), "/usr/bin/python3").state == "ok"


def test_a_java_that_fits_is_named_and_one_that_is_too_old_fails(tmp_path: Path) -> None:
    new, old = java_of(tmp_path / "new", "17.0.15"), java_of(tmp_path / "old", "1.8.0_402")
    found = check_java({"JAVA_HOME": str(new), "PATH": ""}, tmp_path / "none")
    assert (found.state, str(new) in found.found) == ("ok", True)
    failed = check_java({"JAVA_HOME": str(old), "PATH": ""}, tmp_path / "none")
    assert (failed.state, "Java 8" in failed.found, "openjdk" in failed.fix) == ("fail", True, True)


def test_no_java_at_all_fails(tmp_path: Path) -> None:
    assert check_java({"PATH": ""}, tmp_path).state == "fail"


def test_packages_out_of_range_and_missing_ones_are_named() -> None:
    versions = {"rich": "15.0.0", "duckdb": "1.4.2"}
    found = check_packages(["rich>=13", "duckdb>=2.0,<3", "absent>=1"], versions.get)
    assert found.state == "fail"
    assert "duckdb is 1.4.2, not >=2.0,<3" in found.found
    assert "absent is not installed" in found.found
    assert "rich" not in found.found
    assert check_packages(["rich>=13"], versions.get).state == "ok"


def test_the_packages_of_this_checkout_fit() -> None:
    needed = requirements_of_package(ROOT / "pyproject.toml")
    assert any(entry.startswith("pyspark") for entry in needed)
    assert check_packages(needed, installed_version).state == "ok"


def test_without_a_list_of_packages_there_is_a_warning() -> None:
    assert check_packages([], installed_version).state == "warn"


@pytest.mark.parametrize(
    ("version", "ranges", "fits"),
    [
        ("1.6.6", ">=1.6.6,<2", True),
        ("2.0.0", ">=1.6.6,<2", False),
        ("2", "==2.0.0", True),
        ("4.2.1", "==4.2.0", False),
        ("4.2.1", "==4.2.*", True),
        ("1.10", ">=1.9", True),
        ("1.4.9", "~=1.4.2", True),
        ("1.5.0", "~=1.4.2", False),
        ("3.0rc1", "!=3.1", True),
        ("7.2.2", "", True),
    ],
)
def test_ranges_are_read_as_pip_reads_them(version: str, ranges: str, fits: bool) -> None:
    assert in_ranges(version, ranges) is fits


@pytest.fixture
def spark_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "pyspark" / "jars"
    folder.mkdir(parents=True)
    (folder / "spark-core_2.13-4.2.0.jar").touch()
    return folder


def test_a_spark_that_the_jars_are_not_made_for_fails(spark_folder: Path) -> None:
    assert check_spark("4.2.0", spark_folder, {}).state == "ok"
    other = check_spark("4.1.0", spark_folder, {})
    assert (other.state, "Spark 4.2" in other.found) == ("fail", True)
    assert check_spark(None, None, {}).state == "fail"


def test_a_spark_without_its_own_jars_fails(tmp_path: Path) -> None:
    assert check_spark("4.2.0", tmp_path, {}).state == "fail"


def test_another_spark_in_the_environment_is_a_warning(spark_folder: Path, tmp_path: Path) -> None:
    assert check_spark("4.2.0", spark_folder, {"SPARK_HOME": str(tmp_path)}).state == "warn"
    assert check_spark("4.2.0", spark_folder, {"SPARK_HOME": str(spark_folder.parent)}).state == "ok"


def copied_jars(cache: Path) -> Path:
    """Make a cache with copies of this machine's jars, and return the smallest."""
    folder = cache / f"{DELTA.artifact}-{DELTA.version}"
    folder.mkdir(parents=True)
    copies = [Path(shutil.copy(jar, folder)) for jar in delta_jars()]
    return min(copies, key=lambda jar: jar.stat().st_size)


def test_jars_are_checked_to_the_last_byte_and_nothing_is_fetched(tmp_path: Path) -> None:
    jar = copied_jars(tmp_path)
    assert check_jars({}, tmp_path).state == "ok"
    whole = jar.read_bytes()
    jar.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    flipped = check_jars({}, tmp_path)
    assert (flipped.state, f"{jar.name} is not the file whose hash" in flipped.found) == ("fail", True)
    jar.write_bytes(whole[:-1])
    assert check_jars({}, tmp_path).state == "fail"
    jar.unlink()
    missing = check_jars({}, tmp_path)
    assert (missing.state, "tidegate.pipeline.jars" in missing.fix) == ("fail", True)


def test_a_named_folder_without_the_jars_fails(tmp_path: Path) -> None:
    found = check_jars({"TIDEGATE_JARS_DIR": str(tmp_path)})
    assert (found.state, "TIDEGATE_JARS_DIR" in found.found) == ("fail", True)


def test_a_python_that_spark_would_not_find_is_a_warning() -> None:
    assert check_python_of_spark({}, sys.executable).state == "ok"
    assert check_python_of_spark({"PYSPARK_PYTHON": sys.executable}, sys.executable).state == "ok"
    gone = check_python_of_spark({"PYSPARK_PYTHON": "/nowhere/python"}, sys.executable)
    assert (gone.state, gone.fix) == ("warn", "unset PYSPARK_PYTHON")
    other = check_python_of_spark({"PYSPARK_DRIVER_PYTHON": "/bin/sh"}, sys.executable)
    assert other.state == "warn"
