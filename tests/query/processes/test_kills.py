"""A short form of the kills of processes that run statements; `make soak` has the long one."""

from __future__ import annotations

import pytest

from tests.query.processes.kills import Outcomes, run_round


@pytest.mark.parametrize("seed", [1, 2])
def test_statements_have_their_own_answers_while_their_processes_are_killed(seed: int) -> None:
    outcomes = Outcomes()
    print(f"seed {seed}")
    run_round(seed, outcomes)
    assert outcomes.wrong == []
    assert outcomes.counts["answered"] > 0
