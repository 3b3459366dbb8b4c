"""The store of consumer groups: groups and ledgers in memory, in step with their rows in the engine.

A topic's groups are read at their first use, all of them at once: a handful of rows each. From then on memory
runs ahead of the disk while a group commit is under way. A change that was staged and then not written (its
caller raised, the disk was full) is noticed at the next change of the same consumer group: a ledger's
`stored` is the row that it stands for, and that is not the row which is read through the staging. The group
is then read again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from tidegate.errors import GroupNotFound, RequestInvalid, StorageCorrupt, TopicNotFound
from tidegate.storage.engine import Engine, KeyRange, Reader
from tidegate.storage.group_commit import StageLater, Staging
from tidegate.storage.keys import u64
from tidegate.topics import keys
from tidegate.topics.definitions import Topic
from tidegate.topics.groups import codec as rows
from tidegate.topics.groups.codec import Entry, Position, everything_of_group
from tidegate.topics.groups.leases import FetchIdSource
from tidegate.topics.groups.ledger import Draft, Ledger
from tidegate.topics.groups.members import SteadyTime
from tidegate.topics.groups.types import check_group_name

# More entries than this are removed as one range, which ends the group commit; fewer are removed one by one.
DELETES_MAX = 256


class GroupStore:
    """Reads and changes of groups that agree with the disk. Stages belong to the committer's thread.

    A caller holds `lock` while it uses a group; it is never held while something waits for a sync.
    """

    def __init__(self, memory: GroupCache, groups_max: int) -> None:
        self.memory = memory
        self.lock = threading.RLock()
        self._groups_max = groups_max

    def find(self, staging: Staging, topic: Topic, name: str, partitions: Sequence[int]) -> GroupState | None:
        """Return a group as the changes before this one left it, or None."""
        check_group_name(name)
        for is_last in (False, True):
            group = self.memory.of(topic.id).get(name)
            known: list[bytes | None] = [None] * (len(partitions) + 1)
            if group is not None:
                known = group.stored_rows(partitions)
            named = group if group is not None else GroupState(topic.id, name, 0)
            positions = [named.position_key(partition) for partition in partitions]
            definition, *stored = staging.get_many([keys.definition_key(topic.id), named.key, *positions])
            if definition is None:
                # Deleted since the request came in.
                raise TopicNotFound(topic=topic.name)
            if stored == known:
                return group
            if not is_last:
                self.memory.read_again(topic.id, name)
        # Changes before this one in the same group commit wrote its rows, which are not in the engine yet.
        raise StageLater

    def get(self, staging: Staging, topic: Topic, name: str, partitions: Sequence[int]) -> GroupState:
        """Return a group as the changes before this one left it."""
        group = self.find(staging, topic, name, partitions)
        if group is None:
            raise GroupNotFound(topic=topic.name, group=name)
        return group

    def new(self, topic: Topic, name: str, now_us: int) -> GroupState:
        """Return a new group; `stage` writes it."""
        if len(self.memory.of(topic.id)) >= self._groups_max:
            raise RequestInvalid(
                reason=f"Topic '{topic.name}' has {self._groups_max} consumer groups, and may not have more.",
                hint="Delete those that nobody uses, or raise topics.groups_max.",
            )
        return GroupState(topic.id, name, now_us)

    def stage(self, staging: Staging, group: GroupState, drafts: Mapping[int, Draft]) -> None:
        """Write what drafts change, then apply them; new groups and ledgers are written as they are."""
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
        """Set the position of every group of a topic to 0 in partitions that are new."""
        for name in self.memory.names(topic.id):
            group = self.find(staging, topic, name, partitions)
            if group is not None:
                fresh = [number for number in partitions if number not in group.ledgers]
                self.stage(staging, group, {number: Draft(Ledger(Position(0))) for number in fresh})

    def stage_delete(self, staging: Staging, group: GroupState) -> None:
        """Remove a group and every row of it."""
        for span in everything_of_group(group.topic_id, group.digest):
            staging.delete_keys(span)
        self.memory.of(group.topic_id).pop(group.name, None)


def _stage_draft(staging: Staging, group: GroupState, partition: int, draft: Draft) -> None:
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


class GroupState:
    """A group and its ledgers by partition; a partition without a position has no ledger."""

    __slots__ = (
        "_entry_prefixes",
        "_position_keys",
        "created_us",
        "digest",
        "key",
        "ledgers",
        "name",
        "stored",
        "topic_id",
        "turn",
    )

    def __init__(self, topic_id: int, name: str, created_us: int) -> None:
        self.topic_id = topic_id
        self.name = name
        self.created_us = created_us
        self.digest = rows.digest_of(name)
        self.key = rows.group_key(topic_id, self.digest)
        self.stored = rows.encode_group(name, created_us)
        self.ledgers: dict[int, Ledger] = {}
        # Rotates the partition that comes first when a fetch is from all of them.
        self.turn = 0
        self._position_keys: dict[int, bytes] = {}
        self._entry_prefixes: dict[int, bytes] = {}

    def position_key(self, partition: int) -> bytes:
        """Return the key of this group's position in a partition."""
        key = self._position_keys.get(partition)
        if key is None:
            key = rows.position_key(self.topic_id, self.digest, partition)
            self._position_keys[partition] = key
        return key

    def entry_prefix(self, partition: int) -> bytes:
        """Return the prefix of the keys of a partition's entries."""
        prefix = self._entry_prefixes.get(partition)
        if prefix is None:
            prefix = rows.entry_prefix(self.topic_id, self.digest, partition)
            self._entry_prefixes[partition] = prefix
        return prefix

    def stored_rows(self, partitions: Sequence[int]) -> list[bytes | None]:
        """Return the rows that this stands for: that of the group, then those of its positions."""
        found: list[bytes | None] = [self.stored]
        for partition in partitions:
            ledger = self.ledgers.get(partition)
            found.append(None if ledger is None else ledger.stored)
        return found


