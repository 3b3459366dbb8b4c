"""The state machine of groups for as long as one likes: python -m tests.topics.groups.soak --minutes 10."""

from __future__ import annotations

import argparse
import time

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.topics.groups.test_model import GroupsMachine

EXAMPLES_A_ROUND = 10
STEPS_A_RUN = 120


def main() -> None:
    """Run rounds until the time is over; a failure ends them and says how to repeat it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    until = time.monotonic() + parser.parse_args().minutes * 60
    rounds = 0
    each = settings(
        max_examples=EXAMPLES_A_ROUND,
        stateful_step_count=STEPS_A_RUN,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    while time.monotonic() < until:
        run_state_machine_as_test(GroupsMachine, settings=each)
        rounds += 1
        print(f"{rounds * EXAMPLES_A_ROUND} runs of {STEPS_A_RUN} steps")


if __name__ == "__main__":
    main()
