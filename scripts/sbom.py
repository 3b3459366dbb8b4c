"""A bill of materials: what the package is made of, as a CycloneDX file.

    python scripts/sbom.py [FILE]                   FILE is build/sbom.cdx.json unless named

Listed are the packages of `constraints.txt` that are installed here, with version, licence and what each
depends on, and the jars of Spark's Delta connector with the hashes that Tidegate checks. The jars and Java
that pyspark brings or needs are part of pyspark; extras are left out. On one platform the same checkout gives
the same bytes.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from importlib import metadata
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement

from tidegate.pipeline.jars import DELTA, DELTA_JARS, JarHash

ROOT = Path(__file__).resolve().parents[1]
LICENCE_CHARS_MAX = 100  # some packages put the whole text into that field
# The Maven group of a jar by the beginning of its name; all of them are under the same licence.
JAR_GROUPS = {
    "delta-": "io.delta",
    "jackson-datatype-": "com.fasterxml.jackson.datatype",
    "unitycatalog-": "io.unitycatalog",
}
JAR_LICENCE = "Apache-2.0"


def normal(name: str) -> str:
    """Return the one spelling of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned_names() -> list[str]:
    """Return the names of the packages that the program needs to run."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    return [normal(name) for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)]


def installed() -> dict[str, metadata.Distribution]:
    """Return those of the pinned packages that this platform has."""
    everything = {normal(found.metadata["Name"]): found for found in metadata.distributions()}
    return {name: everything[name] for name in pinned_names() if name in everything}


def package_component(name: str, found: metadata.Distribution) -> Component:
    """Describe one Python package."""
    named = found.metadata.get_all("License-Expression") or found.metadata.get_all("License") or [""]
    text: str = named[0]
    classifiers = [
        line for line in found.metadata.get_all("Classifier") or [] if line.startswith("License ::")
    ]
    if not text or len(text) > LICENCE_CHARS_MAX or "\n" in text:
        text = classifiers[0].rpartition(" :: ")[2] if classifiers else ""
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=found.version,
        purl=PackageURL("pypi", None, name, found.version),
        bom_ref=f"pypi/{name}",
        licenses=[LicenseFactory().make_from_string(text)] if text else [],
    )


def jar_components() -> list[Component]:
    """Describe the jars that are fetched for Spark; SystemExit names one that does not belong to a group."""
    return [_jar_component(jar) for jar in DELTA_JARS]


def _jar_component(jar: JarHash) -> Component:
    match = re.fullmatch(r"(.+)-(\d[^/]*)\.jar", jar.name)
    groups = [group for start, group in JAR_GROUPS.items() if jar.name.startswith(start)]
    if match is None or not groups:
        raise SystemExit(f"{jar.name} has no group in JAR_GROUPS of scripts/sbom.py: add it there.")
    name, version = match[1], match[2]
    return Component(
        type=ComponentType.LIBRARY,
        group=groups[0],
        name=name,
        version=version,
        purl=PackageURL("maven", groups[0], name, version),
        bom_ref=f"jar/{name}",
        description=f"fetched with {DELTA}",
        licenses=[LicenseFactory().make_from_string(JAR_LICENCE)],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=jar.sha256)],
    )


def requirements_of(found: metadata.Distribution, extras: set[str]) -> list[Requirement]:
    """Return what a package needs on this platform, with these of its extras."""
    needed = [Requirement(line) for line in found.requires or []]
    return [
        one
        for one in needed
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in {"", *extras})
    ]


def graph_of(root: metadata.Distribution, packages: dict[str, metadata.Distribution]) -> dict[str, set[str]]:
    """Return the names of what each package needs, from the root down."""
    graph: dict[str, set[str]] = {}
    extras: dict[str, set[str]] = {}
    waiting = [("tidegate", root)]
    while waiting:
        name, found = waiting.pop()
        graph[name] = set()
        for needed in requirements_of(found, extras.get(name, set())):
            other = normal(needed.name)
            graph[name].add(other)
            more = needed.extras - extras.setdefault(other, set())
            extras[other] |= more
            if other not in packages:
                raise SystemExit(f"{name} needs {other}, which is not in constraints.txt: scripts/pin.sh")
            if other not in graph or more:
                waiting.append((other, packages[other]))
    return graph


def bill_of_materials() -> Bom:
    """Return the bill of this checkout, with its graph of dependencies."""
    packages = installed()
    known = {name: package_component(name, found) for name, found in packages.items()}
    root = package_component("tidegate", metadata.distribution("tidegate"))
    jars = jar_components()
    bom = Bom(components=[*known.values(), *jars])
    bom.metadata.component = root
    for name, needed in graph_of(metadata.distribution("tidegate"), packages).items():
        parts = [known[other] for other in sorted(needed)]
        bom.register_dependency(known.get(name, root), parts if name in known else [*parts, *jars])
    content = "\n".join(sorted(f"{part.name}=={part.version}" for part in bom.components))
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, f"tidegate=={root.version}\n{content}")
    return bom


def main(arguments: list[str]) -> int:
    """Write the bill of materials."""
    file = Path(arguments[0]) if arguments else ROOT / "build" / "sbom.cdx.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    bom = bill_of_materials()
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    del document["metadata"]["timestamp"]
    file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{file}: {len(bom.components)} components")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
