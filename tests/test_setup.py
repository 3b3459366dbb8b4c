"""Set-up: repeatable, quick the second time, and clear about which step failed, why, and what to do."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from tests.paths import ROOT

TARGETS = ["setup", "run", "test", "bench", "crash", "soak", "lint", "check", "wheel", "sbom", "shake"]
PINNED = ["constraints.txt", "constraints-test.txt"]
NO_NETWORK = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "https_proxy": "http://127.0.0.1:9"}
SECONDS_MAX = 300.0
FIRST_STEP = "[1/4] Python environment …"


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(*files: str) -> dict[str, str]:
    """Read constraints files: the one version of every package."""
    text = "".join((ROOT / file).read_text() for file in files or PINNED)
    return {
        normal(name): version for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE)
    }


def copy_checkout(target: Path) -> Path:
    """Make a checkout with nothing set up in it."""
    target.mkdir()
    for name in ("Makefile", *PINNED, "pyproject.toml"):
        shutil.copy(ROOT / name, target / name)
    shutil.copytree(ROOT / "scripts", target / "scripts")
    return target


def set_up(checkout: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", "scripts/setup.sh"],
        cwd=checkout,
        env={**os.environ, "TMPDIR": str(checkout), **environ},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def tools_without_python(folder: Path, version: str) -> Path:
    """Make a PATH of the tools that the script needs and a python3 that is too old."""
    folder.mkdir()
    for name in ("bash", "mktemp", "rm", "cat", "sed", "grep", "tail", "sleep", "dirname", "id", "sha256sum"):
        found = shutil.which(name)
        assert found, f"this machine has no {name}"
        (folder / name).symlink_to(found)
    python = folder / "python3"
    python.write_text(
        f'#!/bin/bash\nif [ "$1" = --version ]; then echo "Python {version}"; else exit 1; fi\n'
    )
    python.chmod(0o755)
    return folder


def test_an_old_python_is_named_with_what_to_do(tmp_path: Path) -> None:
    checkout = copy_checkout(tmp_path / "checkout")
    answer = set_up(checkout, PATH=str(tools_without_python(tmp_path / "bin", "3.9.2")))
    assert answer.returncode != 0
    assert "[1/4] Python environment … FAILED" in answer.stdout
    assert "Set-up stopped at: Python environment" in answer.stderr
    assert "python3 is: Python 3.9.2" in answer.stderr
    assert "What to do: apt-get install python3 python3-venv" in answer.stderr
    assert not (checkout / ".venv").exists()


def test_a_failed_install_says_why_keeps_its_log_and_is_tried_again(tmp_path: Path) -> None:
    checkout = copy_checkout(tmp_path / "checkout")
    for _ in range(2):
        answer = set_up(checkout, **NO_NETWORK)
        assert answer.returncode != 0
        assert "[1/4] Python environment … done" in answer.stdout
        assert "[2/4] Python packages … FAILED" in answer.stdout
        assert "ERROR: " in answer.stderr
        assert "What to do: Check the connection" in answer.stderr
        log = re.search(r"Full log: (.+)", answer.stderr)
        assert log
        assert "ERROR: " in Path(log[1]).read_text()
    assert not (checkout / ".venv" / "setup.stamp").exists()


def test_an_interrupt_stops_the_step_and_says_that_it_can_go_on(tmp_path: Path) -> None:
    checkout = copy_checkout(tmp_path / "checkout")
    running = subprocess.Popen(
        ["/bin/bash", "scripts/setup.sh"],
        cwd=checkout,
        env={**os.environ, "TMPDIR": str(checkout)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    assert running.stdout.read(len(FIRST_STEP)) == FIRST_STEP
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=SECONDS_MAX)
    assert running.returncode == 130
    assert "run it again" in said


@pytest.mark.skipif(
    not (ROOT / ".venv" / "setup.stamp").exists(), reason="'make setup' has not run in this checkout"
)
def test_a_second_set_up_does_nothing_and_needs_no_network() -> None:
    answer = set_up(ROOT, TMPDIR="/tmp", **NO_NETWORK)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "Set-up: all there.\n"


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_is_there_and_sets_up_first(target: str) -> None:
    plan = subprocess.run(
        ["make", "--no-print-directory", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert plan.stdout.splitlines()[0] == "scripts/setup.sh"


def test_run_becomes_tidegate_with_a_home_in_the_checkout() -> None:
    plan = subprocess.run(
        ["make", "--no-print-directory", "-n", "run"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    last = plan.stdout.splitlines()[-1]
    assert last == f'TIDEGATE_HOME="${{TIDEGATE_HOME:-{ROOT}/.home}}" exec .venv/bin/tidegate up --demo'


def test_ctrl_c_reaches_tidegate_once_and_make_waits_for_it(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    slow_to_stop = "#!/bin/bash\ntrap 'echo asked >>said' INT\necho up >>said\n"
    slow_to_stop += "until grep -q asked said; do sleep 0.1; done\nsleep 0.5\necho stopped >>said\n"
    for name, text in {"scripts/setup.sh": "#!/bin/bash\n", ".venv/bin/tidegate": slow_to_stop}.items():
        script = tmp_path / name
        script.parent.mkdir(parents=True)
        script.write_text(text)
        script.chmod(0o755)
    said = tmp_path / "said"
    running = subprocess.Popen(["make", "--no-print-directory", "run"], cwd=tmp_path, start_new_session=True)
    deadline = time.monotonic() + SECONDS_MAX
    while not said.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does
    running.wait(SECONDS_MAX)
    assert said.read_text().split() == ["up", "asked", "stopped"]


def test_ci_runs_make_test_and_nothing_else() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines == ["#!/usr/bin/env bash", "set -e", 'cd "$(dirname "$0")/.."', "make test"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize("file", PINNED)
def test_every_package_is_pinned_to_one_version_with_hashes(file: str) -> None:
    entries = re.split(r"^(?=\S)", (ROOT / file).read_text(), flags=re.MULTILINE)[1:]
    assert len(entries) > 40
    for entry in entries:
        head, *hashes = entry.removesuffix("\n").split(" \\\n")
        assert re.fullmatch(r"[a-z0-9-]+==[0-9][a-z0-9.+!]*( ; .+)?", head), head
        assert hashes, head
        assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}", line) for line in hashes), head


def test_what_runs_is_pinned_apart_from_what_only_tests() -> None:
    run, test = (set(pins(file)) for file in PINNED)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {
        kind: {normal(re.split(r"[<>=!~\[ ;]", text)[0]) for text in texts}
        for kind, texts in {"run": project["dependencies"], **project["optional-dependencies"]}.items()
    }
    assert named["run"] - run == set()
    assert named["dev"] - test - run == set()
    assert run & test == set()


def test_what_is_installed_is_what_is_pinned() -> None:
    installed = {normal(found.metadata["Name"]): found.version for found in metadata.distributions()}
    differing = {
        name: (installed[name], pinned)
        for name, pinned in pins().items()
        if installed.get(name, pinned) != pinned
    }
    assert differing == {}, f"installed and pinned differ in {sys.prefix}; run 'make setup'"
