"""Jars and Java: found or fetched once, whole or not there, and clear about what is missing."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tidegate.errors import JarsMissing, JavaMissing
from tidegate.pipeline import jars
from tidegate.pipeline import jars as ivy
from tidegate.pipeline.jars import DELTA, DELTA_JARS, JarHash, delta_jars
from tidegate.pipeline.java import JavaHome, find_java, parse_settings

FOLDER = f"{DELTA.artifact}-{DELTA.version}"
OFFLINE = {"https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}


def jar_hash(name: str) -> JarHash:
    """Describe a jar that holds its own name."""
    return JarHash(name, len(name), hashlib.sha256(name.encode()).hexdigest())


A_AND_B = [jar_hash("a.jar"), jar_hash("b.jar")]


def make_cache(root: Path, names: Sequence[str] = ("a.jar", "b.jar")) -> Path:
    """Make a cache as a fetch leaves it, with jars that hold their own name."""
    folder = root / FOLDER
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_bytes(name.encode())
    return folder


@pytest.fixture
def offline() -> dict[str, str]:
    """Return the environment of a machine whose network answers nothing."""
    return {**{k: v for k, v in os.environ.items() if k != "TIDEGATE_JARS_DIR"}, **OFFLINE}


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ivy, "ATTEMPT_PAUSE_SECONDS", 0.0)


def test_a_whole_cache_needs_no_network_and_no_java(tmp_path: Path) -> None:
    folder = make_cache(tmp_path)
    found = delta_jars(tmp_path, environ={"PATH": ""}, expected=A_AND_B)
    assert found == [folder / "a.jar", folder / "b.jar"]


@pytest.mark.parametrize("damage", ["missing", "shorter"])
def test_a_damaged_cache_is_not_used(tmp_path: Path, offline: dict[str, str], damage: str) -> None:
    folder = make_cache(tmp_path)
    if damage == "missing":
        (folder / "b.jar").unlink()
    else:
        (folder / "b.jar").write_bytes(b"")
    with pytest.raises(JarsMissing, match=r"b\.jar is not .* nothing was to be fetched"):
        delta_jars(tmp_path, environ=offline, fetch=False, expected=A_AND_B)


def test_a_flipped_byte_is_found_when_hashes_are_checked(tmp_path: Path, offline: dict[str, str]) -> None:
    folder = make_cache(tmp_path)
    (folder / "a.jar").write_bytes(b"A.jar")
    assert delta_jars(tmp_path, environ=offline, expected=A_AND_B) == [folder / "a.jar", folder / "b.jar"]
    with pytest.raises(JarsMissing, match=r"a\.jar is not the file whose hash Tidegate knows"):
        delta_jars(tmp_path, environ=offline, check_hashes=True, fetch=False, expected=A_AND_B)


def test_a_jar_that_the_repository_changed_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(artifact: object, scratch: Path, target: Path, environ: object) -> None:
        target.mkdir()
        for name, content in {"a.jar": b"a.jar", "b.jar": b"B.jar", f"{FOLDER}.jar": b""}.items():
            (target / name).write_bytes(content)

    monkeypatch.setattr(ivy, "retrieve", send)
    with pytest.raises(JarsMissing, match=r"b\.jar .* in what the repository sent"):
        delta_jars(tmp_path, environ={}, expected=A_AND_B)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    assert delta_jars(tmp_path, environ={}, expected=A_AND_B[:1]) == [tmp_path / FOLDER / "a.jar"]


def test_the_jars_of_this_machine_are_those_of_the_table() -> None:
    assert [jar.name for jar in delta_jars(check_hashes=True, fetch=False)] == [
        jar.name for jar in DELTA_JARS
    ]


def test_offline_says_why_and_what_to_do_and_leaves_nothing_half_made(
    tmp_path: Path, offline: dict[str, str]
) -> None:
    with pytest.raises(JarsMissing) as caught:
        delta_jars(tmp_path, environ=offline)
    assert "TIDEGATE_JARS_DIR" in caught.value.hint
    assert "refused" in str(caught.value).lower()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "ivy.log"]


def test_a_failed_fetch_keeps_a_damaged_folder_as_it_was(tmp_path: Path, offline: dict[str, str]) -> None:
    folder = make_cache(tmp_path)
    (folder / "a.jar").unlink()
    with pytest.raises(JarsMissing):
        delta_jars(tmp_path, environ=offline, expected=A_AND_B)
    assert (folder / "b.jar").read_bytes() == b"b.jar"


def test_what_a_killed_fetch_left_is_removed(tmp_path: Path, offline: dict[str, str]) -> None:
    (tmp_path / ".making-abc" / "ivy").mkdir(parents=True)
    with pytest.raises(JarsMissing):
        delta_jars(tmp_path, environ=offline)
    assert not (tmp_path / ".making-abc").exists()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, offline: dict[str, str]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JarsMissing, match="cannot be written") as caught:
        delta_jars(tmp_path / "file" / "cache", environ=offline)
    assert "XDG_CACHE_HOME" in caught.value.hint


def test_no_java_is_said_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_java(environ: object) -> JavaHome:
        return find_java({"PATH": ""}, tmp_path)

    monkeypatch.setattr(ivy, "find_java", no_java)
    with pytest.raises(JavaMissing):
        delta_jars(tmp_path, environ={"PATH": ""})


def test_a_named_folder_is_used_as_it_is(tmp_path: Path) -> None:
    jar = tmp_path / f"{DELTA.artifact}-9.jar"
    jar.write_bytes(b"")
    assert delta_jars(environ={"TIDEGATE_JARS_DIR": str(tmp_path)}) == [jar]


def test_a_named_folder_with_another_jar_under_a_known_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / DELTA_JARS[3].name).write_bytes(b"another")
    environ = {"TIDEGATE_JARS_DIR": str(tmp_path)}
    assert DELTA_JARS[3].name.startswith(DELTA.artifact)
    assert len(delta_jars(environ=environ)) == 1
    with pytest.raises(JarsMissing, match="which TIDEGATE_JARS_DIR names"):
        delta_jars(environ=environ, check_hashes=True)


def test_a_named_folder_without_delta_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JarsMissing, match="TIDEGATE_JARS_DIR names"):
        delta_jars(environ={"TIDEGATE_JARS_DIR": str(tmp_path)})


def test_the_cache_lies_where_the_desktop_rules_say() -> None:
    assert jars.cache_folder({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == Path("/c/tidegate/jars")
    assert jars.cache_folder({"XDG_CACHE_HOME": "c", "HOME": "/h"}) == Path("/h/.cache/tidegate/jars")
    assert jars.cache_folder({"HOME": "/h"}) == Path("/h/.cache/tidegate/jars")


def test_what_spark_ships_is_left_out_by_artifact_name(tmp_path: Path) -> None:
    for name in ["commons-io-2.22.0.jar", "scala-parser_2.13-2.4.0.jar", "ivy-2.5.3.jar", "notes.txt"]:
        (tmp_path / name).touch()
    assert ivy.shipped_artifacts(tmp_path) == ["commons-io", "ivy", "scala-parser_2.13"]
    assert '<exclude module="ivy"/>' in ivy.write_request(DELTA, ["ivy"])


def test_no_jar_of_ours_doubles_one_of_sparks() -> None:
    shipped = set(ivy.shipped_artifacts(ivy.spark_jars_folder()))
    ours = set(ivy.shipped_artifacts(delta_jars()[0].parent))
    assert DELTA.artifact in ours
    assert ours & shipped == set()


def test_proxies_of_the_environment_reach_java() -> None:
    options = list(ivy.proxy_options({"HTTPS_PROXY": "http://proxy.example:8080", "http_proxy": "other"}))
    assert options == [
        "-Dhttps.proxyHost=proxy.example",
        "-Dhttps.proxyPort=8080",
        "-Dhttp.proxyHost=other",
        "-Dhttp.proxyPort=3128",
    ]
    assert list(ivy.proxy_options({})) == []


def test_the_reason_is_the_line_that_says_most() -> None:
    log = ":: problems\n  module not found: x\n  Server access error (java.net.ConnectException: refused)\n"
    assert ivy.why_failed(log) == "Server access error (java.net.ConnectException: refused)"
    assert ivy.why_failed("a\nb\n\n") == "b"
    assert ivy.why_failed("") == "Ivy failed without a word"


@pytest.mark.parametrize(
    ("text", "version"),
    [("17.0.15", 17), ("1.8.0_292", 8), ("25-ea", 25), ("21", 21), ("9.0.4", 9)],
)
def test_every_way_to_write_a_version_is_read(text: str, version: int) -> None:
    said = f"Properties:\n    java.home = /opt/some java\n    java.version = {text}\n    java.vendor = x\n"
    assert parse_settings(said) == JavaHome(Path("/opt/some java"), version)


def test_java_is_found_here() -> None:
    java = find_java()
    assert java.version >= 17
    assert java.executable.exists()


def fake_java(home: Path, version: str) -> Path:
    """Make a Java that does nothing but tell its version."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(
        f'#!/bin/sh\necho "    java.home = {home}" >&2\necho "    java.version = {version}" >&2\n'
    )
    java.chmod(0o755)
    return home


