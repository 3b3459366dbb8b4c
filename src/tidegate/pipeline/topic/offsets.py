"""The offsets of a query that reads a topic, and the ranges that its tasks read.

The offset that Spark stores is {"topic": id, "<partition>": next offset}. The id is of one incarnation of a
topic: after a topic is deleted and created again, old offsets would refer to other messages. Partitions that
are added to a topic begin with their first message.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pyspark.sql.datasource import InputPartition

from tidegate.errors import OffsetOutOfRange, RequestInvalid, TopicReplaced
from tidegate.pipeline.topic.client import ServerClient, topic_path, with_hint_note
from tidegate.pipeline.topic.options import SourceOptions

# A task costs about 10 ms whatever it reads; a range smaller than this is not worth a second one.
SPLIT_MESSAGES_MIN = 20_000
TOPIC_ID = "topic"

Offsets = dict[str, int]

log = logging.getLogger(__name__)


class OffsetRange(InputPartition):  # type: ignore[misc]
    """The messages of one partition from `start` (in) to `stop` (out): the work of one task."""

    def __init__(self, topic_id: int, partition: int, start: int, stop: int) -> None:
        super().__init__((topic_id, partition, start, stop))
        self.topic_id = topic_id
        self.partition = partition
        self.start = start
        self.stop = stop

    def from_offset(self, start: int) -> OffsetRange:
        """Return the rest of the range from an offset on."""
        return OffsetRange(self.topic_id, self.partition, start, self.stop)

    def __repr__(self) -> str:
        return f"OffsetRange(partition={self.partition}, start={self.start}, stop={self.stop})"


class OffsetPlanner:
    """Plans micro-batches with the server; offsets have one order, so that Spark can compare their text."""

    def __init__(self, settings: SourceOptions) -> None:
        self._settings = settings
        self._client = ServerClient(settings.location, settings.retry_seconds)

    def first(self) -> Offsets:
        """Return the offsets at which a new query begins."""
        if self._settings.starting_timestamp is not None:
            return self._at_time(self._settings.starting_timestamp)
        starting = self._settings.starting_offsets
        if not isinstance(starting, dict):
            return _offsets(self._ask({"start": starting}), "start")
        earliest = self.earliest()
        unknown = sorted(set(starting) - set(_positions(earliest)))
        if unknown:
            reason = (
                f"startingOffsets names partition {unknown[0]}, which '{self._settings.topic}' does not have"
            )
            raise with_hint_note(
                RequestInvalid(reason=reason, hint=f"Its partitions are {', '.join(_positions(earliest))}.")
            )
        return {**earliest, **starting}

    def earliest(self) -> Offsets:
        """Return the first offsets that retention has left."""
        return _offsets(self._ask({"start": "earliest"}), "start")

    def latest(self) -> Offsets:
        """Return the offsets after the last messages."""
        return _offsets(self._ask({"start": "latest"}), "latest")

    def plan(self, start: Offsets, messages_max: int | None) -> tuple[Offsets, Offsets]:
        """Return the end of the next micro-batch, and the end of the topic."""
        body: dict[str, Any] = {"start": _positions(start), "topicId": start[TOPIC_ID]}
        if messages_max is not None:
            body["messagesMax"] = messages_max
        while True:
            try:
                answer = self._ask(body)
            except OffsetOutOfRange as problem:
                check_loss(problem, self._settings)
                earliest = _positions(self.earliest())
                body["start"] = {
                    partition: max(offset, earliest.get(partition, 0))
                    for partition, offset in body["start"].items()
                }
                continue
            return _offsets(answer, "end"), _offsets(answer, "latest")

    def ranges(self, start: Offsets, stop: Offsets) -> list[OffsetRange]:
        """Return the ranges between two offsets, without removed messages where the options allow that."""
        if not self._settings.fail_on_data_loss:
            earliest = self.earliest()
            if earliest[TOPIC_ID] != stop[TOPIC_ID]:
                raise with_hint_note(TopicReplaced(topic=self._settings.topic))
            start = {**start}
            for partition, end in _positions(stop).items():
                begin, first = start.get(partition, 0), min(earliest.get(partition, 0), end)
                if begin < first:
                    log_loss(self._settings.topic, int(partition), begin, first)
                    start[partition] = first
        return split_ranges(start, stop, self._settings.partitions_min)

    def _at_time(self, moment: str) -> Offsets:
        """Return the first offsets at or after a time, by a consume without a group."""
        before = self.earliest()
        body = {"from": {"timestamp": moment}, "limit": 1}
        answer = self._client.post_json(topic_path(self._settings.topic, "consume"), body)
        found = {partition: int(offset) for partition, offset in answer["nextOffsets"].items()}
        for message in answer["messages"]:
            found[str(message["partition"])] -= 1
        if self.earliest()[TOPIC_ID] != before[TOPIC_ID]:
            raise with_hint_note(TopicReplaced(topic=self._settings.topic))
        return {TOPIC_ID: before[TOPIC_ID], **{number: found[number] for number in sorted(found, key=int)}}

    def _ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._client.post_json(topic_path(self._settings.topic, "plan"), body)


def split_ranges(start: Offsets, stop: Offsets, partitions_min: int) -> list[OffsetRange]:
    """Return the ranges between two offsets: at least `partitions_min` tasks share a big batch."""
    ends = _positions(stop)
    total = sum(max(end - start.get(partition, 0), 0) for partition, end in ends.items())
    share = max(-(-total // partitions_min), SPLIT_MESSAGES_MIN)
    ranges: list[OffsetRange] = []
    for partition, end in ends.items():
        begin = start.get(partition, 0)
        pieces = -(-(end - begin) // share)
        for piece in range(pieces):
            cut = begin + (end - begin) * piece // pieces
            next_cut = begin + (end - begin) * (piece + 1) // pieces
            ranges.append(OffsetRange(stop[TOPIC_ID], int(partition), cut, next_cut))
    return ranges


def cut_at(end: Offsets, target: Offsets) -> Offsets:
    """Return offsets no later than a target; partitions that it does not have are left to the next run."""
    return {name: min(offset, target[name]) for name, offset in end.items() if name in target}


def check_loss(problem: OffsetOutOfRange, settings: SourceOptions) -> int:
    """Return the earliest offset, where the query may continue there; else raise what was removed."""
    offset, earliest = int(problem.values.get("offset", 0)), int(problem.values.get("earliest", 0))
    if offset >= earliest:
        raise problem
    if settings.fail_on_data_loss:
        hint = (
            f"The messages {offset} to {earliest - 1} are gone: retention or CLEAR removed them before this "
            "query read them. With the option failOnDataLoss 'false' it continues at the earliest offset."
        )
        raise with_hint_note(OffsetOutOfRange(hint=hint, **problem.values)) from None
    return earliest


def log_loss(topic: str, partition: int, start: int, stop: int) -> None:
    """Log a warning about messages that were removed before they were read."""
    log.warning(
        "messages were removed before they were read topic=%s partition=%d first=%d last=%d count=%d",
        topic,
        partition,
        start,
        stop - 1,
        stop - start,
    )


def _offsets(answer: Mapping[str, Any], which: str) -> Offsets:
    """Return one set of offsets of a plan, always in the same order: Spark compares their text."""
    offsets = answer[which]
    return {
        TOPIC_ID: answer["topicId"],
        **{partition: int(offsets[partition]) for partition in sorted(offsets, key=int)},
    }


def _positions(offsets: Offsets) -> Offsets:
    """Return the offsets of the partitions, without the topic's id."""
    return {partition: offset for partition, offset in offsets.items() if partition != TOPIC_ID}
