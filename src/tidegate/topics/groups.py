"""Consumer groups: takes what members ask for, gives leases on messages, keeps who has what until it is done.

A member takes messages and has each for a time, its lease; it acknowledges them, gives them back, or lets the
lease run out, and then they are given again, also to others. What was acknowledged never comes again; what
was not always does, or becomes a dead letter, or was removed from the log and is told as missed.

Everything that is promised is in the write batch that promised it: a crash takes back nothing that a member
was told. Methods named `stage_…` belong to the committer's thread, the others to any.

    group_rows     what is written, and where      ledger        who has what in one partition
    group_memory   groups that were read           ledger_steps  what one step changes in a ledger
    group_book     changes, in step with the disk  group_work    what members do
    members        who is there                    group_view    looking at groups
"""

from __future__ import annotations

from msgspec.structs import replace

from tidegate.storage.commit import Staging
from tidegate.topics import group_view
from tidegate.topics.definitions import Topic
from tidegate.topics.group_rows import Position
from tidegate.topics.group_shapes import (
    Acked,
    Acks,
    Expired,
    Extend,
    Extended,
    Given,
    Grant,
    GroupLimits,
    GroupShape,
    MemberShape,
    Nack,
    Nacked,
    PartitionShape,
    Ready,
    Take,
    Tallies,
    check_group_name,
    check_member_name,
)
from tidegate.topics.group_work import GroupWork, chosen_partitions
from tidegate.topics.ledger import Draft, Ledger
from tidegate.topics.reading import Start, start_offsets

__all__ = [
    "Acked",
    "Acks",
    "Expired",
    "Extend",
    "Extended",
    "Given",
    "Grant",
    "GroupLimits",
    "GroupShape",
    "Groups",
    "MemberShape",
    "Nack",
    "Nacked",
    "PartitionShape",
    "Ready",
    "Take",
    "Tallies",
    "check_group_name",
    "check_member_name",
]


class Groups(GroupWork):
    """All consumer groups of all topics."""

    def stage_reset(
        self, staging: Staging, topic: Topic, group: str, start: Start, partition: int | None
    ) -> dict[int, int]:
        """Let a group go on from another place; leases of before are lost. Gives the new positions."""
        if start.kind == "offsets" and partition is None:
            targets = {
                named: start_offsets(self._log, topic, start, named)[named] for named in sorted(start.offsets)
            }
        else:
            targets = start_offsets(self._log, topic, start, partition)
        with self._lock:
            known = self._book.get(staging, topic, group, list(targets))
            drafts: dict[int, Draft] = {}
            for number, offset in targets.items():
                ledger = known.ledgers.get(number)
                draft = Draft(Ledger(Position(offset)) if ledger is None else ledger)
                draft.removed = {entry.start: entry for entry in draft.ledger.entries()}
                draft.position = replace(draft.position, next=offset, missed_untold=0)
                drafts[number] = draft
            self._book.stage(staging, known, drafts)
        staging.when_durable(lambda: self._notify(topic, group))
        return targets

    def stage_delete(self, staging: Staging, topic: Topic, group: str) -> None:
        """Remove a group and where it stands; its next take begins anew."""
        with self._lock:
            self._book.stage_delete(staging, self._book.get(staging, topic, group, ()))
        staging.when_durable(lambda: self._gone(topic, group))

    def stage_partitions(self, staging: Staging, topic_after: Topic, first_new: int) -> None:
        """Let every group begin at the beginning of partitions that are added to its topic."""
        with self._lock:
            added = range(first_new, topic_after.partitions)
            self._book.stage_new_partitions(staging, topic_after, added)

    # Looking, from any thread

    def ready(self, topic: Topic, group: str, partition: int | None) -> Ready:
        """Say whether a take would find something now, and when it may be worth to look again; cheap."""
        with self._lock:
            known = self._book.memory.of(topic.id).get(group)
            if known is None:
                return Ready(0, missed=False, due_us=None, is_known=False)
            times_us = (self._steady.now_us(), self._steady.ahead_us())
            partitions = chosen_partitions(topic, partition)
            return group_view.ready_of(
                self._log, topic, known, partitions, times_us, self._limits.in_flight_max
            )

    def overdue(self, now_us: int) -> list[tuple[int, str]]:
        """List the groups, by topic id, that hold leases which ran out; `now_us` is the clock's."""
        with self._lock:
            steady_us = now_us - self._steady.ahead_us()
            return [
                (group.topic_id, group.name)
                for group in self._book.memory.everything()
                if any(ledger.has_lapsed(steady_us) for ledger in group.ledgers.values())
            ]

    def names(self, topic: Topic) -> list[str]:
        """List the groups of a topic."""
        with self._lock:
            return sorted(self._book.memory.of(topic.id))

    def lag(self, topic: Topic, group: str) -> int:
        """Count the messages that a group has not acknowledged; 0 for one that is not there."""
        with self._lock:
            known = self._book.memory.of(topic.id).get(group)
            return 0 if known is None else group_view.lag_of(self._log, topic, known, self._steady.now_us())

    def describe(self, topic: Topic) -> list[GroupShape]:
        """Describe the groups of a topic, by name."""
        seen = self._members.of_topic(topic.id)
        shapes = []
        for name in self.names(topic):
            with self._lock:
                known = self._book.memory.of(topic.id).get(name)
                if known is not None:
                    members, now_us = seen.get(name, {}), self._steady.now_us()
                    shapes.append(group_view.shape_of(self._log, topic, known, members, now_us))
        return shapes

    def seen(self, topic: Topic, group: str, member: str, waits: int = 0) -> None:
        """Note a sign of life of a member; `waits` is 1 when a long poll of it begins, -1 when it ends."""
        check_group_name(group)
        check_member_name(member)
        self._members.seen(topic.id, group, member, waits)

    def reload(self) -> None:
        """Drop what is remembered: the engine was opened again, and may hold more or less than we think."""
        with self._lock:
            self._book.memory.clear()

    def forget(self, topic: Topic) -> None:
        """Drop what is remembered of a topic that is gone."""
        with self._lock:
            self._book.memory.forget(topic.id)
        self._members.forget(topic.id)

    def _gone(self, topic: Topic, group: str) -> None:
        self._members.forget(topic.id, group)
        self._notify(topic, group)
