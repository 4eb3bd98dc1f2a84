"""Quotas in simulated time: the limit is kept and can be used fully, also by several gateways together."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.callers.quotas import Bucket, Limits, Quota, Quotas, limits_of
from gateway.errors import QuotaExceeded


class Hold:
    """The charge of a request until it ends."""

    def __init__(self, quota: Quota, charged: int) -> None:
        self._quota, self._charged = quota, charged

    def settle(self, tokens: int) -> None:
        if self._charged:  # as Usage does it
            self._quota.settle(self._charged, tokens)


def let_in(quota: Quota, size: int, now: float) -> Hold:
    """Admit a request of ``size`` bytes as the edge does. Raises ``QuotaExceeded``."""
    return Hold(quota, quota.admit_and_charge(size, now))


class Tenant:
    """One tenant at one gateway."""

    def __init__(self, share: float = 1.0, **limits: float) -> None:
        self.over: list[str] = []
        self.quotas = Quotas(lambda _tenant, reason: self.over.append(reason))
        self.quotas.configure({"t": Limits(**limits)}, share, 0.0)  # type: ignore[arg-type]

    def ask(self, now: float, size: int = 0, tokens: int | None = None) -> bool:
        quota = self.quotas.of("t", now)
        assert quota is not None
        try:
            hold = let_in(quota, size, now)
        except QuotaExceeded:
            return False
        if tokens is not None:
            hold.settle(tokens)
        return True


@given(
    st.integers(1, 1000), st.lists(st.floats(0, 5), min_size=1, max_size=300), st.integers(1, 20),
)  # fmt: skip
def test_admitted_requests_never_exceed_the_bucket_and_its_refill(
    per_minute: int, pauses: list[float], burst: int
) -> None:
    """For every interval that begins with the first request."""
    tenant = Tenant(requests_per_minute=per_minute)
    now, passed = 0.0, 0
    for pause in pauses:
        now += pause
        passed += sum(tenant.ask(now, 0, 0) for _ in range(burst))
        assert passed <= per_minute + now * per_minute / 60 + 1e-6


@given(st.integers(60, 6000))
def test_a_tenant_below_its_limit_is_never_refused(per_minute: int) -> None:
    """At 90 % of it, for ten minutes."""
    tenant = Tenant(requests_per_minute=per_minute)
    gap = 60 / per_minute / 0.9
    assert all(tenant.ask(number * gap, 0, 0) for number in range(min(3000, int(600 / gap))))
    assert not tenant.over


@given(
    st.integers(0, 10_000),
    st.lists(st.tuples(st.floats(0, 30), st.integers(0, 8000), st.integers(0, 4000)), max_size=60),
)
def test_quotas_count_the_tokens_used_not_the_estimate(per_minute: int, requests: list[tuple[float, int, int]]) -> None:
    """The tokens used exceed the refill by at most one request."""
    tenant = Tenant(tokens_per_minute=per_minute)
    now, used, largest = 0.0, 0, 0
    for pause, size, tokens in requests:
        now += pause
        if tenant.ask(now, size, tokens):
            used += tokens
            largest = max(largest, tokens)
    assert used <= per_minute + now * per_minute / 60 + largest + 1e-6


@pytest.mark.parametrize("gateways", [1, 4, 16])
def test_gateways_together_admit_about_the_limit(gateways: int) -> None:
    """Ten times the limit, spread at random over gateways for ten minutes."""
    tenants = [Tenant(1 / gateways, requests_per_minute=600) for _ in range(gateways)]
    source = random.Random(7)
    passed = sum(source.choice(tenants).ask(number / 100, 0, 0) for number in range(60_000))
    assert 0.9 * 6000 <= passed <= 6000 + 600 + gateways


def test_a_small_limit_over_many_gateways_admits_some_requests() -> None:
    """A share below one request admits one request less often."""
    tenant = Tenant(1 / 16, requests_per_minute=8)
    assert tenant.ask(0.0, 0, 0)
    assert not tenant.ask(60.0, 0, 0)
    assert tenant.ask(121.0, 0, 0)


def test_concurrent_tokens_are_returned() -> None:
    """A request larger than the limit is admitted if it is alone."""
    tenant = Tenant(concurrent_tokens=100)
    quota = tenant.quotas.of("t", 0.0)
    assert quota is not None
    first = let_in(quota, 240, 0.0)
    with pytest.raises(QuotaExceeded) as refused:
        let_in(quota, 240, 0.0)
    assert "quota_concurrent_tokens" == refused.value.because
    first.settle(61)
    assert 0 == quota.held
    large = let_in(quota, 100_000, 0.0)
    large.settle(0)
    assert 0 == quota.held


def test_a_shadow_quota_counts_and_refuses_nothing() -> None:
    """It shows what a limit would do before it is enforced."""
    tenant = Tenant(requests_per_minute=1, is_shadow=True)
    assert [True] * 5 == [tenant.ask(0.0, 0, 0) for _ in range(5)]
    assert ["quota_requests"] * 4 == tenant.over


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"requests_per_minute": 60}, "quota_requests"), ({"tokens_per_minute": 600}, "quota_tokens"),
        ({"tokens_per_minute": 600, "requests_per_minute": 1e6}, "quota_tokens"),
    ],
)  # fmt: skip
def test_a_shadow_quota_builds_up_no_debt(limits: dict[str, float], why: str) -> None:
    """A tenant at ten times a shadow limit for ten minutes is admitted when the limit is enforced."""
    shadow, real = Tenant(**limits, is_shadow=True), Tenant(**limits)
    passed = 0
    for tick in range(6_000):
        assert shadow.ask(tick / 10, 36, 10)
        passed += real.ask(tick / 10, 36, 10)
    assert {why} == set(shadow.over) == set(real.over)
    assert pytest.approx(6_000 - passed, rel=0.01) == len(shadow.over)
    shadow.quotas.configure({"t": Limits(**limits)}, None, 600.0)
    assert shadow.ask(602.0, 36, 10)


def test_a_limit_of_zero_admits_nothing() -> None:
    """And no caller is told to wait for ever."""
    for name in ("requests_per_minute", "tokens_per_minute", "concurrent_tokens"):
        tenant = Tenant(**{name: 0})
        assert not tenant.ask(0.0)
        assert not tenant.ask(10_000.0)


def test_changed_limits_keep_the_used_part() -> None:
    """A half-empty bucket stays half empty. Tenants without limits are not stored. Others use the default limits."""
    tenant = Tenant(requests_per_minute=100)
    for _ in range(50):
        tenant.ask(0.0, 0, 0)
    tenant.quotas.configure({"t": Limits(requests_per_minute=10)}, 1.0, 0.0)
    assert 5 == sum(tenant.ask(0.0, 0, 0) for _ in range(20))
    tenant.quotas.configure(None, 0.5, 0.0)
    assert not tenant.ask(0.0, 0, 0)
    tenant.quotas.configure({"*": Limits(requests_per_minute=2)}, 1.0, 0.0)
    other = tenant.quotas.of("other", 0.0)
    assert other is not None
    assert 2 == other.limits.requests_per_minute
    tenant.quotas.configure({}, 1.0, 0.0)
    assert None is tenant.quotas.of("t", 0.0)


def test_a_request_that_began_before_a_change_settles_after_it() -> None:
    """Its charge is not held for ever."""
    tenant = Tenant(concurrent_tokens=10)
    quota = tenant.quotas.of("t", 0.0)
    assert quota is not None
    hold = let_in(quota, 20, 0.0)
    tenant.quotas.configure({"t": Limits(concurrent_tokens=20)}, 1.0, 0.0)
    hold.settle(3)
    again = tenant.quotas.of("t", 0.0)
    assert again is not None
    assert 0 == again.held


@given(
    st.sampled_from([{}, {"requests_per_minute": 30}, {"requests_per_minute": 9000, "tokens_per_minute": 90_000},
                     {"tokens_per_minute": 500, "concurrent_tokens": 90}]),
    st.lists(st.tuples(st.floats(0, 2), st.integers(0, 900), st.integers(0, 300)), min_size=1, max_size=80),
)  # fmt: skip
def test_one_step_and_two_step_charges_agree(limits: dict[str, float], requests: list[tuple[float, int, int]]) -> None:
    """Admissions, refusals and reasons are the same if requests are more than a thousandth of a minute apart."""
    at_once, apart = Tenant(**limits).quotas.of("t", 0.0), Tenant(**limits).quotas.of("t", 0.0)
    assert at_once is not None
    assert apart is not None
    now = 0.0
    for pause, size, tokens in requests:
        now += pause + 0.1
        ends: list[Hold | str] = []
        for quota in (at_once, apart):
            try:
                if quota is apart:
                    quota.admit(now)
                ends.append(Hold(quota, (quota.charge if quota is apart else quota.admit_and_charge)(size, now)))
            except QuotaExceeded as error:
                ends.append(error.because)
        first, second = ends
        assert type(first) is type(second)
        if isinstance(first, Hold) and isinstance(second, Hold):
            first.settle(tokens)
            second.settle(tokens)
        else:
            assert first == second


def test_most_requests_only_subtract() -> None:
    """As long as enough is left and the reported numbers still hold. Other requests add the refill and report anew."""
    quota = Tenant(requests_per_minute=60_000, tokens_per_minute=6_000_000).quotas.of("t", 0.0)
    assert quota is not None
    let_in(quota, 0, 0.0)
    told = quota.head()
    let_in(quota, 0, 0.05)
    assert told is quota.head()
    assert 60_000 - 2 == quota.requests.left
    for _ in range(60):
        let_in(quota, 0, 0.05)
    assert b"remaining-requests: 59989" in quota.head()  # fifty have come in meanwhile
    let_in(quota, 0, 30.0)
    assert b"remaining-requests: 59999" in quota.head()


def test_the_number_of_tenants_is_limited() -> None:
    """An issuer of tokens could invent any number."""
    quotas = Quotas()
    quotas.configure({"*": Limits(requests_per_minute=1)}, 1.0, 0.0)
    for number in range(12_000):
        quotas.of(f"t{number}", 0.0)
    assert len(quotas._quotas) <= 10_000


def test_headers_report_the_rest_as_openai_does() -> None:
    """Relative to the tenant's limit, not to this gateway's share."""
    tenant = Tenant(0.25, requests_per_minute=40, tokens_per_minute=4000)
    quota = tenant.quotas.of("t", 0.0)
    assert quota is not None
    for _ in range(5):
        let_in(quota, 396, 0.0).settle(100)
    found = {name.decode(): value.decode() for name, value in quota.headers()}
    assert {
        "x-ratelimit-limit-requests": "40", "x-ratelimit-remaining-requests": "20",
        "x-ratelimit-reset-requests": "30.000s", "x-ratelimit-limit-tokens": "4000",
        "x-ratelimit-remaining-tokens": "2000", "x-ratelimit-reset-tokens": "30.000s",
    } == found  # fmt: skip


def test_small_limits_are_reported_exactly_and_large_ones_to_a_thousandth() -> None:
    """Writing numbers takes longer than counting them."""
    for limit, step in ((3, 1), (900, 1), (5_000_000, 5_001)):
        tenant = Tenant(requests_per_minute=limit)
        quota = tenant.quotas.of("t", 0.0)
        assert quota is not None
        for used in range(1, 1 + min(limit, 20_000)):
            let_in(quota, 0, 0.0)
            told = int(dict(quota.headers())[b"x-ratelimit-remaining-requests"])
            assert 0 <= told - (limit - used) < step, (limit, used)


@pytest.mark.parametrize(
    "item", [[], {"requests": 1}, {"requests_per_minute": -1}, {"requests_per_minute": "1"}, {"shadow": "yes"},
             {"tokens_per_minute": True}, {"tokens_per_minute": math.inf}, {"tokens_per_minute": math.nan}],
)  # fmt: skip
def test_invalid_limits_are_refused(item: object) -> None:
    """The message shows the form of a quota."""
    with pytest.raises(ValueError):
        limits_of(item)


def test_a_bucket_never_holds_more_than_one_minutes_limit() -> None:
    """Whatever is returned, and however long no request comes."""
    bucket = Bucket(60, 1, 0.0)
    bucket.take(-1000)
    assert 60 == bucket.level(10_000.0)
    assert 60 == bucket.level(0.0)  # a clock that goes back changes nothing
