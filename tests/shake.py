"""All tests as another machine may run them: files in an order of chance, busy processors, more examples.

    python -m tests.shake --seed 7 --busy 2 --examples 10 tests/server

A test that passes alone may fail behind another file in the same process, on a machine that stalls, or with
an example that has not come yet. Each run prints its seed, which gives the same order of files again.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack

import pytest
from hypothesis import settings

# Not with our own prefix: a command refuses settings that it does not know.
SEED, TIMES = "TEST_SHAKE_SEED", "TEST_SHAKE_EXAMPLES"
EXAMPLES_MAX = 3_000
_BUSY = (sys.executable, "-c", "while True: pass")


def shake(items: list[pytest.Item], environ: Mapping[str, str]) -> None:
    """Put the files of tests into the order of a seed and let properties have more examples, where asked."""
    if SEED in environ:
        files = sorted({_file(item) for item in items})
        random.Random(int(environ[SEED])).shuffle(files)
        places = {file: place for place, file in enumerate(files)}
        items.sort(key=lambda item: places[_file(item)])
    if TIMES in environ:
        for item in items:
            _give_examples(item, int(environ[TIMES]))


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _give_examples(item: pytest.Item, times: int) -> None:
    test = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)
    if getattr(test, "is_hypothesis_test", False):
        # Where Hypothesis keeps what its decorator was given.
        own: settings = getattr(test, "_hypothesis_internal_use_settings", None) or settings()
        more = settings(own, max_examples=min(own.max_examples * times, EXAMPLES_MAX))
        vars(test)["_hypothesis_internal_use_settings"] = more


def main() -> int:
    """Run tests that way; give pytest's exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="of the order of files")
    parser.add_argument("--busy", type=int, default=2, help="processes that do nothing but take time")
    parser.add_argument("--examples", type=int, default=1, help="how many times as many for each property")
    parser.add_argument("--processes", type=int, default=3, help="that share the files")
    asked, tests = parser.parse_known_args()
    print(f"shake with seed {asked.seed}", flush=True)
    command = [sys.executable, "-m", "pytest", "-rf", "--numprocesses", str(asked.processes)]
    environ = os.environ | {SEED: str(asked.seed), TIMES: str(asked.examples)}
    with ExitStack() as stack:
        for _ in range(asked.busy):
            stack.callback(stack.enter_context(subprocess.Popen(_BUSY)).kill)
        return subprocess.run([*command, "--dist", "loadfile", *tests], env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
