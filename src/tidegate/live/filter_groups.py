"""Groups: subscriptions that are up to date, together with all others that are told the same.

A filter is evaluated once a group and change. Where a filter has a conjunct `column = constant`, its group is
found by the value in the row: a thousand subscribers, each for a room of their own, cost one change no more
than two look-ups.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

from tidegate.live.subscription import Subscription
from tidegate.live.wire import Teller
from tidegate.model.changes import Change
from tidegate.model.tables import Row, Value

_Key = tuple[Hashable, Hashable]


class Group:
    """Subscriptions with one filter and one shape, by how their messages begin."""

    __slots__ = ("key", "members", "teller")

    def __init__(self, key: _Key, teller: Teller) -> None:
        self.key = key
        self.teller = teller
        self.members: dict[bytes, dict[Subscription, None]] = {}

    def add(self, subscription: Subscription) -> None:
        """Take one in."""
        self.members.setdefault(subscription.front, {})[subscription] = None

    def discard(self, subscription: Subscription) -> None:
        """Let one go, if it is here."""
        members = self.members.get(subscription.front)
        if members is not None and members.pop(subscription, self) is None and not members:
            del self.members[subscription.front]

    def __iter__(self) -> Iterator[Subscription]:
        for members in self.members.values():
            yield from members


class Scope:
    """The groups that follow the rows of one user, or those of a SHARED table."""

    def __init__(self) -> None:
        self._groups: dict[_Key, Group] = {}
        # By column and value, for filters that ask for one; the others see every change.
        self._by_value: dict[int, dict[Value, dict[Group, None]]] = {}
        self._others: dict[Group, None] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def __iter__(self) -> Iterator[Group]:
        yield from self._groups.values()

    @property
    def open_count(self) -> int:
        """How many groups see every change."""
        return len(self._others)

    def add(self, subscription: Subscription) -> None:
        """Take a subscription into its group."""
        key = _key_of(subscription.teller)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key, subscription.teller)
            self._places(group)[group] = None
        group.add(subscription)

    def discard(self, subscription: Subscription) -> None:
        """Let a subscription go, if it is here."""
        group = self._groups.get(_key_of(subscription.teller))
        if group is None:
            return
        group.discard(subscription)
        if not group.members:
            del self._groups[group.key]
            places = self._places(group)
            del places[group]
            if not places:
                self._forget_value(group)

    def concerned(self, change: Change) -> Iterable[Group]:
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

    def _places(self, group: Group) -> dict[Group, None]:
        asked = _asked_value(group.teller)
        if asked is None:
            return self._others
        position, value = asked
        return self._by_value.setdefault(position, {}).setdefault(value, {})

    def _forget_value(self, group: Group) -> None:
        asked = _asked_value(group.teller)
        if asked is not None:
            position, value = asked
            del self._by_value[position][value]
            if not self._by_value[position]:
                del self._by_value[position]


def _key_of(teller: Teller) -> _Key:
    return teller.select.filter_key, teller.select.shape_key


def _asked_value(teller: Teller) -> tuple[int, Value] | None:
    """Return the column and value that a filter asks for; a value that is unequal to itself finds nothing."""
    asked = teller.select.equality
    return None if asked is None or asked[1] is None or asked[1] != asked[1] else asked


def _at(row: Row | None, position: int) -> Value:
    return None if row is None or position >= len(row) else row[position]
