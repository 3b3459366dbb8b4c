"""The bill of materials is valid CycloneDX, complete, and the same each time."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import cyclonedx.schema
import jsonschema_rs
import pytest

from tests.paths import ROOT
from tests.test_setup import normal, pins
from tidegate.pipeline.jars import DELTA_JARS

SCHEMAS = ["bom-1.6", "spdx", "jsf-0.82", "cryptography-defs"]


def write_bill(file: Path) -> str:
    subprocess.run([sys.executable, ROOT / "scripts" / "sbom.py", file], check=True, cwd=ROOT)
    return file.read_text(encoding="utf-8")


def validator() -> jsonschema_rs.Validator:
    """Return CycloneDX's own schema of version 1.6, which names two others."""
    folder = Path(cyclonedx.schema.__file__).parent / "_res"
    schemas = {name: json.loads((folder / f"{name}.SNAPSHOT.schema.json").read_text()) for name in SCHEMAS}
    named = [(f"http://cyclonedx.org/schema/{name}.SNAPSHOT.schema.json", schemas[name]) for name in SCHEMAS]
    return jsonschema_rs.validator_for(schemas["bom-1.6"], registry=jsonschema_rs.Registry(named))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_bill(tmp_path_factory.mktemp("sbom") / "new folder" / "a.json")


def test_it_is_valid_and_the_same_each_time(text: str, tmp_path: Path) -> None:
    bill = json.loads(text)
    assert [str(error) for error in validator().iter_errors(bill)] == []
    bill["components"][0]["type"] = "none of them"
    assert not validator().is_valid(bill)
    assert write_bill(tmp_path / "b.json") == text


def test_it_has_what_runs_and_the_jars_with_their_hashes(text: str) -> None:
    bill: dict[str, Any] = json.loads(text)
    packages = [part for part in bill["components"] if part["purl"].startswith("pkg:pypi/")]
    versions = {part["name"]: part["version"] for part in packages}
    installed = {normal(found.metadata["Name"]) for found in metadata.distributions()}
    assert versions == {name: pin for name, pin in pins("constraints.txt").items() if name in installed}
    jars = [part for part in bill["components"] if part["purl"].startswith("pkg:maven/")]
    assert "pkg:maven/io.delta/delta-storage@4.4.0" in {part["purl"] for part in jars}
    hashes = {part["hashes"][0]["content"] for part in jars}
    assert hashes == {jar.sha256 for jar in DELTA_JARS}


def test_every_component_has_a_licence_and_is_needed_by_something(text: str) -> None:
    bill: dict[str, Any] = json.loads(text)
    assert [part["name"] for part in bill["components"] if not part.get("licenses")] == []
    needed = {name for entry in bill["dependencies"] for name in entry.get("dependsOn", [])}
    assert {part["bom-ref"] for part in bill["components"]} - needed == set()
