"""Filter groups: subscriptions that are up to date and have the same SELECT.

A filter is evaluated once for a group and change. Where a filter has a conjunct `column = constant`, its
group is found by the value in the row: a thousand subscribers, each for a room of their own, cost two
look-ups for each change.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

from tidegate.live.change_filter import ChangeFilter
from tidegate.live.subscription import Subscription
from tidegate.model.changes import Change
from tidegate.model.tables import Row, Value

_Key = tuple[Hashable, Hashable]


class FilterGroup:
    """Subscriptions with one filter and one projection, by the beginning of their messages."""

    __slots__ = ("change_filter", "key", "members")

    def __init__(self, key: _Key, change_filter: ChangeFilter) -> None:
        self.key = key
        self.change_filter = change_filter
        self.members: dict[bytes, dict[Subscription, None]] = {}

    def add(self, subscription: Subscription) -> None:
        """Add a subscription."""
        self.members.setdefault(subscription.front, {})[subscription] = None

    def discard(self, subscription: Subscription) -> None:
        """Remove a subscription, if it is here."""
        members = self.members.get(subscription.front)
        if members is not None and members.pop(subscription, self) is None and not members:
            del self.members[subscription.front]

    def __iter__(self) -> Iterator[Subscription]:
        for members in self.members.values():
            yield from members


class Scope:
    """The groups that follow the rows of one user, or those of a SHARED table."""

    def __init__(self) -> None:
        self._groups: dict[_Key, FilterGroup] = {}
        # By column and value, for filters with an equality; the others see every change.
        self._by_value: dict[int, dict[Value, dict[FilterGroup, None]]] = {}
        self._others: dict[FilterGroup, None] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def __iter__(self) -> Iterator[FilterGroup]:
        yield from self._groups.values()

    @property
    def open_count(self) -> int:
        """How many groups test every change."""
        return len(self._others)

    def add(self, subscription: Subscription) -> None:
        """Add a subscription to its group."""
        key = _key_of(subscription.change_filter)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = FilterGroup(key, subscription.change_filter)
            self._places(group)[group] = None
        group.add(subscription)

    def discard(self, subscription: Subscription) -> None:
        """Remove a subscription, if it is here."""
        group = self._groups.get(_key_of(subscription.change_filter))
        if group is None:
            return
        group.discard(subscription)
        if not group.members:
            del self._groups[group.key]
            places = self._places(group)
            del places[group]
            if not places:
                self._forget_value(group)

    def concerned(self, change: Change) -> Iterable[FilterGroup]:
        """Return the groups whose filter may take the old or the new row."""
        if not self._by_value:
            return self._others
        found = dict(self._others)
        for position, by_value in self._by_value.items():
            for row in (change.old, change.new):
                value = _at(row, position)
                if value is not None and value in by_value:
                    found.update(by_value[value])
        return found

    def _places(self, group: FilterGroup) -> dict[FilterGroup, None]:
        equality = _indexed_value(group.change_filter)
        if equality is None:
            return self._others
        position, value = equality
        return self._by_value.setdefault(position, {}).setdefault(value, {})

    def _forget_value(self, group: FilterGroup) -> None:
        equality = _indexed_value(group.change_filter)
        if equality is not None:
            position, value = equality
            del self._by_value[position][value]
            if not self._by_value[position]:
                del self._by_value[position]


def _key_of(change_filter: ChangeFilter) -> _Key:
    return change_filter.select.filter_key, change_filter.select.shape_key


def _indexed_value(change_filter: ChangeFilter) -> tuple[int, Value] | None:
    """Return the column and value of a filter's equality; none for NaN, which no look-up finds."""
    equality = change_filter.select.equality
    return None if equality is None or equality[1] is None or equality[1] != equality[1] else equality


def _at(row: Row | None, position: int) -> Value:
    return None if row is None or position >= len(row) else row[position]
