"""Quotas: how much a tenant and a user may use, and the check of what is counted. 0 is no limit.

requests_per_second           of a tenant, of a user    429 RATE_QUOTA_REACHED
published_bytes_per_second    of a tenant, of a user    429 RATE_QUOTA_REACHED
topics, groups, tables        of a tenant               507 QUOTA_REACHED
disk_bytes                    of a tenant               507 QUOTA_REACHED
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Protocol

from tidegate.errors import QuotaReached

# The largest whole number that every JSON reader keeps exact.
LIMIT_MAX = 2**53 - 1


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """The limits of one tenant; of a user only the rates are used."""

    requests_per_second: int = 0
    published_bytes_per_second: int = 0
    topics: int = 0
    groups: int = 0
    tables: int = 0
    disk_bytes: int = 0

    def changed(self, overrides: Mapping[str, int]) -> QuotaLimits:
        """Return the limits with some of them replaced; names of a newer version are left out."""
        return replace(self, **{name: limit for name, limit in overrides.items() if name in TENANT_QUOTAS})


TENANT_QUOTAS = tuple(field.name for field in fields(QuotaLimits))
USER_QUOTAS = ("requests_per_second", "published_bytes_per_second")


class TenantQuotas(Protocol):
    """The quotas of tenants, for those who create and store; any thread may ask."""

    def of_tenant(self, tenant: str, /) -> QuotaLimits:
        """Return the limits of a tenant."""
        ...

    def check_disk(self, tenant: str, /) -> None:
        """Raise QuotaReached where a tenant has as many bytes on the disk as it may have."""
        ...


class Unlimited:
    """No quotas."""

    def of_tenant(self, _tenant: str) -> QuotaLimits:
        """Return no limits."""
        return QuotaLimits()

    def check_disk(self, _tenant: str) -> None:
        """Accept every write."""


def check_count(tenant: str, quota: str, used: int, limit: int) -> None:
    """Raise QuotaReached where one more would be above the limit.

    Call it on the committer's thread, which is the only one that creates: then no other change can come
    between the check and what it is for.
    """
    if limit and used >= limit:
        raise QuotaReached(tenant=tenant, quota=quota, limit=limit, used=used)
