"""The checks of the worker and its pipelines, from a status answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.cli.checks.finding import Finding, fail, ok, warn
from tidegate.cli.installed_pipelines import STOPPED, WORKER_SECONDS_MAX
from tidegate.cli.output.format import first_line, seconds_text

START_FIX = "Start it: 'tidegate up', or 'tidegate worker' beside a server that runs alone."


def check_worker(status: Mapping[str, Any], installed: Sequence[str]) -> Finding | None:
    """Check that a worker runs where there are pipelines for it; None where the answer does not show it."""
    if status["pid"] is None:
        return None  # the caller is of another tenant: the worker belongs to the instance
    worker = status["worker"]
    # A stopped pipeline needs no worker.
    active = (line["name"] for line in status["pipelines"] if line["state"] != STOPPED)
    names = {*installed, *active}
    if worker is None and not names:
        return ok("worker", "none runs, and there is no pipeline for one")
    if worker is None:
        found = f"none runs, and {', '.join(sorted(names))} waits for one"
        # Spark starts slowly.
        just_started = status["uptimeSeconds"] < WORKER_SECONDS_MAX
        return warn("worker", found, START_FIX) if just_started else fail("worker", found, START_FIX)
    if worker["state"] == "lost":
        silent = seconds_text(worker["seenSecondsAgo"])
        found = f"process {worker['pid']} has said nothing for {silent}"
        fix = "Look at logs/worker.log in the home, and start it again: 'tidegate up' or 'tidegate worker'."
        return fail("worker", found, fix) if names else warn("worker", found, fix)
    return ok("worker", f"process {worker['pid']} is {worker['state']}")


def check_pipelines(status: Mapping[str, Any]) -> Finding | None:
    """Check that no pipeline has failed, and name those that have; None where there are none."""
    lines = status["pipelines"]
    if not lines:
        return None
    failed = [line for line in lines if line["state"] == "failed"]
    if not failed:
        return ok("pipelines", ", ".join(f"{line['name']} is {line['state']}" for line in lines))
    text = "; ".join(f"{line['name']} failed: {first_line(line['error'])}" for line in failed)
    shows = ", ".join(f"tidegate pipeline show {line['name']}" for line in failed)
    return fail("pipelines", text, f"{shows}. The worker tries again by itself.")
