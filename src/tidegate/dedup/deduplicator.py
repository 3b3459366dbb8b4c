"""Deduplication for a Python consumer of any source, without Spark.

Each call is one batch of one partition in a checkpoint folder, in the files that a Spark job would write
(`<folder>/state/<name>/e0/0/…`): it is committed atomically before its outcomes are returned.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import numpy as np

from tidegate.checkpoint.backends.rocksdb_options import RocksSettings
from tidegate.checkpoint.batch import open_batch
from tidegate.checkpoint.commit import OpenBatch
from tidegate.checkpoint.commit_record import RunFacts
from tidegate.checkpoint.local.lock import FolderLock
from tidegate.checkpoint.local.pool import pool
from tidegate.checkpoint.local.store import ROOT_VARIABLE
from tidegate.checkpoint.settings import BatchRequest, StateSettings
from tidegate.checkpoint.snapshotter import wait_for_snapshots
from tidegate.checkpoint.store import operator_store
from tidegate.dedup.columns import Bytes, Longs
from tidegate.dedup.decision import DUPLICATE, OUTCOMES, BatchColumns, check_times, counts_of, decide
from tidegate.dedup.deduplicator_checkpoint import (
    RecentOutcomes,
    check_epochs,
    folder_of,
    lock_deduplication,
    max_parallelism_of,
    next_number,
    recent_of,
)
from tidegate.dedup.deduplicator_input import (
    VOID,
    InputKeys,
    as_list,
    check_lengths,
    keys_of,
    offsets_of,
    times_of,
)
from tidegate.dedup.identity import (
    DIGEST_EXACT,
    DIGEST_XXHASH,
    UNNAMED,
    DedupIdentity,
    check_identity,
    digest_kind,
    read_identity,
)
from tidegate.dedup.settings import (
    EXPECTED_RATE_MAX,
    SNAPSHOT_CHANGES_BYTES_MAX,
    SegmentRule,
    SegmentSettings,
    default_rocks,
    is_rate,
)
from tidegate.dedup.statistics import Additions, notes_after
from tidegate.dedup.store.keys import segments_in
from tidegate.dedup.store.store import SegmentStore, SegmentStoreFactory
from tidegate.errors import StateInvalid, StateMismatch, ValueInvalid
from tidegate.model.clock import Clock, SystemClock
from tidegate.model.durations import parse_duration
from tidegate.model.epoch import EPOCH

log = logging.getLogger(__name__)

Message = TypeVar("Message")

# A call may have only a few messages: a snapshot after every tenth would cost more than everything else.
SNAPSHOT_EVERY_CALLS = 200

_PLAN_ID = "consumer"


class Deduplicator:
    """Durable detection of messages whose key was seen within a retention of event time.

    The rule is that of `tide.deduplicate`: of one key, a message is a duplicate when a stored time is less
    than the retention away from its own, before or after; it is late when it is older than the newest event
    time of the calls before, less the retention; else it is unique, and its key and time are stored. Inside
    one call the earliest event time wins, then the lowest offset, then the first in the call.

    What holds when the consumer, or the machine, dies:

    - the outcomes of `check` are stored and synced to the disk before it returns. A call that did not return
      has stored all of its messages or none.
    - With `offsets`, a message is known by its key, event time and offset. When it is delivered again,
      because the consumer died after `check` and before it acknowledged, the outcome is the same as the first
      time: "unique" for the one that was unique. So with a source that delivers at least once, no first
      occurrence is lost and no duplicate is returned as unique; the consumer's writes must be idempotent, as
      always with such a source. This holds while a message is redelivered before later calls have moved the
      newest event time so far that its time, or the one that it was a duplicate of, has left the retention.
      (Its own call may do so.)
    - Without `offsets`, a redelivered message looks like a duplicate of itself. No duplicate is ever returned
      as unique; but messages that were checked and not yet forwarded when the consumer died are dropped when
      they are redelivered. That is at-most-once for the messages of the last call.

    The key is stored as 16 bytes (two 64-bit hashes), the same as a Spark job stores: two different keys
    collide with a probability of 2^-128 for each pair. `exact_keys=True` stores the key itself. A checkpoint
    of `tide.deduplicate` with the same name, retention, interval and key types can be continued here once
    that query has stopped; the query cannot continue in that folder afterwards. One consumer has a folder at
    a time.

    Used by one thread at a time; others wait. Close it, or use it in a `with` block.
    """

    def __init__(  # noqa: PLR0913 - a public door: keywords, each with a default
        self,
        name: str,
        folder: str | os.PathLike[str],
        retention: str | dt.timedelta,
        *,
        interval: str | dt.timedelta | None = None,
        exact_keys: bool = False,
        rocks: RocksSettings | None = None,
        expected_rate: float | None = None,
        time_unit: Literal["ms", "us"] = "ms",
        clock: Clock | None = None,
    ) -> None:
        """Open a deduplication in a folder, which is created if it does not exist.

        `interval` is the event time of a segment: half of the retention, 60 s at least, unless given.
        `expected_rate` is the number of messages expected per second; filters are sized for it. `time_unit`
        is the unit of event times that are whole numbers: milliseconds, as in Kafka and Spark. StateInvalid
        if another consumer has the folder, StateMismatch if it holds a deduplication of another kind.
        """
        _check_kinds(name, exact_keys, rocks)
        self.name = name
        self.folder = folder_of(folder, name)
        interval_us = None if interval is None else _us(interval, "interval")
        self._rule = _rule(name, _us(retention, "retention"), interval_us)
        self._exact_keys = exact_keys
        self._rocks = rocks or default_rocks()
        self._expected_keys = _expected_keys(expected_rate, self._rule)
        self._number_us = _number_us(time_unit)
        self._clock = clock or SystemClock()
        self._mutex = threading.Lock()
        self._segment_settings(with_offsets=False)  # refuses a name that is no folder
        self._checkpoint_store = operator_store(str(self.folder), name)
        self._lock: FolderLock | None = lock_deduplication(self.folder, name)
        try:
            check_epochs(self._checkpoint_store)
            self._identity = self._known_identity()
            self._max_parallelism = max_parallelism_of(self._checkpoint_store)
            self._number = next_number(self._checkpoint_store)
            self._recent: RecentOutcomes | None = recent_of(self._checkpoint_store, self._number - 1)
        except BaseException:
            self._lock.release()
            raise
        self._start_us = self._clock.now_us()
        self._local_folder: Path | None = None
        self.counts = dict.fromkeys(OUTCOMES, 0)

    def check(self, keys: Any, times: Any, offsets: Any = None) -> Outcomes:
        """Return the outcome of each message, and store the new ones; on the disk before this returns.

        `keys` are texts, bytes, whole numbers, other plain values or tuples of them, None included; or an
        Arrow array, or an Arrow table with a column for each part of the key. They are of one type in every
        call; decimals must be an Arrow array, which fixes their precision. `times` are datetimes (UTC if
        they have no zone), whole numbers since 1970, or an Arrow array of either. `offsets` are the positions
        of the messages in the source: a number, or a partition and a number where the source has several.
        Pass them in every call, or in none.
        """
        input_keys = keys_of(keys)
        times_us = times_of(times, self.name, self._number_us)
        check_times(times_us)  # before the first call fixes the kinds of the keys
        positions = None if offsets is None else offsets_of(offsets)
        check_lengths([len(input_keys), len(times_us), *([] if positions is None else [len(positions)])])
        with self._mutex:
            if self._lock is None:
                raise StateInvalid(operator=self.name, reason="it was closed. Open it again.")
            if not len(input_keys):
                return Outcomes.none()
            identity = self._identity_for(input_keys, with_offsets=positions is not None)
            kinds = tuple(digest_kind(kind) for _, kind in identity.columns)
            column = input_keys.column(kinds, self._max_parallelism, exact=self._exact_keys)
            # Messages with equal key, time and offset are decided in their order in the call.
            rows = BatchColumns(column, times_us, positions, lambda at: at.astype(np.uint64))
            outcomes = self._run_call(rows, lambda: self._accept(identity))
            for outcome, count in outcomes.counts.items():
                self.counts[outcome] += count
            return outcomes

    def unique(
        self,
        messages: Iterable[Message],
        key: Callable[[Message], Any],
        time: Callable[[Message], Any],
        offset: Callable[[Message], Any] | None = None,
        late: Callable[[Message], object] | None = None,
    ) -> list[Message]:
        """Return the messages that are new, in their order; they are stored before this returns.

        `key`, `time` and `offset` are functions of a message that return what `check` takes. Late messages
        are passed to `late`; without it they are left out, and counted in `counts`, as duplicates are.
        """
        _check_calls({"key": key, "time": time}, {"offset": offset, "late": late})
        batch = as_list(messages, "the messages")
        offsets = None if offset is None else [offset(message) for message in batch]
        outcomes = self.check(
            [key(message) for message in batch], [time(message) for message in batch], offsets
        ).outcome
        if late is not None:
            for message, outcome in zip(batch, outcomes, strict=True):
                if outcome == "late":
                    late(message)
        return [message for message, outcome in zip(batch, outcomes, strict=True) if outcome == "unique"]

    def close(self) -> None:
        """Close the files and release the folder; all outcomes that were returned are stored already.

        Waits for a snapshot that is being written: nothing is written in the folder afterwards.
        """
        with self._mutex:
            lock, self._lock = self._lock, None
            if lock is None:
                return
            try:
                local = None if self._local_folder is None else pool().take(self._local_folder)
                if local is not None:
                    local.release()
                wait_for_snapshots(self._checkpoint_store)
            finally:
                lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- one call -----------------------------------------------------------------------------------------

    def _run_call(self, rows: BatchColumns, accept: Callable[[], None]) -> Outcomes:
        """Decide and publish one call; after an error the next call reads the checkpoint again."""
        check_epochs(self._checkpoint_store)
        if self._recent is None:
            self._number = next_number(self._checkpoint_store)
        number = self._number
        recent = self._recent or recent_of(self._checkpoint_store, number - 1)
        self._recent = None
        settings = self._settings(with_offsets=rows.offsets is not None)
        with open_batch(self._batch_request(number), settings, self._clock) as batch:
            if batch.replayed:
                raise StateMismatch(operator=self.name, reason="another consumer works in the same folder.")
            self._local_folder = settings.local_directory(self._clock).folder(
                self._checkpoint_store, batch.epoch.number, 0
            )
            outcomes, recent = publish_call(batch, rows, recent, self._rule, accept)
        self._number, self._recent = number + 1, recent
        return outcomes

    def _batch_request(self, number: int) -> BatchRequest:
        attempt = f"{os.uname().nodename}.{os.getpid()}.{self._start_us}.{number}.{self._clock.now_us()}"
        return BatchRequest(
            checkpoint=str(self.folder),
            operator=self.name,
            partition=0,
            parallelism=1,
            max_parallelism=self._max_parallelism,
            number=number,
            plan_id=_PLAN_ID,
            attempt=attempt,
        )

    def _settings(self, *, with_offsets: bool) -> StateSettings:
        named = os.environ.get(ROOT_VARIABLE)
        return StateSettings(
            backend=SegmentStoreFactory(self._segment_settings(with_offsets=with_offsets), self._rocks),
            local_root=named or str(self.folder / "local"),
            snapshot_every_batches=SNAPSHOT_EVERY_CALLS,
            snapshot_changes_bytes_max=SNAPSHOT_CHANGES_BYTES_MAX,
        )

    def _segment_settings(self, *, with_offsets: bool) -> SegmentSettings:
        return SegmentSettings(
            store=self.name,
            retention_us=self._rule.retention_us,
            interval_us=self._rule.interval_us,
            exact_keys=self._exact_keys,
            with_offsets=with_offsets,
            expected_keys=self._expected_keys,
        )

    # ---- identity -----------------------------------------------------------------------------------------

    def _known_identity(self) -> DedupIdentity | None:
        """Return the stored identity after a check against the arguments; None before the first call."""
        stored = read_identity(self._checkpoint_store, self.name)
        if stored is None:
            return None
        return check_identity(
            self._checkpoint_store,
            self._own_identity(stored.columns, with_offsets=stored.with_offsets),
            self.name,
        )

    def _identity_for(self, keys: InputKeys, *, with_offsets: bool) -> DedupIdentity:
        """Return the identity, made from the first call's keys and offsets and stored by `_accept`."""
        if self._identity is not None:
            keys.check(tuple(digest_kind(kind) for _, kind in self._identity.columns), self.name)
            own = self._own_identity(self._identity.columns, with_offsets=with_offsets)
            return check_identity(self._checkpoint_store, own, self.name)
        if VOID in keys.kinds:
            reason = (
                "the first call has a part of the key that is None in every message: its type is not known"
            )
            raise ValueInvalid(place="the keys", reason=reason)
        if self._exact_keys and "double" in keys.kinds:
            hint = "Leave exact_keys out, or give such a part of the key as a text."
            raise ValueInvalid(place="the keys", reason="a float is not stored as an exact key", hint=hint)
        return self._own_identity(tuple((UNNAMED, kind) for kind in keys.kinds), with_offsets=with_offsets)

    def _accept(self, identity: DedupIdentity) -> None:
        """Store the identity with the first call that is valid, before anything of the call is stored."""
        self._identity = check_identity(self._checkpoint_store, identity, self.name)

    def _own_identity(self, columns: tuple[tuple[str, str], ...], *, with_offsets: bool) -> DedupIdentity:
        return DedupIdentity(
            retention_us=self._rule.retention_us,
            interval_us=self._rule.interval_us,
            exact_keys=self._exact_keys,
            with_offsets=with_offsets,
            columns=columns,
            digest=DIGEST_EXACT if self._exact_keys else DIGEST_XXHASH,
        )