class GroupCache:
    """The groups of the topics that were used since the server started. One thread at a time."""

    def __init__(self, engine: Engine, ids: FetchIdSource, steady: SteadyTime) -> None:
        self._engine = engine
        self._ids = ids
        self._steady = steady
        self._by_topic: dict[int, dict[str, GroupState]] = {}
        self._has_all = False

    def of(self, topic_id: int) -> dict[str, GroupState]:
        """Return the groups of a topic, by name."""
        known = self._by_topic.get(topic_id)
        if known is None:
            spans = (rows.groups_range(topic_id), rows.entries_range(topic_id))
            known = {group.name: group for group in self._read(topic_id, spans)}
            self._by_topic[topic_id] = known
        return known

    def everything(self) -> Iterator[GroupState]:
        """Return every group of every topic."""
        if not self._has_all:
            topic_ids = {rows.topic_id_of(key) for key, _ in self._engine.scan(rows.groups_range())}
            for topic_id in topic_ids:
                self.of(topic_id)
            self._has_all = True
        return (group for groups in self._by_topic.values() for group in groups.values())

    def names(self, topic_id: int) -> list[str]:
        """Return the names of groups that memory or the engine has: either may be behind the other."""
        span = rows.groups_range(topic_id)
        found = set(self.of(topic_id))
        for key, value in self._engine.scan(span):
            if rows.partition_in(key) is None:
                found.add(rows.decode_group(value, _place(topic_id))[0])
        return sorted(found)

    def read_again(self, topic_id: int, name: str) -> None:
        """Replace one group by what the engine has: a write of it failed after memory had it."""
        spans = rows.everything_of_group(topic_id, rows.digest_of(name))
        found = list(self._read(topic_id, spans))
        self.of(topic_id).pop(name, None)
        for group in found:
            self.of(topic_id)[group.name] = group

    def forget(self, topic_id: int) -> None:
        """Drop the groups of a topic."""
        self._by_topic.pop(topic_id, None)

    def clear(self) -> None:
        """Drop everything that is in memory."""
        self._by_topic.clear()
        self._has_all = False

    def _read(self, topic_id: int, spans: Sequence[KeyRange]) -> Iterator[GroupState]:
        with self._engine.snapshot() as view:
            groups, positions = _read_positions(view, topic_id, spans[0])
            entries = self._read_entries(view, topic_id, spans[1])
        for (digest, partition), position in positions.items():
            if digest not in groups:
                raise StorageCorrupt(place=_place(topic_id), reason="a position belongs to no group")
            ledger = Ledger(position, entries.pop((digest, partition), []))
            groups[digest].ledgers[partition] = ledger
            # Fetch ids from now on are above all that were ever used.
            self._ids.advance_past(position.last_fetch_id)
        if entries:
            raise StorageCorrupt(place=_place(topic_id), reason="a lease belongs to no group")
        yield from groups.values()

    def _read_entries(
        self, view: Reader, topic_id: int, span: KeyRange
    ) -> dict[tuple[bytes, int], list[Entry]]:
        now_us = self._steady.now_us()
        found: dict[tuple[bytes, int], list[Entry]] = {}
        for key, value in view.scan(span):
            entry = rows.decode_entry(value, rows.start_in(key), _place(topic_id))
            # The clock was set back meanwhile: no state lasts longer than it was meant to.
            if entry.ends_us > now_us + entry.span_us:
                entry = replace(entry, ends_us=now_us + entry.span_us)
            found.setdefault((rows.digest_in(key), rows.partition_in(key) or 0), []).append(entry)
        return found


def _read_positions(
    view: Reader, topic_id: int, span: KeyRange
) -> tuple[dict[bytes, GroupState], dict[tuple[bytes, int], Position]]:
    groups: dict[bytes, GroupState] = {}
    positions: dict[tuple[bytes, int], Position] = {}
    for key, value in view.scan(span):
        partition, digest = rows.partition_in(key), rows.digest_in(key)
        if partition is None:
            name, created_us = rows.decode_group(value, _place(topic_id))
            groups[digest] = GroupState(topic_id, name, created_us)
        else:
            positions[digest, partition] = rows.decode_position(value, _place(topic_id))
    return groups, positions


def _place(topic_id: int) -> str:
    return f"the consumer groups of topic {topic_id}"
