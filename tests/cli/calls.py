"""The command line, called as a user calls it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CALL_SECONDS_MAX = 60.0


def tidegate(*words: str, home: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("TIDEGATE_")}
    return subprocess.run(
        [sys.executable, "-m", "tidegate", *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=CALL_SECONDS_MAX,
        env={**clean, "TIDEGATE_HOME": str(home)},
        check=False,
    )
