"""Shaking the tests: the order of files follows a seed, and properties get more examples."""

from __future__ import annotations

import pytest

from tests.paths import ROOT

pytest_plugins = ("pytester",)

FILE = """
from hypothesis import given, settings, strategies

def test_first():
    pass

@settings(max_examples=7)
@given(strategies.integers())
def test_second(number):
    with open("examples", "a") as file:
        file.write("x")
"""
HOOK = """
import os
from tests.shake import shake

def pytest_collection_modifyitems(items):
    shake(items, os.environ)
"""


@pytest.fixture
def folder(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.syspath_prepend(str(ROOT))
    pytester.makeconftest(HOOK)
    pytester.makepyfile(**{f"test_{name}": FILE for name in "abcdefgh"})
    return pytester


def order(folder: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, seed: int) -> list[str]:
    monkeypatch.setenv("TEST_SHAKE_SEED", str(seed))
    return [line for line in folder.runpytest("--collect-only", "-q").outlines if "::" in line]


def test_files_come_in_the_order_of_a_seed_and_stay_whole(
    folder: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, again, other = (order(folder, monkeypatch, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert sorted(first) == sorted(other) != first
    assert [name.rpartition("::")[2] for name in first] == ["test_first", "test_second"] * 8


@pytest.mark.parametrize("times", [None, 3])
def test_properties_get_more_examples(
    folder: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, times: int | None
) -> None:
    if times is not None:
        monkeypatch.setenv("TEST_SHAKE_EXAMPLES", str(times))
    folder.inline_run("test_a.py").assertoutcome(passed=2)
    assert len((folder.path / "examples").read_text()) == 7 * (times or 1)
