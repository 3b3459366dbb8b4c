"""Random tables and SELECTs answer as DuckDB alone does; `differential` can run longer."""

from __future__ import annotations

import pytest

from tests.query.differential import Tally, run_round

SEEDS = range(1, 6)


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_are_those_of_duckdb_over_the_same_rows(seed: int) -> None:
    tally = Tally()
    run_round(seed, tally)
    assert tally.differences == []
    assert tally.answers > 20, "the statements are such that they can be answered"
    assert tally.pushed > 3, "and such that something is pushed down"
