"""Owners of names in a topic: idempotent producers and sink writers belong to the user who used them first.

Both names decide which messages count as repeated: a user who could take the name of another would silence
the other's messages without an error. What an earlier version stored has no owner, '': the first user who
uses it becomes its owner. An owner never changes, and an administrator is a user like others.
"""

from __future__ import annotations

from typing import Literal

from tidegate.errors import OwnedByAnother
from tidegate.topics.definitions import Topic

NO_OWNER = ""


def check_owner(
    noun: Literal["producer", "writer"], name: str, topic: Topic, owner: str | None, user: str
) -> None:
    """Raise OwnedByAnother for a name that another user has; `owner` is None for one that nobody used."""
    if owner not in (None, NO_OWNER, user):
        raise OwnedByAnother(noun=noun, name=name, topic=topic.name)
