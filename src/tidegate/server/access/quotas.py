"""Quotas of tenants and users: their limits, and what they have used of the rates.

Requests and published bytes are limited by token buckets. A bucket holds what may be used in one second, and
fills at the same rate. Whatever finds a token in it passes, and takes what it needs: a publish that is larger
than the bucket leaves a debt, and those after it wait until that is paid. So the average holds, and nothing
is too large for ever.

Buckets are in memory alone, and are dropped once they are full again: there are no more of them than accounts
that were active lately. A clock that goes back adds nothing and takes nothing.

Administrators of the instance are not limited by rates, and with them the worker: they repair what others
have used up. Counts and the disk are the tenant's own, whoever creates or writes.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegate.errors import QuotaReached, RateQuotaReached
from tidegate.model.access import Principal
from tidegate.model.clock import Clock
from tidegate.model.epoch import SECOND_US
from tidegate.model.quotas import QuotaLimits
from tidegate.settings import QuotaSettings

# A tenant and one of its users; the tenant itself has the user ''.
Account = tuple[str, str]

# A token in the unit of levels: a rate in tokens per second is what one microsecond adds.
TOKEN = SECOND_US
# Buckets looked at by each request, to drop those that are full: more than a request can add.
SWEPT_AT_ONCE = 3


@dataclass(slots=True)
class TokenBucket:
    """The tokens of one account at a moment; whole numbers, so that nothing is lost by rounding."""

    rate: int
    level: int
    at_us: int

    @classmethod
    def full(cls, rate: int, now_us: int) -> TokenBucket:
        """Return a bucket that nobody has taken from."""
        return cls(rate, rate * TOKEN, now_us)

    def refill(self, now_us: int) -> None:
        """Add the tokens since the last call."""
        self.level = min(self.rate * TOKEN, self.level + self.rate * max(0, now_us - self.at_us))
        self.at_us = now_us

    @property
    def used(self) -> int:
        """The tokens that were taken and have not come back yet."""
        return -((self.level - self.rate * TOKEN) // TOKEN)

    @property
    def wait_seconds(self) -> float:
        """The time until there is a token."""
        return max(0, TOKEN - self.level) / self.rate / TOKEN


class RateLimit:
    """The buckets of one kind of token. Belongs to the event loop."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[Account, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(
        self, rates: Sequence[tuple[Account, int]], count: int, now_us: int
    ) -> tuple[Account, TokenBucket] | None:
        """Take tokens from the buckets of all accounts, or from none; return the first that is empty."""
        buckets = [(account, self._filled(account, rate, now_us)) for account, rate in rates]
        empty = next((found for found in buckets if found[1].level < TOKEN), None)
        if empty is None:
            for _, bucket in buckets:
                bucket.level -= count * TOKEN
        self._sweep(now_us)
        return empty

    def used(self, account: Account, now_us: int) -> int:
        """Return the tokens that an account has taken and that have not come back yet."""
        bucket = self._buckets.get(account)
        if bucket is None:
            return 0
        bucket.refill(now_us)
        return bucket.used

    def _filled(self, account: Account, rate: int, now_us: int) -> TokenBucket:
        bucket = self._buckets.get(account)
        if bucket is None or bucket.rate != rate:  # another limit from now on: an old debt is void
            bucket = self._buckets[account] = TokenBucket.full(rate, now_us)
        else:
            bucket.refill(now_us)
        return bucket

    def _sweep(self, now_us: int) -> None:
        """Look at the next few buckets in turn, and drop those that are full."""
        for _ in range(min(SWEPT_AT_ONCE, len(self._buckets))):
            account, bucket = self._buckets.popitem(last=False)
            bucket.refill(now_us)
            if bucket.level < bucket.rate * TOKEN:
                self._buckets[account] = bucket


