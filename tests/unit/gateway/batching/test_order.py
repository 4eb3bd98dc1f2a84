"""The order of queued entries, by class, tenant and age: pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from gateway.batching.entries import BatchLimits, Entry
from gateway.batching.order import FairOrder
from gateway.prices import Prices
from gateway.trace import BATCH, CRITICAL, DEFAULT, Flow
from tests.simulated import learned

LIMITS = BatchLimits(max_rows=8, max_padded_tokens=4096)


@dataclass
class Row:
    """A sequence."""

    n_tokens: int = 10


def entry(tenant: str = "a", rank: int = DEFAULT, tokens: int = 10) -> Entry[Row]:
    """One request of one row."""
    made = Entry[Row]([Row(tokens)], 1e9)
    made.flow = Flow(rank, tenant)
    return made


def tenants(batch: list[Entry[Row]]) -> str:
    """Return the tenants of the entries, in order."""
    return "".join(one.flow.tenant for one in batch)


GPU = learned(20e-3, 0.01e-3)
BY_ROW = learned(1e-3, 5e-3)
BY_TOKEN = learned(1e-3, 0.0, 1e-3, lengths=(4, 100, 30))


@pytest.mark.parametrize(
    ("waiting", "prices", "batch"),
    [
        ("b d c D C", GPU, "cCdDb"),  # the most important class first, regardless of age
        ("d1 d2 d3 d4 d5", GPU, "ddddd"), (f"{'b ' * 20} d d", GPU, "ddbbbbbb"),  # more rows cost nothing
        (f"{'b ' * 20} d d", BY_ROW, "dd"),  # two rows are answered before twenty of class batch
        (f"{'b ' * 20} {'d ' * 20} c", BY_ROW, "cddddddd"),  # they would otherwise pay for another call
        (f"{'c4 ' * 7} d100", BY_TOKEN, "ccccccc"),  # seven short rows would be padded to the length of the long one
    ],
)  # fmt: skip
def test_classes_go_one_after_the_other_and_fill_a_call_if_that_costs_no_more(
    waiting: str, prices: Prices, batch: str
) -> None:
    """Each entry is a tenant, whose letter is that of its class, and its tokens. Within a tenant, the oldest first."""
    ranks = {"c": CRITICAL, "d": DEFAULT, "b": BATCH}
    entries = [entry(one[0], ranks[one[0].lower()], int(one[1:] or 10)) for one in waiting.split()]
    found = FairOrder().take(entries, LIMITS, prices)
    assert batch == tenants(found)
    ages = [entries.index(one) for one in found]
    assert ages == sorted(ages, key=lambda age: (entries[age].flow.rank, age))


def test_tenants_share_by_tokens_however_many_requests_they_send() -> None:
    """One sends twenty times its share, and the requests of the other do not wait behind them. Long texts are more
    work.
    """
    order, waiting, served = FairOrder(), [], Counter[str]()
    for _ in range(200):
        waiting += [entry("flood", tokens=20) for _ in range(40)] + [entry("quiet") for _ in range(5)]
        batch = order.take(waiting, LIMITS, GPU)
        chosen = set(map(id, batch))
        waiting = [one for one in waiting if id(one) not in chosen][-2000:]
        for one in batch:
            served[one.flow.tenant] += one.tokens
    assert len([one for one in waiting if one.flow.tenant == "quiet"]) <= 8
    assert served["flood"] / served["quiet"] == pytest.approx(1, abs=0.25)


def test_a_tenant_that_was_idle_gets_no_credit_for_it() -> None:
    """It gets its share from now on. The other tenants do not wait until it has caught up."""
    order = FairOrder()
    for _ in range(100):
        order.take([entry("a") for _ in range(8)], LIMITS, GPU)
    batch = order.take([entry("a") for _ in range(8)] + [entry("b") for _ in range(8)], LIMITS, GPU)
    assert {"a": 4, "b": 4} == Counter(tenants(batch))


def test_a_bounded_number_of_tenants_is_remembered() -> None:
    """A caller that signs its own tokens can invent tenants."""
    order = FairOrder()
    for number in range(5000):
        order.take([entry(str(number)), entry("a")], LIMITS, GPU)
    assert len(order._attained) < 1100