def _check_kinds(name: object, exact_keys: object, rocks: object) -> None:
    """Raise ValueInvalid for arguments of a wrong type, before anything is created."""
    if not isinstance(name, str):
        raise ValueInvalid(place="the name", reason=f"it is {name!r}, not a text")
    if not isinstance(exact_keys, bool):
        raise ValueInvalid(place="exact_keys", reason=f"it is {exact_keys!r}, neither True nor False")
    if rocks is not None and not isinstance(rocks, RocksSettings):
        raise ValueInvalid(place="rocks", reason=f"it is {rocks!r}, not RocksSettings")


def _check_calls(must: Mapping[str, object], may: Mapping[str, object]) -> None:
    """Raise ValueInvalid for arguments that must be functions and are not."""
    present = {**must} | {what: found for what, found in may.items() if found is not None}
    for what, found in present.items():
        if not callable(found):
            reason = f"it is {found!r}; give a function that takes a message, such as lambda m: m['id']"
            raise ValueInvalid(place=what, reason=reason)


def _rule(name: str, retention_us: int, interval_us: int | None) -> SegmentRule:
    try:
        return SegmentRule.of(retention_us, interval_us)
    except StateInvalid as problem:
        reason = str(problem.values["reason"])
        raise StateInvalid(operator=name, reason=reason, hint=problem.hint) from problem


