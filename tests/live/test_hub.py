"""Changes reach everyone they matter to, once and in order, however slowly they read."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.live.follower import COLUMNS, TABLE, Follower, Where, above, in_room, inserted
from tidegate.errors import InvariantBroken, TableChanged, TableNotFound
from tidegate.live import table_feed
from tidegate.live.hub import LiveHub
from tidegate.model.changes import Change, Changes
from tidegate.model.tables import Row, Value
from tidegate.settings import LiveSettings
from tidegate.sql.expressions.compile import RowColumns, compile_select
from tidegate.testing.clock import ManualClock


def with_hub(
    test: Callable[[LiveHub], Awaitable[None]],
    limits: LiveSettings | None = None,
    clock: ManualClock | None = None,
) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        await test(LiveHub(limits or LiveSettings(), clock or ManualClock(), 1000, loop))

    asyncio.run(run())


async def settle() -> None:
    for _ in range(600):
        await asyncio.sleep(0)


def publish(hub: LiveHub, *changes: Change, user: str = "") -> None:
    hub.publish(Changes(TABLE, user, list(changes)))


class World:
    """A table, who writes to it, and who follows it."""

    def __init__(self, hub: LiveHub, seed: int) -> None:
        self.hub = hub
        self.random = random.Random(seed)
        self.table: dict[Value, Row] = {}
        self.followers: list[Follower] = []

    def step(self) -> None:
        act = self.random.random()
        if act < 0.5:
            self._write()
        elif act < 0.6 and len(self.followers) < 6:
            select = self.random.choice([Where(), above(5), in_room("a"), in_room("b")])
            follower = Follower(self.hub, select)
            follower.begin(self.table)
            self.followers.append(follower)
        elif act < 0.65 and self.followers:
            gone = self.followers.pop(self.random.randrange(len(self.followers)))
            self.hub.detach(gone.live)
        elif self.followers:
            follower = self.random.choice(self.followers)
            follower.is_full = not follower.is_full
            self._go_on(follower)

    def _write(self) -> None:
        changes: list[Change] = []
        for _ in range(self.random.choice([1, 1, 1, 2, 7])):
            key = self.random.randrange(8)
            old = self.table.get(key)
            new: Row | None = (key, self.random.choice("abc"), self.random.randrange(10))
            if old is not None and self.random.random() < 0.4:
                new = None
                del self.table[key]
                changes.append(Change("delete", old, None))
                continue
            if new is not None:
                self.table[key] = new
            changes.append(Change("insert" if old is None else "update", old, new))
        publish(self.hub, *changes)

    def _go_on(self, follower: Follower) -> None:
        if follower.is_lost:
            follower.begin(self.table)
        follower.catch_up()

    async def end(self) -> None:
        await settle()
        for follower in self.followers:
            follower.is_full = False
            self._go_on(follower)
        await settle()
        for follower in self.followers:
            self._go_on(follower)
            if not follower.is_lost:
                shown = {key: list(row) for key, row in self.table.items() if follower.select.matches(row)}
                assert follower.rows == shown
                seqs = [message["seq"] for message in follower.messages]
                assert seqs == sorted(set(seqs))


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([3, 30, 3000]), st.sampled_from([1, 3, 256]))
def test_every_follower_ends_with_the_rows_of_its_filter(seed: int, history: int, step: int) -> None:
    """Case 11: slow ones, late ones and those that lost changes, in any order of events."""

    async def run(hub: LiveHub) -> None:
        world = World(hub, seed)
        for _ in range(80):
            world.step()
            if world.random.random() < 0.5:
                await asyncio.sleep(0)
        await world.end()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_feed, "STEP_CHANGES", step)
        with_hub(run, LiveSettings(history_changes_max=history))


def test_nothing_is_kept_for_a_table_that_nobody_watches() -> None:
    async def run(hub: LiveHub) -> None:
        publish(hub, inserted(1, "a", 1))
        assert hub.seq == 1000
        assert not hub.watches(TABLE.id)
        # The number of before is no place to go on from: what happened until now was not counted.
        assert hub.begin(TABLE.id) == 1001
        assert hub.watches(TABLE.id)
        publish(hub, inserted(2, "a", 1), inserted(3, "a", 1))
        assert hub.begin(TABLE.id) == 1003

    with_hub(run)


def test_equal_subscriptions_share_their_bytes() -> None:
    async def run(hub: LiveHub) -> None:
        followers = [Follower(hub, above(0)) for _ in range(50)]
        for follower in followers:
            follower.begin({})
            follower.catch_up()
        publish(hub, inserted(1, "a", 1))
        await settle()
        assert {id(follower.writes[0]) for follower in followers} == {id(followers[0].writes[0])}

    with_hub(run)


def test_a_filter_runs_once_for_all_who_share_it() -> None:
    async def run(hub: LiveHub) -> None:
        tested: list[Row] = []

        def test(row: Row) -> bool:
            tested.append(row)
            return True

        for _ in range(20):
            follower = Follower(hub, Where("counted", test))
            follower.begin({})
            follower.catch_up()
        for room in range(200):
            other = Follower(hub, Where(("room", room), test, (1, str(room))))
            other.begin({})
            other.catch_up()
        publish(hub, inserted(1, "17", 1))
        await settle()
        assert len(tested) == 2, "the shared filter, and that of room 17"

    with_hub(run)


def test_rows_of_one_user_are_for_that_user_alone() -> None:
    async def run(hub: LiveHub) -> None:
        followers = {user: Follower(hub, Where(), user) for user in ("alice", "bob")}
        for follower in followers.values():
            follower.begin({})
        followers["alice"].catch_up()
        publish(hub, inserted(1, "a", 1), user="alice")
        publish(hub, inserted(1, "b", 1), user="bob")
        await settle()
        followers["bob"].catch_up()  # the same from the history as from the group
        assert followers["alice"].rows == {1: [1, "a", 1]}
        assert followers["bob"].rows == {1: [1, "b", 1]}

    with_hub(run)


def test_numbers_are_resumed_while_the_history_holds_them() -> None:
    async def run(hub: LiveHub) -> None:
        seq = hub.begin(TABLE.id)
        for key in range(5):
            publish(hub, inserted(key, "a", 1))
        follower = Follower(hub, Where())
        assert not hub.attach(follower.live, hub.seq + 1), "a number of another server"
        assert not hub.attach(follower.live, seq - 1)
        assert hub.attach(follower.live, seq + 2)
        await settle()
        follower.behind = True
        follower.catch_up()
        assert [message["seq"] for message in follower.messages] == [seq + 3, seq + 4, seq + 5]

    with_hub(run)


def test_changes_are_remembered_for_a_while_after_the_last_one_left() -> None:
    clock = ManualClock()

    async def run(hub: LiveHub) -> None:
        follower = Follower(hub, Where())
        follower.begin({})
        hub.sweep()
        hub.detach(follower.live)
        hub.sweep()
        clock.advance(9)
        hub.sweep()
        assert hub.watches(TABLE.id)
        follower.begin({})
        hub.sweep()
        clock.advance(100)
        hub.sweep()
        assert hub.watches(TABLE.id), "someone follows it again"
        hub.detach(follower.live)
        hub.sweep()
        clock.advance(11)
        hub.sweep()
        assert not hub.watches(TABLE.id)

    with_hub(run, LiveSettings(history_seconds=10), clock)


def test_a_dropped_table_ends_its_subscriptions_and_an_altered_one_begins_them_again() -> None:
    async def run(hub: LiveHub) -> None:
        first, second = Follower(hub, Where()), Follower(hub, Where())
        first.begin({})
        first.catch_up()
        hub.forget(TABLE.id, TableChanged(table="app.things"))
        await settle()
        assert first.is_lost
        assert not hub.watches(TABLE.id)
        second.begin({})
        second.catch_up()
        hub.forget(TABLE.id, TableNotFound(table="app.things", known=""))
        publish(hub, inserted(1, "a", 1))
        await settle()
        assert isinstance(second.problem, TableNotFound)
        assert not second.messages

    with_hub(run)


def test_a_row_that_a_filter_cannot_compute_is_left_out_and_counted() -> None:
    async def run(hub: LiveHub) -> None:
        select = compile_select(
            "SELECT id, 10 // n AS q, TIMESTAMP '2000-01-01' + INTERVAL 9000 YEAR AS t FROM app.things"
            " WHERE 10 // n > 1 OR id > 5",
            RowColumns(COLUMNS),
            [],
        )
        computing, slow, other = Follower(hub, select), Follower(hub, select), Follower(hub, Where())
        for follower in (computing, slow, other):
            follower.begin({})
        computing.catch_up()
        other.catch_up()
        for row in ((1, "a", 0), (2, "a", 5), (3, "a", 9)):
            publish(hub, inserted(*row))
        await settle()
        slow.catch_up()
        for follower in (computing, slow):
            assert follower.problem is None
            assert follower.rows == {2: [2, 2, None]}
        assert other.rows == {1: [1, "a", 0], 2: [2, "a", 5], 3: [3, "a", 9]}
        assert select.faults >= 4  # the filter of one row and a shown value of another, for both
        assert "zero" in str(select.first_fault)

    with_hub(run)


def test_a_filter_that_breaks_its_promise_ends_its_own_subscriptions_alone() -> None:
    def divide(row: Row) -> bool:
        return 1 // (row[2] if isinstance(row[2], int) else 1) > 0

    async def run(hub: LiveHub) -> None:
        broken, slow, sound = (
            Follower(hub, Where("d", divide)),
            Follower(hub, Where("d", divide)),
            Follower(hub, Where()),
        )
        for follower in (broken, slow, sound):
            follower.begin({})
        broken.catch_up()
        sound.catch_up()
        publish(hub, inserted(1, "a", 0))
        await settle()
        slow.catch_up()
        assert isinstance(broken.problem, InvariantBroken)
        assert isinstance(slow.problem, InvariantBroken)
        assert sound.rows == {1: [1, "a", 0]}

    with_hub(run)


def test_changes_from_many_threads_arrive_in_the_order_of_their_numbers() -> None:
    async def run(hub: LiveHub) -> None:
        follower = Follower(hub, Where())
        follower.begin({})
        follower.catch_up()

        def write(first: int) -> None:
            for key in range(first, first + 300):
                publish(hub, inserted(key, "a", 1))

        threads = [threading.Thread(target=write, args=(number * 1000,)) for number in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            await asyncio.sleep(0.001)
        await settle()
        assert len(follower.rows) == 1200
        assert [message["seq"] for message in follower.messages] == list(range(1002, 2202))

    with_hub(run)


def test_a_number_from_before_nobody_watched_is_no_place_to_go_on_from() -> None:
    async def run(hub: LiveHub) -> None:
        old = hub.begin(TABLE.id)
        hub.forget(TABLE.id, TableChanged(table="t"))
        publish(hub, inserted(1, "a", 1))  # nobody is told
        hub.begin(TABLE.id)
        follower = Follower(hub, above(0))
        assert not hub.attach(follower.live, old)

    with_hub(run)


def test_changes_of_other_columns_send_followers_back() -> None:
    async def run(hub: LiveHub) -> None:
        seq = hub.begin(TABLE.id, 1)
        follower = Follower(hub, above(0))
        assert hub.attach(follower.live, seq)
        altered = msgspec.structs.replace(TABLE, schema_id=2)
        hub.publish(Changes(altered, "", [inserted(1, "a", 1)]))
        assert not hub.watches(TABLE.id)
        newer = hub.begin(TABLE.id, 2)
        assert not hub.attach(follower.live, newer), "it knows the columns of before"
        with pytest.raises(TableChanged):
            hub.begin(TABLE.id, 1)

    with_hub(run)
