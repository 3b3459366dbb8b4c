"""Batches in parts: a batch is written whole and once, whoever tries it how often."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topics.bench import ADA, NOW_US, Bench, build
from tidegate.errors import OwnedByAnother, PartitionNotFound, RequestInvalid, TopicNotFound
from tidegate.ingest import batch_commit as module
from tidegate.ingest.batch_commit import (
    PARTS_RETENTION_SECONDS,
    BatchCommitResult,
    BatchParts,
    check_partitions,
    stage_old,
)
from tidegate.ingest.publish import Sender
from tidegate.model.ids import SnowflakeSource
from tidegate.storage.keys import KeySpace, prefix_range
from tidegate.storage.memory import CHECKPOINT_FILE, MemoryEngine
from tidegate.testing.clock import ManualClock
from tidegate.topics.definitions import Topic
from tidegate.topics.staged_batches import BatchName

PATIENCE_SECONDS = 60
# What the engine of an earlier version had: `tests/topics/groups/test_before_users.py` says more.
GOLDEN = Path(__file__).parents[1] / "topics" / "before_users.bin.z"
PART_BEFORE = 402371335159808004
QUERY = "8c18b11f-003b-426d-a6e3-25c55cc1f274"


@dataclass
class Desk:
    """A topic of two partitions, and the parts that are stored for it."""

    bench: Bench
    topic: Topic
    parts: BatchParts

    def store(self, batch: int, payloads: Sequence[str], writer: str = QUERY, user: str = ADA) -> int | None:
        name = BatchName(writer, batch)
        change = self.parts.plan_part(self.topic, name, user, stream(payloads), len(payloads))
        return self.bench.committer.submit(change).result(PATIENCE_SECONDS)

    def commit(
        self, batch: int, part_ids: Sequence[int | None], writer: str = QUERY, user: str = ADA
    ) -> BatchCommitResult:
        ids = [part for part in part_ids if part is not None]
        change = self.parts.plan_commit(self.topic, BatchName(writer, batch), user, ids, lasts=True)
        return self.bench.committer.submit(change).result(PATIENCE_SECONDS)

    def abort(self, batch: int, part_ids: Sequence[int], writer: str = QUERY, user: str = ADA) -> int:
        change = self.parts.plan_abort(self.topic, BatchName(writer, batch), user, part_ids)
        return self.bench.committer.submit(change).result(PATIENCE_SECONDS)

    def messages(self) -> list[str]:
        return sorted(text for number in range(2) for text in self.bench.payloads(self.topic, number))

    def kept(self) -> int:
        """Count everything that is stored of parts and writers."""
        return sum(1 for _ in self.bench.engine.scan(prefix_range(KeySpace.TOPIC_PART)))


def stream(payloads: Sequence[str], keys: Sequence[str] | None = None) -> bytes:
    columns = {"payload": pa.array(payloads, pa.string())}
    if keys is not None:
        columns["key"] = pa.array(keys, pa.string())
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def made(engine: MemoryEngine, clock: ManualClock) -> Desk:
    bench = build(engine, clock)
    known = {topic.name: topic for topic in bench.directory}
    topic = known.get("app.events") or bench.create(partitions=2)
    return Desk(bench, topic, BatchParts(engine, bench.log, SnowflakeSource(clock), clock, bench.dedup))


@pytest.fixture
def desk() -> Iterator[Desk]:
    built = made(MemoryEngine(), ManualClock(NOW_US))
    yield built
    built.bench.committer.close()


def test_parts_are_unseen_until_their_batch_is_committed_and_gone_after(desk: Desk) -> None:
    first, second = desk.store(0, ["1", "2"]), desk.store(0, ["3"])
    assert desk.messages() == []
    assert desk.commit(0, [first, second]) == BatchCommitResult(committed=True, messages=3)
    assert desk.messages() == ["1", "2", "3"]
    assert desk.kept() == 1, "only what the writer committed last is left"


def test_batch_that_is_committed_again_is_not_written_again(desk: Desk) -> None:
    part = desk.store(4, ["1"])
    desk.commit(4, [part])
    assert desk.commit(4, [part]) == BatchCommitResult(committed=False, messages=1)
    assert desk.commit(3, []) == BatchCommitResult(committed=False, messages=0)
    assert desk.store(4, ["2"]) is None, "nothing is stored for a batch that is committed"
    assert desk.messages() == ["1"]


def test_only_parts_that_the_commit_names_count(desk: Desk) -> None:
    """A task that ran twice, and a batch that ran again with other rows."""
    desk.store(0, ["1"])
    second = desk.store(0, ["2"])
    assert desk.commit(0, [second, second]) == BatchCommitResult(committed=True, messages=1)
    assert desk.messages() == ["2"]
    assert desk.kept() == 1, "the part that nobody named went with the commit"


def test_empty_batch_is_remembered(desk: Desk) -> None:
    assert desk.commit(0, []) == BatchCommitResult(committed=True, messages=0)
    assert desk.commit(0, []) == BatchCommitResult(committed=False, messages=0)


def test_two_writers_share_a_topic(desk: Desk) -> None:
    one, other = desk.store(0, ["1"]), desk.store(0, ["2"], writer="other")
    desk.commit(0, [one])
    assert desk.commit(0, [other], writer="other") == BatchCommitResult(committed=True, messages=1)
    assert desk.messages() == ["1", "2"]


def test_part_of_another_batch_or_writer_is_refused_and_nothing_is_written(desk: Desk) -> None:
    mine, later, theirs = desk.store(0, ["1"]), desk.store(1, ["2"]), desk.store(0, ["3"], writer="other")
    for wrong in (later, theirs, 12345):
        with pytest.raises(RequestInvalid, match="is not there"):
            desk.commit(0, [mine, wrong])
    assert desk.messages() == []
    assert desk.commit(0, [mine]).committed


def test_part_that_goes_while_its_batch_is_planned_stops_the_commit(desk: Desk) -> None:
    part = desk.store(0, ["1"])
    assert part is not None
    change = desk.parts.plan_commit(desk.topic, BatchName(QUERY, 0), ADA, [part], lasts=True)
    assert desk.abort(0, [part]) == 1
    with pytest.raises(RequestInvalid, match="is not there"):
        desk.bench.committer.submit(change).result(PATIENCE_SECONDS)
    assert desk.messages() == []


def test_two_commits_of_one_batch_that_were_planned_together_write_once(desk: Desk) -> None:
    part = desk.store(0, ["1"])
    assert part is not None
    name = BatchName(QUERY, 0)
    changes = [desk.parts.plan_commit(desk.topic, name, ADA, [part], lasts=True) for _ in range(2)]
    outcomes = [future.result(PATIENCE_SECONDS) for future in map(desk.bench.committer.submit, changes)]
    assert [outcome.committed for outcome in outcomes] == [True, False]
    assert desk.messages() == ["1"]


def test_abort_removes_the_named_parts_and_no_other(desk: Desk) -> None:
    gone, kept = desk.store(0, ["1"]), desk.store(0, ["2"])
    assert gone is not None
    assert desk.abort(0, [gone, 99]) == 1
    assert desk.abort(0, [gone]) == 0
    assert desk.commit(0, [kept]).committed
    assert desk.messages() == ["2"]


def test_deleted_topic_takes_its_parts_and_writers_along(desk: Desk) -> None:
    part = desk.store(0, ["1"])
    assert part is not None
    change = desk.parts.plan_commit(desk.topic, BatchName(QUERY, 0), ADA, [part], lasts=True)
    desk.commit(0, [], writer="other")
    desk.bench.delete(desk.topic)
    assert desk.kept() == 0
    with pytest.raises(TopicNotFound):
        desk.bench.committer.submit(change).result(PATIENCE_SECONDS)
    with pytest.raises(TopicNotFound):
        desk.store(0, ["1"])
    assert desk.kept() == 0


def test_too_large_batch_is_refused_with_the_limit_and_the_way_out(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH_MESSAGES_MAX", 2)
    part = desk.store(7, ["1", "2", "3"])
    with pytest.raises(RequestInvalid, match=r"Batch 7 has 3 messages in .* the most is 2 in") as raised:
        desk.commit(7, [part])
    assert "maxMessagesPerBatch" in raised.value.hint
    assert desk.messages() == []


def test_old_parts_and_writers_that_never_come_again_go_after_a_day(desk: Desk) -> None:
    desk.store(0, ["1"])
    once = desk.parts.plan_commit(desk.topic, BatchName("once", 0), ADA, [], lasts=False)
    desk.bench.committer.submit(once).result(PATIENCE_SECONDS)
    desk.commit(0, [], writer="lasting")
    assert desk.parts.old(desk.topic) == []
    desk.bench.clock.advance(PARTS_RETENTION_SECONDS + 1)
    young = desk.store(1, ["2"])
    for old in desk.parts.old(desk.topic):
        desk.bench.committer.submit(partial(stage_old, old=old)).result(PATIENCE_SECONDS)
    assert desk.parts.old(desk.topic) == []
    assert desk.kept() == 4, "the writer that lasts, the young part's head, its content and its writer"
    assert desk.commit(1, [young]).committed
    assert not desk.commit(0, [], writer="lasting").committed


def test_keys_choose_the_partition_as_for_a_publish(desk: Desk) -> None:
    keys = [f"k{number}" for number in range(20)]
    content = stream([str(number) for number in range(20)], keys)
    change = desk.parts.plan_part(desk.topic, BatchName(QUERY, 0), ADA, content, 20)
    desk.commit(0, [desk.bench.committer.submit(change).result(PATIENCE_SECONDS)])
    for number in range(2):
        mine = [str(n) for n, key in enumerate(keys) if desk.topic.partition_of(key) == number]
        assert desk.bench.payloads(desk.topic, number) == mine
    with pytest.raises(PartitionNotFound):
        check_partitions(desk.topic, [None, 0, 2])


@pytest.mark.parametrize(("writer", "number"), [("", 0), ("x" * 201, 0), ("a\nb", 0), ("w", -1)])
def test_wrong_names_of_batches_are_refused(writer: str, number: int) -> None:
    with pytest.raises(RequestInvalid):
        BatchName(writer, number)


steps = st.lists(
    st.tuples(st.sampled_from(["run", "run and crash", "commit, answer lost", "abort"]), st.integers(1, 3)),
    max_size=12,
)


@given(steps)
@settings(max_examples=30)
def test_each_batch_is_there_once_whatever_fails(tried: list[tuple[str, int]]) -> None:
    """A query that is tried again after each failure, as Spark does: the same batch until it is done."""
    engine, clock = MemoryEngine(), ManualClock(NOW_US)
    desk = made(engine, clock)
    batch = 0
    expected: list[str] = []
    for attempt, (how, count) in enumerate(tried):
        rows = [f'"{batch}.{attempt}.{number}"' for number in range(count)]
        part = desk.store(batch, rows)
        if how == "abort" and part is not None:
            desk.abort(batch, [part])
        elif how == "run and crash":
            desk.bench.committer.close()
            engine.crash()
            desk = made(engine, clock)
        else:
            if desk.commit(batch, [part]).committed:
                expected += rows
            # Without an answer the same batch runs again, with other rows; with one the next comes.
            batch += how == "run"
    assert desk.messages() == sorted(expected)
    assert len({text.split(".")[0] for text in expected}) == len({tuple(t.split(".")[:2]) for t in expected})
    desk.bench.committer.close()


EVE = "default/eve"


def test_writer_of_another_user_is_refused_and_its_batches_go_on(desk: Desk) -> None:
    """One commit of a high number would make all batches of the other count as committed."""
    first = desk.store(0, ["1"])
    assert first is not None
    for attack in (
        partial(desk.store, 0, ["evil"]),
        partial(desk.store, 10**6, ["evil"]),
        partial(desk.commit, 0, [first]),
        partial(desk.commit, 10**6, []),
        partial(desk.abort, 0, [first]),
    ):
        with pytest.raises(
            OwnedByAnother, match=f"writer '{QUERY}' of topic 'app.events' belongs to another"
        ):
            attack(user=EVE)
    assert desk.commit(0, [first]).committed
    for attack in (
        partial(desk.commit, 0, []),
        partial(desk.commit, 1, []),
        partial(desk.store, 1, ["evil"]),
    ):
        with pytest.raises(OwnedByAnother):
            attack(user=EVE)
    assert desk.commit(1, [desk.store(1, ["2"])]).committed
    assert desk.messages() == ["1", "2"]


def test_writer_belongs_to_the_user_of_its_first_part_before_a_batch_is_committed(desk: Desk) -> None:
    desk.store(7, ["1"])
    desk.bench.clock.advance(PARTS_RETENTION_SECONDS - 1)
    mine = desk.store(8, ["2"])
    desk.bench.clock.advance(2)
    for old in desk.parts.old(desk.topic):
        desk.bench.committer.submit(partial(stage_old, old=old)).result(PATIENCE_SECONDS)
    with pytest.raises(OwnedByAnother):
        desk.store(8, ["evil"], user=EVE)
    assert desk.commit(8, [mine]).committed


def test_commits_of_two_users_that_were_planned_together_write_one(desk: Desk) -> None:
    names = (BatchName(QUERY, 0), ADA), (BatchName(QUERY, 0), EVE)
    changes = [desk.parts.plan_commit(desk.topic, name, user, [], lasts=True) for name, user in names]
    first, second = map(desk.bench.committer.submit, changes)
    assert first.result(PATIENCE_SECONDS).committed
    assert isinstance(second.exception(PATIENCE_SECONDS), OwnedByAnother)


@pytest.mark.parametrize("number", [2, 7, 2**62])
def test_jump_of_batches_without_parts_is_refused(desk: Desk, number: int) -> None:
    with pytest.raises(RequestInvalid, match=rf"Batch {number} .* none was committed"):
        desk.commit(number, [])
    assert desk.commit(0, []).committed
    with pytest.raises(RequestInvalid, match=rf"Batch {number} .* the last one committed is 0"):
        desk.commit(number, [])
    assert desk.commit(1, [desk.store(1, ["1"])]).committed
    assert desk.messages() == ["1"]


def test_batches_that_were_skipped_because_they_had_no_rows_are_no_jump(desk: Desk) -> None:
    assert desk.commit(5, [desk.store(5, ["1"])]).committed
    assert desk.commit(9, [desk.store(9, ["2"])]).committed
    assert desk.commit(10, []).committed
    assert desk.messages() == ["1", "2"]


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Desk]:
    """Parts and writers of a version that noted no owners, in topic `app.old`."""
    (tmp_path / CHECKPOINT_FILE).write_bytes(zlib.decompress(GOLDEN.read_bytes()))
    engine, clock = MemoryEngine.from_checkpoint(tmp_path), ManualClock(NOW_US + 10_000_000)
    bench = build(engine, clock)
    parts = BatchParts(engine, bench.log, SnowflakeSource(clock), clock, bench.dedup)
    yield Desk(bench, bench.directory.get("default", "app.old"), parts)
    bench.committer.close()


def test_writer_of_an_earlier_version_belongs_to_the_first_who_uses_it(old: Desk) -> None:
    before = len(old.messages())
    assert old.commit(3, [], writer="query") == BatchCommitResult(committed=False, messages=1)
    with pytest.raises(OwnedByAnother):
        old.commit(4, [], writer="query", user=EVE)
    with pytest.raises(OwnedByAnother):
        old.abort(4, [PART_BEFORE], writer="query", user=EVE)
    assert old.commit(4, [PART_BEFORE], writer="query").committed
    assert len(old.messages()) == before + 1
    assert old.store(0, ["again"], writer="once", user=EVE) is None


def test_producer_of_an_earlier_version_belongs_to_the_first_who_uses_it(old: Desk) -> None:
    sent = [b"0", b"1", b"2"]
    again = old.bench.publish(old.topic, sent, partitions=[0] * 3, sender=Sender("loader", 0, ADA))
    assert (again.stored_count, again.offsets.tolist()) == (0, [0, 1, 2])
    with pytest.raises(OwnedByAnother):
        old.bench.publish(old.topic, [b"evil"], partitions=[0], sender=Sender("loader", 3, EVE))
    more = old.bench.publish(old.topic, [b"3"], partitions=[0], sender=Sender("loader", 3, ADA))
    assert more.stored_count == 1


def test_bytes_of_writers_stay_readable(desk: Desk) -> None:
    """Golden: version 2; `before_users.bin.z` has version 1."""
    desk.commit(0, [])
    key = next(key for key, _ in desk.bench.engine.scan(prefix_range(KeySpace.TOPIC_PART)))
    assert (desk.bench.engine.get(key) or b"").hex() == (
        "9702d92438633138623131662d303033622d343236642d613665332d3235633535636331663237340000"
        "cf0006651728988000c3ab64656661756c742f616461"
    )
