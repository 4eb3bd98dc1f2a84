"""Quotas in simulated time: the limit is kept and can be used fully, also by several gateways together."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.callers.quotas import Limits, Quotas
from gateway.errors import QuotaExceeded


class Tenant:
    """One tenant at one gateway."""

    def __init__(self, share: float = 1.0, **limits: float) -> None:
        self.over: list[str] = []
        self.quotas = Quotas(lambda _tenant, reason: self.over.append(reason))
        self.quotas.configure({"t": Limits(**limits)}, share)  # type: ignore[arg-type]

    def ask(self, now: float, size: int = 0, tokens: int | None = None) -> bool:
        quota = self.quotas.of("t", now)
        assert quota is not None
        try:
            charged = quota.admit(size, now)
        except QuotaExceeded:
            return False
        if tokens is not None and charged:
            quota.settle(charged, tokens)
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


@pytest.mark.parametrize(
    ("limits", "share", "asked"),
    [
        ({"requests_per_minute": 8}, 1 / 16, {0: True, 60: False, 121: True}),  # one request, less often
        ({"requests_per_minute": 0}, 1, {0: False, 10_000: False}),
        ({"tokens_per_minute": 0}, 1, {0: False, 10_000: False}),
    ],
    ids=["a small share", "no requests", "no tokens"],
)
def test_the_smallest_limits(limits: dict[str, float], share: float, asked: dict[int, bool]) -> None:
    """A share below one request admits some, a limit of zero none."""
    tenant = Tenant(share, **limits)
    assert asked == {now: tenant.ask(now, 0, 0) for now in asked}


def test_a_body_that_was_not_announced_counts_once_it_is_read() -> None:
    """It was admitted as an empty one; the next request pays for it."""
    tenant = Tenant(tokens_per_minute=100)
    quota = tenant.quotas.of("t", 0.0)
    assert quota is not None
    charged = quota.grow(quota.admit(0, 0.0), 800)
    assert 201 == charged
    assert not tenant.ask(0.0)
    assert not tenant.ask(60.0)
    quota.settle(charged, 10)
    assert tenant.ask(60.0)


def test_a_refusal_says_when_enough_has_come_in() -> None:
    """Half a minute for one of two requests a minute."""
    quota = Tenant(requests_per_minute=2).quotas.of("t", 0.0)
    assert quota is not None
    for _ in range(2):
        quota.admit(0, 0.0)
    with pytest.raises(QuotaExceeded) as refused:
        quota.admit(0, 0.0)
    assert 30 == refused.value.retry_after


def test_changed_limits_keep_the_used_part() -> None:
    """A request that began before settles with the new limits. Tenants without limits are not stored."""
    tenant = Tenant(requests_per_minute=100, tokens_per_minute=100)
    quota = tenant.quotas.of("t", 0.0)
    assert quota is not None
    charged = [quota.admit(4, 0.0) for _ in range(50)]
    assert (50, 0) == (quota.requests.left, quota.tokens.left)
    tenant.quotas.configure({"t": Limits(requests_per_minute=80, tokens_per_minute=200)}, 0.5)
    assert (40, 0) == (quota.requests.left, quota.tokens.left)
    for one in charged:
        quota.settle(one, 0)
    assert quota is tenant.quotas.of("t", 0.0)
    assert 100 == quota.tokens.left
    tenant.quotas.configure(share=1.0)
    assert 40 == sum(tenant.ask(0.0) for _ in range(50))
    tenant.quotas.configure({"*": Limits(requests_per_minute=2)})
    other = tenant.quotas.of("other", 0.0)
    assert other is not None
    assert 2 == other.limits.requests_per_minute
    tenant.quotas.configure({})
    assert None is tenant.quotas.of("t", 0.0)


def test_the_number_of_tenants_is_limited() -> None:
    """An issuer of tokens could invent any number."""
    quotas = Quotas()
    quotas.configure({"*": Limits(requests_per_minute=1)}, 1.0)
    for number in range(12_000):
        quotas.of(f"t{number}", 0.0)
    assert len(quotas._quotas) <= 10_000
