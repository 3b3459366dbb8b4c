from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.pictures import status
from tidegate.cli.commands.pipeline import (
    SETTLE_SECONDS,
    WAIT_SECONDS_MAX,
    brief_error,
    wait_for_pipeline,
)
from tidegate.cli.installed_pipelines import WORKER_SECONDS_MAX
from tidegate.errors import TidegateError
from tidegate.pipeline.worker.failures import MISMATCH_HINT


def answer(taken: int, *, second: int = 10, **changes: Any) -> dict[str, Any]:
    seen = status(second)
    seen["pipelines"][0] |= {"offsets": {"demo.readings": {"0": taken, "1": taken}}, **changes}
    return seen


def answers(*seen: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Return each answer once, the last one for ever."""
    rest = list(seen)
    return lambda: rest.pop(0) if len(rest) > 1 else rest[0]


def test_it_waits_for_what_the_topic_held_at_first_and_not_for_more() -> None:
    slept: list[float] = []
    fetch = answers(
        answer(0), answer(999, second=20), answer(1000, second=30, batches=77), answer(5, second=99)
    )
    found = wait_for_pipeline("readings", fetch, slept.append)
    assert found["batches"] == 77


def test_a_pipeline_that_is_not_running_yet_is_waited_for() -> None:
    fetch = answers({**status(10), "pipelines": []}, answer(1000, state="starting"), answer(1000, batches=5))
    assert wait_for_pipeline("readings", fetch, lambda _: None)["batches"] == 5


def test_a_failure_is_raised_with_its_reason() -> None:
    fetch = answers(answer(0, state="failed", error="no such column: wind"))
    with pytest.raises(TidegateError, match="no such column: wind"):
        wait_for_pipeline("readings", fetch, lambda _: None)


@pytest.mark.parametrize("way_out", ["Mend the operator.", MISMATCH_HINT])
def test_what_to_do_about_a_failure_has_a_line_of_its_own(way_out: str) -> None:
    below = f"\nHint: {way_out}\n\nTraceback" if way_out != MISMATCH_HINT else f"\n\n{way_out}\n\nmore"
    failed = answer(0, state="failed", error=f"Operator 'visits' failed on key ada: it broke{below}")
    with pytest.raises(TidegateError) as caught:
        wait_for_pipeline("readings", answers(failed), lambda _: None)
    assert caught.value.message == "Pipeline 'readings' failed: Operator 'visits' failed on key ada: it broke"
    told = caught.value.hint.splitlines()
    assert told[0] == way_out
    assert told[1].startswith("  'tidegate pipeline show readings'")
    assert brief_error(failed["pipelines"][0]).splitlines()[1:] == [f"  {way_out}"]


def test_a_replaced_file_is_given_time_to_be_noticed() -> None:
    slept: list[float] = []
    wait_for_pipeline("readings", answers(answer(1000)), slept.append)
    assert slept == [SETTLE_SECONDS]


def test_a_home_without_a_worker_says_so() -> None:
    slept: list[float] = []
    with pytest.raises(TidegateError, match="No worker runs"):
        wait_for_pipeline("readings", answers(status(10, worker=False)), slept.append)
    assert sum(slept) >= WORKER_SECONDS_MAX


def test_it_does_not_wait_for_ever() -> None:
    slept: list[float] = []
    with pytest.raises(TidegateError, match="not there yet"):
        wait_for_pipeline("readings", answers(answer(3)), slept.append)
    assert sum(slept) >= WAIT_SECONDS_MAX
