"""Waiting for a pipeline: takes status answers, says when it has taken what its topic held at the start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidegate.cli.show import first_line
from tidegate.errors import TidegateError

POLL_SECONDS = 0.5
WAIT_SECONDS_MAX = 300.0
WORKER_SECONDS_MAX = 60.0  # Spark starts in five to twenty seconds; without a report after this none runs
# The worker looks at its folder twice a second, reports once a second; before that it speaks of the old file.
SETTLE_SECONDS = 3.0


def wait_for_pipeline(
    name: str,
    fetch: Callable[[], Mapping[str, Any]],
    sleep: Callable[[float], None],
) -> Mapping[str, Any]:
    """Wait until a pipeline has taken all that its topic holds now; give its status; raise if it fails."""
    waited_seconds = SETTLE_SECONDS
    sleep(waited_seconds)
    goal: dict[str, int] | None = None
    while waited_seconds < WAIT_SECONDS_MAX:
        status = fetch()
        if status["worker"] is None and waited_seconds >= WORKER_SECONDS_MAX:
            raise TidegateError(
                reason="No worker runs in this home.", hint="Start it: 'tidegate up' or 'tidegate worker'."
            )
        found = (line for line in status["pipelines"] if line["name"] == name)
        line: Mapping[str, Any] | None = next(found, None)
        if line is not None:
            goal = goal or _ends(status, line["topic"])
            if _arrived(line, goal):
                return line
        sleep(POLL_SECONDS)
        waited_seconds += POLL_SECONDS
    raise TidegateError(
        reason=f"Pipeline '{name}' is not there yet after {WAIT_SECONDS_MAX:g} s.",
        hint=f"It goes on; 'tidegate pipeline show {name}' tells how far it is.",
    )


def brief_error(line: Mapping[str, Any]) -> str:
    """Give the first line of a pipeline's error, and the way out where the error has one; no stacks."""
    from tidegate.pipeline.failures import MISMATCH_WAY_OUT

    error = line["error"] or "it does not say why"
    way_out = f" {MISMATCH_WAY_OUT}" if MISMATCH_WAY_OUT in error else ""
    return first_line(error) + way_out


def _arrived(line: Mapping[str, Any], goal: Mapping[str, int] | None) -> bool:
    if line["state"] == "failed":
        raise TidegateError(
            reason=f"Pipeline '{line['name']}' failed: {brief_error(line)}",
            hint=(
                f"'tidegate pipeline show {line['name']}' tells all of it. The worker tries again by itself; "
                "'pipeline run' with a better file replaces it."
            ),
        )
    if line["state"] != "running":
        return False
    if line["topic"] is None:
        return True
    taken = line["offsets"].get(line["topic"], {})
    return goal is not None and all(taken.get(partition, 0) >= end for partition, end in goal.items())


def _ends(status: Mapping[str, Any], topic: str | None) -> dict[str, int] | None:
    for entry in status["topics"]:
        if entry["name"] == topic:
            return {str(part["partition"]): int(part["end"]) for part in entry["partitions"]}
    return None
