"""One suite for all backends: random operations on all states, compared with a plain model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.state_walk import TTLS, walk


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("ttl_name", TTLS)
@pytest.mark.parametrize("kind", ["heap", "rocksdb"])
def test_states_answer_as_plain_dicts_and_lists_do(
    kind: str, ttl_name: str, seed: int, tmp_path: Path
) -> None:
    """Case 5: one contract suite passes on both backends, with random sequences compared with a model."""
    walk(seed, kind, ttl_name, tmp_path / "copy", 300)
