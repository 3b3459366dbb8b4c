"""A worker settles once: what it has loaded is not collected again and again."""

from __future__ import annotations

import signal
import subprocess
import sys


def said(lines: str) -> str:
    """Run a few lines in a fresh interpreter, and give what it prints."""
    code = f"import gc\nfrom tidegate.pipeline.stateful.worker_setup import prepare_worker\n{lines}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_what_is_loaded_is_frozen_at_the_first_task_and_never_again() -> None:
    lines = "prepare_worker()\nprint(gc.get_freeze_count() > 1000)\n"
    lines += "gc.unfreeze()\nprepare_worker()\nprint(gc.get_freeze_count())"
    assert said(lines).split() == ["True", "0"]


def test_a_fork_settles_anew_and_garbage_that_comes_later_is_collected() -> None:
    lines = (
        "import os\nprepare_worker()\ngc.unfreeze()\n"
        "if os.fork():\n    os.wait()\nelse:\n    prepare_worker()\n"
    )
    lines += "    print(gc.get_freeze_count() > 1000)\n    a = []\n    a.append(a)\n    del a\n"
    lines += "    print(gc.collect() >= 1)"
    assert said(lines).split() == ["True", "True"]


def test_a_worker_that_is_told_to_go_closes_its_copies_and_goes() -> None:
    lines = "import os, signal\nfrom tidegate.checkpoint.local.pool import pool\n"
    lines += "class Kept:\n    def release(self):\n        print('closed', flush=True)\n"
    lines += "pool()._idle['a'] = Kept()\nprepare_worker()\nos.kill(os.getpid(), signal.SIGHUP)\n"
    lines += "print('went on')"
    code = f"import gc\nfrom tidegate.pipeline.stateful.worker_setup import prepare_worker\n{lines}"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.stdout.split(), ended.returncode) == (["closed"], -signal.SIGHUP)
