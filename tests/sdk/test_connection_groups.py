"""Groups of connections: few calls stay in the first group, many spread, and none is forgotten."""

from __future__ import annotations

from tidegate.sdk.connection_groups import GROUP_CONNECTIONS_MAX, GROUPS_MAX, ConnectionGroups


def test_calls_one_after_the_other_use_the_first_group() -> None:
    groups = ConnectionGroups()
    for _ in range(100):
        number = groups.take()
        assert number == 0
        groups.release(number)


def test_a_full_group_opens_the_next_and_room_is_used_again() -> None:
    groups = ConnectionGroups()
    taken = [groups.take() for _ in range(GROUP_CONNECTIONS_MAX + 1)]
    assert taken == [0] * GROUP_CONNECTIONS_MAX + [1]
    groups.release(0)
    assert [groups.take(), groups.take()] == [0, 1]


def test_calls_beyond_all_connections_wait_where_the_fewest_wait() -> None:
    groups = ConnectionGroups()
    for _ in range(GROUP_CONNECTIONS_MAX * GROUPS_MAX):
        groups.take()
    assert [groups.take() for _ in range(GROUPS_MAX)] == list(range(GROUPS_MAX))
    groups.release(5)
    assert groups.take() == 5
