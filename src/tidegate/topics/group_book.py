"""The book of groups: takes drafts of ledgers, stages their rows, gives groups that agree with the disk.

Memory runs ahead of the disk while a group of writes is on its way. A change that was staged and then not
written (its caller raised, the disk was full) is noticed at the next change of the same group: the row that a
ledger stands for is not the one that is read through the staging.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from tidegate.errors import GroupNotFound, RequestInvalid, TopicNotFound
from tidegate.storage.commit import StageLater, Staging
from tidegate.storage.keys import u64
from tidegate.topics import keys
from tidegate.topics.definitions import Topic
from tidegate.topics.group_memory import Group, GroupMemory
from tidegate.topics.group_rows import Position, everything_of_group
from tidegate.topics.group_shapes import check_group_name
from tidegate.topics.ledger import Draft, Ledger

# Entries beyond this are removed as one range: it ends the group of writes, so few are removed one by one.
DELETES_MAX = 256


class GroupBook:
    """Groups that agree with the disk, and the way to change them. Stages belong to the committer's thread.

    Whoever looks at a group holds `lock`; it is never held while something waits for the disk to sync.
    """

    def __init__(self, memory: GroupMemory, groups_max: int) -> None:
        self.memory = memory
        self.lock = threading.RLock()
        self._groups_max = groups_max

    def find(self, staging: Staging, topic: Topic, name: str, partitions: Sequence[int]) -> Group | None:
        """Give a group as the changes before this one left it, or None."""
        check_group_name(name)
        for is_last in (False, True):
            group = self.memory.of(topic.id).get(name)
            known: list[bytes | None] = [None] * (len(partitions) + 1)
            if group is not None:
                known = group.stored_rows(partitions)
            asked = group if group is not None else Group(topic.id, name, 0)
            wanted = [asked.position_key(partition) for partition in partitions]
            definition, *stored = staging.get_many([keys.definition_key(topic.id), asked.key, *wanted])
            if definition is None:
                # Deleted since the request came in.
                raise TopicNotFound(topic=topic.name)
            if stored == known:
                return group
            if not is_last:
                self.memory.read_again(topic.id, name)
        # What changes before this one in the group of writes made of it is not in the engine yet.
        raise StageLater

    def get(self, staging: Staging, topic: Topic, name: str, partitions: Sequence[int]) -> Group:
        """Give a group as the changes before this one left it."""
        group = self.find(staging, topic, name, partitions)
        if group is None:
            raise GroupNotFound(topic=topic.name, group=name)
        return group

    def new(self, topic: Topic, name: str, now_us: int) -> Group:
        """Give a group that nobody knows yet; `stage` writes it."""
        if len(self.memory.of(topic.id)) >= self._groups_max:
            raise RequestInvalid(
                reason=f"Topic '{topic.name}' has {self._groups_max} consumer groups, and may not have more.",
                hint="Delete those that nobody uses, or raise topics.groups_max.",
            )
        return Group(topic.id, name, now_us)

    def stage(self, staging: Staging, group: Group, drafts: Mapping[int, Draft]) -> None:
        """Write what drafts change, and make the changes; new groups and ledgers are written as they are."""
        known = self.memory.of(group.topic_id)
        if group.name not in known:
            staging.put(group.key, group.stored)
        changed = []
        for partition, draft in drafts.items():
            is_new = partition not in group.ledgers
            if is_new or not draft.is_empty:
                changed.append((partition, draft))
                _stage_draft(staging, group, partition, draft)
        # From here on nothing can fail.
        known[group.name] = group
        for partition, draft in changed:
            draft.ledger.apply(draft)
            group.ledgers[partition] = draft.ledger

    def stage_new_partitions(self, staging: Staging, topic: Topic, partitions: Sequence[int]) -> None:
        """Let every group of a topic begin at 0 in partitions that nobody has written to."""
        for name in self.memory.names(topic.id):
            group = self.find(staging, topic, name, partitions)
            if group is not None:
                fresh = [number for number in partitions if number not in group.ledgers]
                self.stage(staging, group, {number: Draft(Ledger(Position(0))) for number in fresh})

    def stage_delete(self, staging: Staging, group: Group) -> None:
        """Remove a group and every row of it."""
        for span in everything_of_group(group.topic_id, group.digest):
            staging.delete_range(span.start, span.stop)
        self.memory.of(group.topic_id).pop(group.name, None)


def _stage_draft(staging: Staging, group: Group, partition: int, draft: Draft) -> None:
    prefix = group.entry_prefix(partition)
    gone = [start for start in draft.removed if start not in draft.put]
    if len(gone) > DELETES_MAX and not draft.put and len(gone) == len(draft.ledger):
        staging.delete_range(prefix + u64(0), prefix + u64(keys.OFFSET_END))
    else:
        for start in gone:
            staging.delete(prefix + u64(start))
    for start, entry in draft.put.items():
        staging.put(prefix + u64(start), entry.encode())
    staging.put(group.position_key(partition), draft.finish())