def test_java_home_comes_first_and_the_oldest_good_one_of_the_installed_last(tmp_path: Path) -> None:
    installed = tmp_path / "jvm"
    for version in ("25", "21.0.2", "1.8.0", "11.0.1"):
        fake_java(installed / f"java-{version}", version)
    named = fake_java(tmp_path / "named", "22")
    assert find_java({"JAVA_HOME": str(named), "PATH": ""}, installed).version == 22
    on_path = fake_java(tmp_path / "on_path", "23")
    assert find_java({"JAVA_HOME": "/nowhere", "PATH": str(on_path / "bin")}, installed).version == 23
    assert find_java({"PATH": ""}, installed).version == 21


def test_missing_java_says_what_was_looked_at(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.1")
    with pytest.raises(JavaMissing) as caught:
        find_java({"JAVA_HOME": "/nowhere", "PATH": str(old / "bin")}, tmp_path / "none")
    assert "JAVA_HOME (/nowhere) has no bin/java" in str(caught.value)
    assert "is Java 11" in str(caught.value)
    assert "apt-get install" in caught.value.hint


def test_the_module_prints_one_line(tmp_path: Path) -> None:
    root = tmp_path / "tidegate" / "jars"
    folder = make_cache(root, [])
    for jar in delta_jars():
        (folder / jar.name).symlink_to(jar)
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environ.pop("TIDEGATE_JARS_DIR", None)
    command = [sys.executable, "-m", "tidegate.pipeline.jars", "--check"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    assert said.stdout == f"{len(DELTA_JARS)} jars of {DELTA} in {root / FOLDER}\n"
    (folder / DELTA_JARS[0].name).unlink()
    failed = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert failed.returncode == 1
    assert "could not be fetched" in failed.stderr


@pytest.mark.spark
def test_spark_writes_and_reads_delta_with_them(spark: Any, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    spark.range(10).write.format("delta").save(table)
    spark.range(5).write.format("delta").mode("append").save(table)
    assert spark.read.format("delta").load(table).count() == 15
