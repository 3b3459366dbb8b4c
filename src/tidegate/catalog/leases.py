"""Leases: exclusive rights with a time to live and a fencing number.

    fence     rises with every take, never repeats, survives release: a holder with a smaller one has lost
    renewals  counts up while a holder lives, so that others can see it live without trusting any clock
    expires   by the wall clock of the last renewal; past it anyone may take the lease at once

Clocks jump. A contender whose wall clock says "not yet" watches fence and renewals: if they are unchanged for
the whole time to live on its own monotonic clock, the holder is dead, and the lease is taken. A holder uses
monotonic time alone, counted from before its request: it stops no later than a watcher takes over. A wall
clock that is set forward takes a lease from a living holder; `check` then fences off its writes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, delete, or_, select, update

from tidegate.catalog.connections import Connections, insert_if_new
from tidegate.catalog.tables import LEASES
from tidegate.errors import InvariantBroken, LeaseHeld, LeaseLost
from tidegate.model.clock import Clock

WATCHED_MAX = 10_000  # leases of others in memory; the one seen longest ago is dropped first
_NOBODY = ""
_NEVER = -1  # no lease has this fence


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that was held when this was made; `fence` goes with everything that is written under it."""

    name: str
    holder: str
    fence: int
    ttl_seconds: float
    since_seconds: float  # monotonic, from before the catalog was asked

    def still_mine(self, clock: Clock) -> bool:
        """True if nobody can have taken it over yet, by monotonic time, whatever the wall clock does."""
        return clock.monotonic_seconds() - self.since_seconds < self.ttl_seconds


@dataclass(frozen=True, slots=True)
class _Sighting:
    fence: int
    renewals: int
    since_seconds: float


