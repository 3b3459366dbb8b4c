"""Random live expressions give what DuckDB gives.

A longer run: python -m tests.sql.expressions.differential.
"""

from __future__ import annotations

import pytest

from tests.sql.expressions.differential import REFUSED_SHARE_MAX, Oracle, Tally, compare, run
from tests.sql.expressions.differential_rows import rows_of


def test_random_expressions_give_what_duckdb_gives() -> None:
    tally = run(11, count=200)
    assert tally.differences == []
    assert tally.compared > 150
    assert tally.refused_share <= REFUSED_SHARE_MAX


def test_a_difference_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import random

    from tidegate.sql.expressions.compile import LiveSelect

    oracle, tally = Oracle(rows_of(random.Random(1), 8)), Tally()
    compare(oracle, "n > 5", [], tally)
    assert tally.differences == []
    monkeypatch.setattr(LiveSelect, "project", lambda _self, _row: (True,))
    compare(oracle, "n > 5", [], tally)
    assert tally.differences != []
