"""A wheel of the checkout, and the try of it in an empty environment.

    python scripts/wheel.py [--try] [FOLDER]        FOLDER is build/dist unless named

With `--try` the wheel is installed into an environment that has nothing else, its dependencies from
`constraints.txt` with every hash checked, and `tidegate up --demo` runs from there, in a folder that knows
nothing of the checkout, until readings are in the lake.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEMO_SECONDS_MAX = 600.0
STOP_SECONDS_MAX = 120.0
PAUSE_SECONDS = 2.0
QUERY = "SELECT count(*) AS n FROM lake.readings"


def build_wheel(target: Path) -> Path:
    """Build the wheel from a copy of what it is made of, so that nothing old in the checkout gets into it."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, "checkout")
        for name in source_files():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
        made = Path(scratch, "made")
        options = ["--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check"]
        _run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(made), str(copy))
        (wheel,) = made.glob("tidegate-*.whl")
        return Path(shutil.copy(wheel, target))


def source_files() -> list[str]:
    """Return the paths of what a wheel is made of: what git tracks or would track, and nothing ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"]
    command += ["src", "pyproject.toml", "README.md", "LICENSE"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted({name for name in listed.split("\0") if name and (ROOT / name).exists()})


def install(wheel: Path, environment: Path) -> Path:
    """Install the wheel and what it needs into a new environment, and return its `tidegate`."""
    _run(sys.executable, "-m", "venv", "--clear", str(environment))
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    pip.append("--disable-pip-version-check")
    _run(*pip, "--require-hashes", "-r", str(ROOT / "constraints.txt"))
    _run(*pip, "--no-deps", str(wheel))
    _run(str(environment / "bin" / "python"), "-m", "pip", "check")
    return environment / "bin" / "tidegate"


def plain_environ() -> dict[str, str]:
    """Return the environment without what leads to another installation, and without settings of Tidegate."""
    others = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "SPARK_HOME", "PYSPARK_", "TIDEGATE_")
    return {name: text for name, text in os.environ.items() if not name.startswith(others)}


def run_demo(tidegate: Path, folder: Path, seconds_max: float = DEMO_SECONDS_MAX) -> int:
    """Run `tidegate up --demo` in an empty folder until readings are in the lake; return how many.

    One interrupt ends it; an exit code other than 0 raises, as does a demo without readings.
    """
    environ = plain_environ()
    environ |= {"TIDEGATE_HOME": str(folder / "home"), "PATH": f"{tidegate.parent}:{environ['PATH']}"}
    with (folder / "up.log").open("w+", encoding="utf-8") as log:
        command = [str(tidegate), "up", "--demo", "--port", "0"]
        up = subprocess.Popen(command, cwd=folder, env=environ, stdout=log, stderr=log)
        count, code = 0, None
        try:
            count = _wait_for_readings(tidegate, folder, environ, up, seconds_max)
            up.send_signal(signal.SIGINT)
            code = up.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired as late:
            log.write(f"{late}\n")
        finally:
            if up.poll() is None:
                up.kill()
        log.seek(0)
        if code != 0 or not count:
            raise SystemExit(f"'tidegate up --demo' ended with {code} and {count} readings:\n{log.read()}")
        return count


def _wait_for_readings(
    tidegate: Path, folder: Path, environ: dict[str, str], up: subprocess.Popen[bytes], seconds_max: float
) -> int:
    deadline = time.monotonic() + seconds_max
    while up.poll() is None and time.monotonic() < deadline:
        command = [str(tidegate), "sql", "--json", QUERY]
        left = max(deadline - time.monotonic(), PAUSE_SECONDS)
        answer = subprocess.run(
            command, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=left
        )
        if answer.returncode == 0 and (count := int(json.loads(answer.stdout)["rows"][0][0])) > 0:
            return count
        time.sleep(PAUSE_SECONDS)
    return 0


def _run(*command: str) -> None:
    subprocess.run(command, check=True, env=plain_environ())


def main(arguments: list[str]) -> int:
    """Build the wheel, and with `--try` run the demo from it."""
    folders = [argument for argument in arguments if not argument.startswith("-")]
    wheel = build_wheel(Path(folders[0]) if folders else ROOT / "build" / "dist")
    print(f"{wheel}: {wheel.stat().st_size} bytes", flush=True)
    if "--try" in arguments:
        with tempfile.TemporaryDirectory() as scratch:
            tidegate = install(wheel, Path(scratch, "environment"))
            elsewhere = Path(scratch, "elsewhere")
            elsewhere.mkdir()
            count = run_demo(tidegate, elsewhere)
            print(f"tidegate up --demo ran from it in an empty environment: {count} readings in the lake")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