class Leases:
    """Every lease of a catalog. Threads: any."""

    def __init__(self, connections: Connections, clock: Clock) -> None:
        self._connections = connections
        self._clock = clock
        self._seen: OrderedDict[str, _Sighting] = OrderedDict()
        self._seen_lock = threading.Lock()

    def take(self, name: str, holder: str, ttl_seconds: float) -> Lease:
        """Take a lease that is free or whose holder is dead; LeaseHeld while it is held.

        A holder's name is that of one run of one program: after a restart it is another one.
        """
        with self._connections.write_one() as connection:
            lease = self._take_existing(connection, name, holder, ttl_seconds)
        if lease is not None:
            return lease
        with self._connections.write() as connection:
            return self.take_on(connection, name, holder, ttl_seconds)

    def renew(self, lease: Lease) -> Lease:
        """Renew a lease for its whole time to live; LeaseLost when another holder took it."""
        with self._connections.write_one() as connection:
            return self.renew_on(connection, lease)

    def release(self, lease: Lease) -> None:
        """Release a lease, so that others can take it at once; does nothing when it is lost already."""
        with self._connections.write_one() as connection:
            connection.execute(_RELEASE, _key(lease))

    def check(self, connection: Connection, lease: Lease) -> None:
        """Make a transaction commit only while the lease is held; LeaseLost when it is not.

        A contender that takes the lease waits until the transaction ends.
        """
        if connection.execute(_CHECK, _key(lease)).one_or_none() is None:
            raise LeaseLost(leases=lease.name)

    def take_on(self, connection: Connection, name: str, holder: str, ttl_seconds: float) -> Lease:
        """Take a lease in a transaction of the caller."""
        lease = self._take_existing(connection, name, holder, ttl_seconds)
        if lease is not None:
            return lease
        since_seconds = self._clock.monotonic_seconds()
        ttl_us = round(ttl_seconds * 1_000_000)
        expires_us = self._clock.now_us() + ttl_us
        new = {"name": name, "fence": 1, "holder": holder, "renewals": 0}
        if insert_if_new(connection, LEASES, {**new, "expires_us": expires_us, "ttl_us": ttl_us}):
            return Lease(name, holder, 1, ttl_seconds, since_seconds)
        row = connection.execute(select(LEASES).where(LEASES.c.name == name)).one_or_none()
        if row is not None:
            self.is_takeable(row)  # the watch begins with the first read
        raise LeaseHeld(lease=name, holder=row.holder if row is not None else "someone")

    def renew_on(self, connection: Connection, lease: Lease) -> Lease:
        """Renew a lease in a transaction of the caller."""
        since_seconds = self._clock.monotonic_seconds()
        expires_us = self._clock.now_us() + round(lease.ttl_seconds * 1_000_000)
        if connection.execute(_RENEW, {**_key(lease), "new_expires_us": expires_us}).one_or_none() is None:
            raise LeaseLost(leases=lease.name)
        return replace(lease, since_seconds=since_seconds)

    def is_takeable(self, row: Row[Any]) -> bool:
        """True if the lease of a row can be taken now; records when the row was first seen like this."""
        if row.holder == _NOBODY or row.expires_us <= self._clock.now_us():
            return True
        now_seconds = self._clock.monotonic_seconds()
        with self._seen_lock:
            seen = self._seen.pop(row.name, None)
            if seen is None or (seen.fence, seen.renewals) != (row.fence, row.renewals):
                seen = _Sighting(row.fence, row.renewals, now_seconds)
            self._seen[row.name] = seen
            if len(self._seen) > WATCHED_MAX:
                self._seen.popitem(last=False)
        return now_seconds - seen.since_seconds >= int(row.ttl_us) / 1_000_000

    def forget_on(self, connection: Connection, name: str) -> None:
        """Remove a lease whose name is never used again; a holder has lost it."""
        connection.execute(delete(LEASES).where(LEASES.c.name == name))

    def _take_existing(
        self, connection: Connection, name: str, holder: str, ttl_seconds: float
    ) -> Lease | None:
        """Take a lease that has a row, in one statement; None when it has none or is held."""
        if not holder or ttl_seconds <= 0:
            raise InvariantBroken(reason="a lease needs a holder and a time to live")
        since_seconds = self._clock.monotonic_seconds()
        now_us = self._clock.now_us()
        ttl_us = round(ttl_seconds * 1_000_000)
        with self._seen_lock:
            seen = self._seen.get(name, _Sighting(_NEVER, _NEVER, since_seconds))
        values = {
            "in_name": name,
            "now_us": now_us,
            "seen_fence": seen.fence,
            "seen_renewals": seen.renewals,
            "watched_us": round((since_seconds - seen.since_seconds) * 1_000_000),
            "new_holder": holder,
            "new_expires_us": now_us + ttl_us,
            "new_ttl_us": ttl_us,
        }
        fence = connection.execute(_TAKE, values).scalar_one_or_none()
        return None if fence is None else Lease(name, holder, int(fence), ttl_seconds, since_seconds)


# Built once: putting a statement together costs more than running it.
_HELD = and_(
    LEASES.c.name == bindparam("in_name"),
    LEASES.c.fence == bindparam("in_fence"),
    LEASES.c.holder == bindparam("in_holder"),
)
_CHECK = select(LEASES.c.fence).where(_HELD).with_for_update(read=True)
_RELEASE = update(LEASES).where(_HELD).values(holder=_NOBODY, expires_us=0)
_RENEW = (
    update(LEASES)
    .where(_HELD)
    .values(renewals=LEASES.c.renewals + 1, expires_us=bindparam("new_expires_us"))
    .returning(LEASES.c.fence)
)
_WATCHED = and_(
    LEASES.c.fence == bindparam("seen_fence"),
    LEASES.c.renewals == bindparam("seen_renewals"),
    LEASES.c.ttl_us <= bindparam("watched_us"),
)
_TAKEABLE = or_(LEASES.c.holder == _NOBODY, LEASES.c.expires_us <= bindparam("now_us"), _WATCHED)
_TAKE = (
    update(LEASES)
    .where(LEASES.c.name == bindparam("in_name"), _TAKEABLE)
    .values(
        fence=LEASES.c.fence + 1,
        renewals=0,
        holder=bindparam("new_holder"),
        expires_us=bindparam("new_expires_us"),
        ttl_us=bindparam("new_ttl_us"),
    )
    .returning(LEASES.c.fence)
)


def _key(lease: Lease) -> dict[str, Any]:
    return {"in_name": lease.name, "in_fence": lease.fence, "in_holder": lease.holder}
