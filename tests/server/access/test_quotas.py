"""Token buckets against a model that counts every microsecond, and the limits of accounts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import QuotaReached, RateQuotaReached
from tidegate.model.access import Principal, Role
from tidegate.model.quotas import QuotaLimits
from tidegate.server.access.quotas import SWEPT_AT_ONCE, TOKEN, Account, Quotas, RateLimit, TokenBucket
from tidegate.settings.sections import QuotaSettings
from tidegate.testing.clock import ManualClock

ACCOUNTS: list[Account] = [("acme", ""), ("acme", "ann"), ("acme", "bob"), ("umbrella", "")]
# The rate of each account: fixed, because another rate begins with a full bucket.
RATES = dict(zip(ACCOUNTS, (1, 3, 250, 4_000), strict=True))


class CountedBuckets:
    """What buckets promise, as slow as it is plain: one addition for each microsecond, nothing dropped."""

    def __init__(self) -> None:
        self.levels = {account: rate * TOKEN for account, rate in RATES.items()}
        self.now_us = 0

    def move_to(self, now_us: int) -> None:
        for account, rate in RATES.items():
            for _ in range(max(0, now_us - self.now_us)):
                if self.levels[account] == rate * TOKEN:
                    break
                self.levels[account] = min(rate * TOKEN, self.levels[account] + rate)
        self.now_us = now_us

    def take(self, accounts: list[Account], count: int) -> bool:
        if any(self.levels[account] < TOKEN for account in accounts):
            return False
        for account in accounts:
            self.levels[account] -= count * TOKEN
        return True


@given(
    st.lists(
        st.tuples(
            st.integers(-2_000, 6_000),
            st.lists(st.sampled_from(ACCOUNTS), min_size=1, max_size=2, unique=True),
            st.integers(1, 9),
        ),
        max_size=60,
    )
)
def test_buckets_admit_what_a_count_of_every_microsecond_admits(
    steps: list[tuple[int, list[Account], int]],
) -> None:
    rate_limit, model, now_us = RateLimit(), CountedBuckets(), 0
    for step_us, accounts, count in steps:
        now_us += step_us
        model.move_to(now_us)
        empty = rate_limit.take([(account, RATES[account]) for account in accounts], count, now_us)
        assert (empty is None) == model.take(accounts, count)
        for account in ACCOUNTS:
            taken = RATES[account] * TOKEN - model.levels[account]
            assert rate_limit.used(account, now_us) == -(-taken // TOKEN)


@given(st.integers(1, 2**40), st.integers(-(2**60), 2**60), st.integers(1, 2**30))
def test_whoever_waits_as_told_gets_in_whatever_the_clock_did(rate: int, jump_us: int, count: int) -> None:
    rate_limit, account = RateLimit(), ACCOUNTS[0]
    assert rate_limit.take([(account, rate)], count, 0) is None
    found = rate_limit.take([(account, rate)], 1, jump_us)
    if found is None:
        return
    wait_us = int(found[1].wait_seconds * TOKEN) + 1
    assert rate_limit.take([(account, rate)], 1, jump_us + wait_us) is None


@given(st.integers(1, 1_000), st.lists(st.integers(0, 30_000), min_size=1, max_size=200))
def test_in_no_stretch_of_time_more_gets_in_than_the_rate_and_one_full_bucket(
    rate: int, pauses_us: list[int]
) -> None:
    rate_limit, now_us, admitted_us = RateLimit(), 0, []
    for pause_us in pauses_us:
        now_us += pause_us
        if rate_limit.take([(ACCOUNTS[0], rate)], 1, now_us) is None:
            admitted_us.append(now_us)
    for first, start_us in enumerate(admitted_us):
        for last in range(first, len(admitted_us)):
            assert (last - first + 1) * TOKEN <= rate * (TOKEN + admitted_us[last] - start_us)


def test_buckets_that_are_full_again_are_dropped() -> None:
    rate_limit = RateLimit()
    for number in range(20_000):
        rate_limit.take([(("acme", f"user-{number}"), 1_000)], 1, number * 1_000)
        assert len(rate_limit) <= 2 * SWEPT_AT_ONCE
    rate_limit.take([(("acme", "debtor"), 1)], 10**9, 0)  # does not keep those behind it
    for number in range(20_000):
        rate_limit.take([(("acme", f"user-{number}"), 1_000)], 1, number * 1_000)
        assert len(rate_limit) <= 2 * SWEPT_AT_ONCE + 1


def test_another_limit_begins_with_a_full_bucket() -> None:
    rate_limit, account = RateLimit(), ACCOUNTS[0]
    assert rate_limit.take([(account, 1_000_000)], 32_000_000, 0) is None
    assert rate_limit.take([(account, 1_000_000)], 1, 0) is not None
    assert rate_limit.take([(account, 1)], 1, 0) is None, "not locked out for a year by an old debt"


def test_a_debt_is_paid_at_the_rate() -> None:
    bucket = TokenBucket.full(1_000, 0)
    bucket.level -= 5_000 * TOKEN
    assert bucket.used == 5_000
    assert bucket.wait_seconds == pytest.approx(4.001)
    bucket.refill(4_001_000)
    assert bucket.wait_seconds == 0


def principal(user: str, tenant: str = "acme", role: Role = Role.WRITER, home: str = "acme") -> Principal:
    return Principal(tenant, user, frozenset({role}), "1", home)


def quotas(clock: ManualClock | None = None, **settings: int) -> Quotas:
    return Quotas(QuotaSettings(**settings), clock or ManualClock())


def test_nothing_is_limited_without_a_setting() -> None:
    free = quotas()
    assert not (free.limits_requests or free.limits_published or free.limits_disk)
    assert free.of_tenant("acme") == QuotaLimits()
    for _ in range(1_000):
        free.take_request(principal("ann"))
    free.set_disk("acme", 2**60)
    free.check_disk("acme")


def test_users_have_their_own_and_share_the_tenants() -> None:
    clock = ManualClock()
    both = quotas(clock, user_requests_per_second_max=3, tenant_requests_per_second_max=5)
    for _ in range(3):
        both.take_request(principal("ann"))
    with pytest.raises(RateQuotaReached, match=r"User 'ann' has used its quota of .*: 3 of 3") as caught:
        both.take_request(principal("ann"))
    assert caught.value.values["retry_after_seconds"] == 1
    both.take_request(principal("bob"))
    both.take_request(principal("bob"))
    with pytest.raises(RateQuotaReached, match=r"Tenant 'acme' has used its quota of .*: 5 of 5"):
        both.take_request(principal("bob"))
    both.take_request(principal("ann", tenant="umbrella", home="umbrella"))
    clock.advance(0.2)
    both.take_request(principal("bob"))
    assert both.used_rates("acme", "bob") == (3, 0), "what the tenant refused was not taken from the user"


def test_an_administrator_of_the_instance_is_not_limited_by_rates() -> None:
    strict = quotas(tenant_requests_per_second_max=1, user_requests_per_second_max=1)
    admin = principal("admin", tenant="acme", role=Role.PANEL, home="default")
    for _ in range(100):
        strict.take_request(admin)
        strict.take_published(admin, 10**9)
    strict.take_request(principal("ann"))


def test_a_message_larger_than_the_limit_passes_and_the_next_one_waits() -> None:
    clock = ManualClock()
    limited = quotas(clock, user_published_bytes_per_second_max=1_000)
    limited.take_published(principal("ann"), 5_000)
    with pytest.raises(RateQuotaReached, match="5000 of 1000") as caught:
        limited.take_published(principal("ann"), 1)
    assert caught.value.values["retry_after_seconds"] == 5
    limited.take_published(principal("ann"), 0)
    clock.advance(5)
    limited.take_published(principal("ann"), 5_000)


def test_an_account_may_have_more_less_or_no_limit() -> None:
    own = quotas(tenant_topics_max=10, tenant_disk_bytes_max=100, user_requests_per_second_max=1)
    own.apply(
        {("acme", ""): {"topics": 50, "from_the_future": 1}, ("acme", "ann"): {"requests_per_second": 0}}
    )
    assert (own.of_tenant("acme").topics, own.of_tenant("umbrella").topics) == (50, 10)
    assert own.of_tenant("acme").disk_bytes == 100
    for _ in range(10):
        own.take_request(principal("ann"))
    own.take_request(principal("bob"))
    with pytest.raises(RateQuotaReached):
        own.take_request(principal("bob"))
    own.apply({})
    assert own.of_tenant("acme").topics == 10


def test_the_flags_follow_single_accounts() -> None:
    one = quotas()
    one.apply({("acme", "ann"): {"published_bytes_per_second": 5}, ("umbrella", ""): {"disk_bytes": 9}})
    assert (one.limits_requests, one.limits_published, one.limits_disk) == (False, True, True)
    one.apply({})
    assert (one.limits_requests, one.limits_published, one.limits_disk) == (False, False, False)


def test_the_disk_is_full_as_last_measured() -> None:
    disk = quotas(tenant_disk_bytes_max=100)
    disk.check_disk("acme")
    disk.set_disk("acme", 100)
    disk.check_disk("umbrella")
    with pytest.raises(QuotaReached, match="Tenant 'acme' has used its quota of disk_bytes: 100 of 100"):
        disk.check_disk("acme")
    disk.set_disk("acme", 99)
    disk.check_disk("acme")
