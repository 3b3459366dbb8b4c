"""Leases: one holder, rising fences, clocks that jump, and racing servers; on both databases."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest
from sqlalchemy import func, insert, select

from tests.catalog.conftest import OpenCatalog
from tidegate.catalog.database import Catalog
from tidegate.catalog.database_url import DatabaseAddress
from tidegate.catalog.leases import Lease
from tidegate.catalog.tables import ANSWERS
from tidegate.errors import InvariantBroken, LeaseHeld, LeaseLost
from tidegate.model.clock import SystemClock
from tidegate.testing.clock import START_US, ManualClock

TTL = 10.0
HOUR_US = 3_600_000_000


@dataclass
class Pair:
    """Two servers on one catalog, each with a clock of its own."""

    ours: Catalog
    theirs: Catalog
    clock: ManualClock
    their_clock: ManualClock

    def let_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.their_clock.advance(seconds)


@pytest.fixture
def pair(place: DatabaseAddress, clock: ManualClock, open_catalog: OpenCatalog) -> Pair:
    """Open one catalog twice."""
    their_clock = ManualClock()
    return Pair(open_catalog(place, clock), open_catalog(place, their_clock), clock, their_clock)


def test_a_lease_has_one_holder(pair: Pair) -> None:
    lease = pair.ours.leases.take("archive/a", "one", TTL)
    assert (lease.name, lease.holder, lease.fence, lease.ttl_seconds) == ("archive/a", "one", 1, TTL)
    with pytest.raises(LeaseHeld, match="one"):
        pair.theirs.leases.take("archive/a", "two", TTL)
    with pytest.raises(LeaseHeld):
        pair.ours.leases.take("archive/a", "one", TTL)
    assert pair.theirs.leases.take("archive/b", "two", TTL).fence == 1


def test_the_fence_rises_with_every_change_and_survives_release(pair: Pair) -> None:
    fences = []
    for number in range(6):
        catalog = (pair.ours, pair.theirs)[number % 2]
        lease = catalog.leases.take("a", f"holder-{number % 2}", TTL)
        fences.append(lease.fence)
        catalog.leases.release(lease)
    assert fences == [1, 2, 3, 4, 5, 6]


def test_a_dead_holder_is_followed_when_the_time_is_over(pair: Pair) -> None:
    lease = pair.ours.leases.take("a", "one", TTL)
    pair.let_pass(TTL - 1)
    with pytest.raises(LeaseHeld):
        pair.theirs.leases.take("a", "two", TTL)
    assert lease.still_mine(pair.clock)
    pair.let_pass(1)
    assert not lease.still_mine(pair.clock)
    assert pair.theirs.leases.take("a", "two", TTL).fence == 2
    with pytest.raises(LeaseLost, match="a"):
        pair.ours.leases.renew(lease)


def test_a_renewed_lease_stays(pair: Pair) -> None:
    lease = pair.ours.leases.take("a", "one", TTL)
    for _ in range(5):
        pair.let_pass(TTL - 1)
        with pytest.raises(LeaseHeld):
            pair.theirs.leases.take("a", "two", TTL)
        lease = pair.ours.leases.renew(lease)
        assert lease.fence == 1
        assert lease.still_mine(pair.clock)


def test_a_late_holder_goes_on_when_nobody_came(pair: Pair) -> None:
    lease = pair.ours.leases.take("a", "one", TTL)
    pair.let_pass(TTL * 3)
    assert not lease.still_mine(pair.clock)
    renewed = pair.ours.leases.renew(lease)
    assert renewed.fence == 1
    assert renewed.still_mine(pair.clock)


def test_a_released_lease_is_free_at_once_and_lost(pair: Pair) -> None:
    lease = pair.ours.leases.take("a", "one", TTL)
    pair.ours.leases.release(lease)
    with pytest.raises(LeaseLost):
        pair.ours.leases.renew(lease)
    taken = pair.theirs.leases.take("a", "two", TTL)
    pair.ours.leases.release(lease)  # too late: it is someone else's
    assert pair.theirs.leases.renew(taken).fence == 2


def test_the_writes_of_a_loser_are_fenced_off(pair: Pair) -> None:
    lease = pair.ours.leases.take("a", "one", TTL)
    with pair.ours.transaction() as connection:
        pair.ours.leases.check(connection, lease)
        write_row(connection, "while held")
    pair.let_pass(TTL)
    pair.theirs.leases.take("a", "two", TTL)
    with pytest.raises(LeaseLost), pair.ours.transaction() as connection:
        write_row(connection, "after loss")
        pair.ours.leases.check(connection, lease)
    with pair.ours.transaction() as connection:
        assert connection.execute(select(ANSWERS.c.key)).scalars().all() == ["while held"]


def test_the_holders_clock_set_forward_freezes_nothing(pair: Pair) -> None:
    # An hour ahead: by its own clock the lease runs until then.
    pair.clock.set_us(START_US + HOUR_US)
    lease = pair.ours.leases.take("a", "one", TTL)
    for _ in range(3):
        with pytest.raises(LeaseHeld):
            pair.theirs.leases.take("a", "two", TTL)
        pair.let_pass(TTL / 3)
    pair.let_pass(0.1)
    assert not lease.still_mine(pair.clock)
    assert pair.theirs.leases.take("a", "two", TTL).fence == 2


def test_a_clock_set_back_an_hour_freezes_nothing(pair: Pair) -> None:
    lease = pair.ours.leases.take("a", "one", TTL)
    for clock in (pair.clock, pair.their_clock):
        clock.set_us(START_US - HOUR_US)
    with pytest.raises(LeaseHeld):
        pair.theirs.leases.take("a", "two", TTL)
    pair.let_pass(TTL)
    assert not lease.still_mine(pair.clock)
    assert pair.theirs.leases.take("a", "two", TTL).fence == 2


def test_a_clock_set_back_takes_nothing_from_a_living_holder(pair: Pair) -> None:
    lease = pair.ours.leases.take("a", "one", TTL)
    pair.their_clock.set_us(START_US - HOUR_US)
    for _ in range(20):
        pair.let_pass(TTL / 2)
        with pytest.raises(LeaseHeld):
            pair.theirs.leases.take("a", "two", TTL)
        lease = pair.ours.leases.renew(lease)
        assert lease.still_mine(pair.clock)


def test_a_clock_set_forward_fences_the_old_holder_off(pair: Pair) -> None:
    lease = pair.ours.leases.take("a", "one", TTL)
    pair.their_clock.set_us(START_US + HOUR_US)
    assert pair.theirs.leases.take("a", "two", TTL).fence == 2
    assert lease.still_mine(pair.clock)  # as far as it can know
    with pytest.raises(LeaseLost), pair.ours.transaction() as connection:
        pair.ours.leases.check(connection, lease)


def test_watching_counts_from_the_first_look_at_the_same_renewal(pair: Pair) -> None:
    pair.clock.set_us(START_US + HOUR_US)
    lease = pair.ours.leases.take("a", "one", TTL)
    with pytest.raises(LeaseHeld):
        pair.theirs.leases.take("a", "two", TTL)
    pair.let_pass(TTL - 1)
    lease = pair.ours.leases.renew(lease)
    pair.let_pass(TTL - 1)
    with pytest.raises(LeaseHeld):  # longer than the time to live, but it saw another renewal
        pair.theirs.leases.take("a", "two", TTL)
    assert lease.still_mine(pair.clock)
    pair.let_pass(TTL)  # and no more renewals come
    assert pair.theirs.leases.take("a", "two", TTL).fence == 2


@pytest.mark.parametrize(("holder", "ttl"), [("", 1.0), ("one", 0.0), ("one", -1.0)])
def test_a_lease_needs_a_holder_and_time(pair: Pair, holder: str, ttl: float) -> None:
    with pytest.raises(InvariantBroken):
        pair.ours.leases.take("a", holder, ttl)


@dataclass
class Race:
    """What two servers did with one lease."""

    won: list[tuple[int, str]] = field(default_factory=list)
    refused: int = 0


def write_row(connection: object, key: str) -> None:
    from sqlalchemy import Connection

    assert isinstance(connection, Connection)
    values = {"tenant": "t", "user": "u", "key": key, "fingerprint": "f", "status": 200, "created_us": 1}
    connection.execute(insert(ANSWERS).values(**values))


def run_race(catalogs: list[Catalog], rounds: int) -> Race:
    """Let every catalog take the lease again and again, write under its fence, and let go."""
    race = Race()
    start = threading.Barrier(len(catalogs))

    def run(catalog: Catalog, holder: str) -> None:
        start.wait()
        for number in range(rounds):
            try:
                lease = catalog.leases.take("a", holder, 60.0)
            except LeaseHeld:
                race.refused += 1
                continue
            race.won.append((lease.fence, holder))
            with catalog.transaction() as connection:
                catalog.leases.check(connection, lease)
                write_row(connection, f"{lease.fence}")
            if number % 2:
                lease = catalog.leases.renew(lease)
            catalog.leases.release(lease)

    threads = [
        threading.Thread(target=run, args=(catalog, f"server-{number}"))
        for number, catalog in enumerate(catalogs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return race


def test_racing_servers_never_share_a_fence(place: DatabaseAddress, open_catalog: OpenCatalog) -> None:
    catalogs = [open_catalog(place, SystemClock()) for _ in range(4)]
    race = run_race(catalogs, rounds=40)
    assert race.won
    assert len(race.won) + race.refused == 160
    # Exactly one wins each fence, and no fence is left out: the row under each could be written once.
    assert sorted(fence for fence, _ in race.won) == list(range(1, len(race.won) + 1))
    with catalogs[0].transaction() as connection:
        assert connection.execute(select(func.count()).select_from(ANSWERS)).scalar_one() == len(race.won)


def test_a_taker_waits_for_a_checked_transaction(
    postgres_place: DatabaseAddress, open_catalog: OpenCatalog
) -> None:
    clock = ManualClock()
    ours, theirs = open_catalog(postgres_place, clock), open_catalog(postgres_place, clock)
    lease = ours.leases.take("a", "one", TTL)
    taken: list[Lease] = []
    thread = threading.Thread(target=lambda: taken.append(theirs.leases.take("a", "two", TTL)))
    with ours.transaction() as connection:
        ours.leases.check(connection, lease)
        clock.advance(TTL)
        thread.start()
        thread.join(0.3)
        assert taken == []  # the winner exists only after the loser's last write is in
        write_row(connection, "in time")
    thread.join()
    assert [lease.fence for lease in taken] == [2]