class Quotas:
    """The limits of all accounts, and their use. Rates belong to the event loop, the rest to any thread."""

    def __init__(
        self,
        settings: QuotaSettings,
        clock: Clock,
        overrides: Mapping[Account, Mapping[str, int]] | None = None,
    ) -> None:
        self._clock = clock
        self._tenant_default = QuotaLimits(
            settings.tenant_requests_per_second_max,
            settings.tenant_published_bytes_per_second_max,
            settings.tenant_topics_max,
            settings.tenant_groups_max,
            settings.tenant_tables_max,
            settings.tenant_disk_bytes_max,
        )
        self._user_default = QuotaLimits(
            settings.user_requests_per_second_max, settings.user_published_bytes_per_second_max
        )
        self._requests, self._published = RateLimit(), RateLimit()
        self._disk_bytes: dict[str, int] = {}
        self.overrides: Mapping[Account, Mapping[str, int]] = {}
        self._limits: dict[Account, QuotaLimits] = {}
        # Whether anyone has such a limit: without one, a request costs one test of an attribute.
        self.limits_requests = self.limits_published = self.limits_disk = False
        self.apply(overrides or {})

    def apply(self, overrides: Mapping[Account, Mapping[str, int]]) -> None:
        """Replace the limits of single accounts; the others have those of the settings."""
        limits = {
            (tenant, user): (self._user_default if user else self._tenant_default).changed(changes)
            for (tenant, user), changes in overrides.items()
        }
        everyone = [self._tenant_default, self._user_default, *limits.values()]
        self._limits, self.overrides = limits, overrides
        self.limits_requests = any(one.requests_per_second for one in everyone)
        self.limits_published = any(one.published_bytes_per_second for one in everyone)
        self.limits_disk = any(one.disk_bytes for one in everyone)

    def of_tenant(self, tenant: str) -> QuotaLimits:
        """Return the limits of a tenant."""
        return self._limits.get((tenant, ""), self._tenant_default)

    def of_user(self, tenant: str, user: str) -> QuotaLimits:
        """Return the limits of a user."""
        return self._limits.get((tenant, user), self._user_default)

    def take_request(self, principal: Principal) -> None:
        """Count a request, or raise RateQuotaReached."""
        if not principal.is_instance_admin:
            self._take(self._requests, "requests_per_second", principal, 1)

    def take_published(self, principal: Principal, size_bytes: int) -> None:
        """Count the bytes of messages that are about to be stored, or raise RateQuotaReached."""
        if size_bytes and not principal.is_instance_admin:
            self._take(self._published, "published_bytes_per_second", principal, size_bytes)

    def check_disk(self, tenant: str) -> None:
        """Raise QuotaReached where a tenant had as many bytes as it may have, when it was last measured."""
        if not self.limits_disk:
            return
        limit, used = self.of_tenant(tenant).disk_bytes, self._disk_bytes.get(tenant, 0)
        if limit and used >= limit:
            raise QuotaReached(tenant=tenant, quota="disk_bytes", limit=limit, used=used)

    def set_disk(self, tenant: str, size_bytes: int) -> None:
        """Set what a tenant has on the disk."""
        self._disk_bytes[tenant] = size_bytes

    def disk_bytes(self, tenant: str) -> int | None:
        """Return what a tenant had on the disk when it was measured; None where it never was."""
        return self._disk_bytes.get(tenant)

    def measured(self) -> dict[str, int]:
        """Return the bytes of the tenants that were measured."""
        return dict(self._disk_bytes)

    def used_rates(self, tenant: str, user: str = "") -> tuple[int, int]:
        """Return the requests and bytes that an account has used up; 0 for one without a limit."""
        now_us = self._now_us()
        return self._requests.used((tenant, user), now_us), self._published.used((tenant, user), now_us)

    def _take(self, rate_limit: RateLimit, quota: str, principal: Principal, count: int) -> None:
        tenant, user = principal.tenant, principal.user
        mine, all_of_tenant = self.of_user(tenant, user), self.of_tenant(tenant)
        both = ((tenant, user), getattr(mine, quota)), ((tenant, ""), getattr(all_of_tenant, quota))
        rates = [(account, rate) for account, rate in both if rate]
        if not rates:
            return
        empty = rate_limit.take(rates, count, self._now_us())
        if empty is not None:
            (_, name), bucket = empty
            raise RateQuotaReached(
                account=f"User '{user}'" if name else f"Tenant '{tenant}'",
                quota=quota,
                limit=bucket.rate,
                used=bucket.used,
                retry_after_seconds=math.ceil(bucket.wait_seconds),
            )

    def _now_us(self) -> int:
        return int(self._clock.monotonic_seconds() * SECOND_US)