def _number_us(time_unit: Any) -> int:
    """Return the microseconds of one unit of a whole number."""
    found = {"ms": 1_000, "us": 1}.get(time_unit) if isinstance(time_unit, str) else None
    if found is None:
        raise ValueInvalid(place="time_unit", reason=f"{time_unit!r} is neither 'ms' nor 'us'")
    return found


def _us(value: Any, what: str) -> int:
    if isinstance(value, dt.timedelta):
        return value // dt.timedelta(microseconds=1)
    if not isinstance(value, str):
        reason = f"it is {value!r}; write a text with its unit, such as '100 days' or '90 s', or a timedelta"
        raise ValueInvalid(place=f"the {what}", reason=reason)
    return parse_duration(value).us


def _expected_keys(rate: Any, rule: SegmentRule) -> int | None:
    """Return the number of keys of a whole segment at a rate in messages per second."""
    if rate is None:
        return None
    if not is_rate(rate):
        most = f"{EXPECTED_RATE_MAX} at most"
        reason = f"it is {rate!r}; give how many messages come in a second, {most}, or leave it out"
        raise ValueInvalid(place="expected_rate", reason=reason)
    return rule.keys_at(float(rate))


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The outcomes of the messages of one call, in their order.

    `outcome` has "unique", "duplicate" or "late" for each; `first_us` the earliest time that a duplicate is
    in conflict with, in microseconds since 1970, None for others; `counts` the number of each outcome.
    """

    outcome: list[str]
    first_us: list[int | None]
    counts: dict[str, int]

    def __len__(self) -> int:
        return len(self.outcome)

    @classmethod
    def of(cls, outcome: Bytes, first_us: Longs) -> Self:
        """Return the outcomes of a decision."""
        is_duplicate = (outcome == DUPLICATE).tolist()
        firsts = [us if is_one else None for us, is_one in zip(first_us.tolist(), is_duplicate, strict=True)]
        return cls([OUTCOMES[one] for one in outcome.tolist()], firsts, counts_of(outcome))

    @classmethod
    def none(cls) -> Self:
        """Return the outcomes of no messages."""
        return cls([], [], dict.fromkeys(OUTCOMES, 0))

    @property
    def first_time(self) -> list[dt.datetime | None]:
        """Return the first times as datetimes in UTC."""
        return [None if us is None else EPOCH + dt.timedelta(microseconds=us) for us in self.first_us]


def publish_call(
    batch: OpenBatch,
    rows: BatchColumns,
    recent: RecentOutcomes,
    rule: SegmentRule,
    accept: Callable[[], object],
) -> tuple[Outcomes, RecentOutcomes]:
    """Decide and publish the rows of a call; return their outcomes, and those to keep for redeliveries.

    `accept` is called after the rows were checked, before anything of them is stored.
    """
    store = batch.backend
    if not isinstance(store, SegmentStore):
        raise StateMismatch(operator=batch.request.operator, reason="its state does not lie in segments.")
    stream_us = batch.newest_event_us
    store.expire(stream_us)
    before = store.lookup_counters()
    outcome, first_us = np.zeros(len(rows), np.uint8), np.zeros(len(rows), np.int64)
    recalled = recent.recall(rows, outcome, first_us)
    rest = np.arange(len(rows))
    if len(recalled):
        rest = np.setdiff1d(rest, recalled, assume_unique=True)
    decision = decide(_part(rows, rest), store, rule, stream_us, is_redelivered=True)
    store.check_segments(segments_in(decision.changes))
    accept()
    outcome[rest], first_us[rest] = decision.outcome, decision.first_us
    newest_us = max([int(rows.times_us.max()), *([] if stream_us is None else [stream_us])])
    recent = recent.after(rows, outcome, first_us, (batch.request.number, newest_us - rule.retention_us))
    for table in recent.table.to_batches():
        batch.write_out(table)
    added = Additions(store.settings)
    added.add(decision.changes)
    outcomes = Outcomes.of(outcome, first_us)
    facts = RunFacts(
        rows_in=len(rows),
        rows_out=outcomes.counts["unique"],
        newest_event_ms=newest_us // 1_000,
        newest_event_us=newest_us,
        counts=outcomes.counts | store.lookup_counters().since(before),
        notes=notes_after(store, rule, stream_us, added),
    )
    batch.publish(decision.changes, facts)
    return outcomes, recent


def _part(rows: BatchColumns, numbers: Longs) -> BatchColumns:
    """Return some of the rows, in their order."""
    if len(numbers) == len(rows):
        return rows
    offsets = None if rows.offsets is None else rows.offsets[numbers]
    selected = rows.keys.take(numbers), rows.times_us[numbers], offsets
    return BatchColumns(*selected, lambda tied: rows.tie(numbers[tied]))
