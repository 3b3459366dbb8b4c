"""The peers that have a Python of their own: PyFlink and Bytewax, each run as a child on the same keys.

Both pin packages that do not go with ours, so each is looked for in this Python and then in the one that an
environment variable names:

    python -m venv FOLDER && FOLDER/bin/pip install apache-flink      TIDEGATE_BENCH_FLINK=FOLDER/bin/python
    python -m venv FOLDER && FOLDER/bin/pip install bytewax           TIDEGATE_BENCH_BYTEWAX=FOLDER/bin/python
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.state.stream import Sizes, counted, drawn

HERE = Path(__file__).resolve().parent
CHILD_SECONDS_MAX = 1_800.0
NO_FLINK = "not installed (pip install apache-flink elsewhere, and name its Python in TIDEGATE_BENCH_FLINK)"
NO_BYTEWAX = "not installed (pip install bytewax elsewhere, and name its Python in TIDEGATE_BENCH_BYTEWAX)"


def flink_rate(sizes: Sizes) -> float | str:
    """Return PyFlink's rows a second, the start of the job taken off; or say why it was not asked."""
    python = _python_with("pyflink", "TIDEGATE_BENCH_FLINK")
    if python is None:
        return NO_FLINK
    rows = sizes.flink_rows
    few = _flink_seconds(python, drawn(sizes.keys, 100, 0))
    return rows / max(_flink_seconds(python, drawn(sizes.keys, rows, 0)) - few, 1e-3)


def bytewax_rate(sizes: Sizes) -> float | str:
    """Return the rows a second of Bytewax; or say why it was not asked."""
    python = _python_with("bytewax", "TIDEGATE_BENCH_BYTEWAX")
    if python is None:
        return NO_BYTEWAX
    batches = sizes.warm_batches + sizes.batches
    keys = np.concatenate([drawn(sizes.keys, sizes.batch_rows, seed) for seed in range(batches)])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys"
        path.write_bytes(keys.astype("<i8").tobytes())
        seconds = _child(python, "bytewax_count.py", str(path), str(sizes.batch_rows))
    return sizes.batch_rows / counted(seconds, sizes.warm_batches)


def _flink_seconds(python: str, keys: np.ndarray[Any, Any]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys.csv"
        path.write_text("\n".join(map(str, keys)) + "\n")
        return float(_child(python, "flink_count.py", str(path), folder))


def _python_with(package: str, variable: str) -> str | None:
    for python in (os.environ.get(variable), sys.executable):
        if python and _runs(python, "-c", f"import {package}"):
            return python
    return None


def _runs(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _child(python: str, script: str, *arguments: str) -> Any:
    # What Spark put into the environment would lead the child to our packages.
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "PYTHONPATH"))
    }
    command = [python, str(HERE / script), *arguments]
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, env=kept, timeout=CHILD_SECONDS_MAX
    )
    if ran.returncode != 0:
        raise RuntimeError(f"{script} ended with {ran.returncode}: {ran.stderr[-2000:]}")
    # Flink says a few words of its own before.
    return json.loads(ran.stdout.splitlines()[-1])
