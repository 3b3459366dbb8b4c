"""How far groups are behind: takes a client, gives a line for each consumer group, in one question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.sdk.client import Client

# A thousand groups are more than a picture shows; `tidegate topic groups` shows all of a topic.
LAGS_SQL = 'SELECT topic, "group", lag, in_flight FROM system.topic_groups ORDER BY lag DESC LIMIT 1000'


@dataclass(frozen=True, slots=True)
class GroupLag:
    """One consumer group of a topic: messages not acknowledged, and those of them in work."""

    topic: str
    group: str
    lag: int
    held: int


def group_lags(client: Client) -> list[GroupLag]:
    """Give the groups, the one that is furthest behind first; none where the caller may not ask."""
    try:
        rows = client.sql(LAGS_SQL).rows
    except TidegateError:
        return []  # a role that may not query, or a server that just went: the view tells the latter itself
    return [GroupLag(str(topic), str(group), int(lag), int(held)) for topic, group, lag, held in rows]


def lag_of(topic: str, lags: Sequence[GroupLag]) -> int | None:
    """Give the lag of the group of a topic that is furthest behind; None where it has no group."""
    return max((one.lag for one in lags if one.topic == topic), default=None)
