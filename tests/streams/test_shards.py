"""User ids: the rule, the shard for ever, and one file each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import NameInvalid
from tidegate.streams.shards import check_stream_user, log_name, shard_of

ALPHABET = "ABCXYZabcxyz019._-@"
_users = st.text(ALPHABET, min_size=1, max_size=128).filter(lambda user: user not in {".", ".."})


@pytest.mark.parametrize(
    ("user", "shard"),
    [
        ("alice", 7),
        ("bob", 0),
        ("Alice", 3),
        ("a", 3),
        ("ann@example.org", 8),
        ("user-0001", 2),
        ("0", 1),
        ("..." + "z" * 125, 0),
    ],
)
def test_the_shard_of_a_user_never_changes(user: str, shard: int) -> None:
    """Case 3: files at rest are found by these numbers."""
    assert shard_of(user) == shard


@given(_users)
def test_ids_of_the_alphabet_are_taken(user: str) -> None:
    assert check_stream_user(user) == user
    assert 0 <= shard_of(user) < 32


@pytest.mark.parametrize("user", ["", ".", "..", "a/b", "a b", "ä", "a\n", "a\0", "~", "x" * 129, "../x"])
def test_other_ids_are_refused_with_the_rule(user: str) -> None:
    with pytest.raises(NameInvalid) as refused:
        check_stream_user(user)
    assert "1 to 128" in refused.value.hint


@given(_users)
def test_a_file_is_named_by_the_id_and_fits_a_file_system(user: str) -> None:
    assert log_name(user, ignores_case=False) == f"{user}.log"
    folded = log_name(user, ignores_case=True)
    assert folded == folded.lower()
    assert len(folded) <= 255


@given(_users, st.lists(st.booleans(), min_size=128, max_size=128))
def test_ids_that_differ_in_case_never_share_a_file(user: str, flips: list[bool]) -> None:
    """Case 3, on a disk that ignores case."""
    other = "".join(letter.swapcase() if flip else letter for letter, flip in zip(user, flips, strict=False))
    assert (log_name(user, ignores_case=True) == log_name(other, ignores_case=True)) == (user == other)
