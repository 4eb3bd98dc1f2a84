"""The order of queued entries, by class, tenant and age: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.batching.entries import BatchLimits, Entry
from gateway.batching.order import FairOrder
from gateway.prices import Prices
from gateway.trace import BATCH, CRITICAL, DEFAULT, Flow

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


def learned(call: float, row: float, token: float = 0.0, lengths: Sequence[int] = (10,)) -> Prices:
    """Return prices learned from calls that cost so many seconds per call, row and padded token."""
    prices = Prices()
    for rows in [*range(1, 9)] * 12:
        for tokens in lengths:
            prices.learn(rows, rows * tokens, 0.0, call + row * rows + token * rows * tokens)
    return prices


GPU = learned(20e-3, 0.01e-3)
BY_ROW = learned(1e-3, 5e-3)
BY_TOKEN = learned(1e-3, 0.0, 1e-3, lengths=(4, 100))


def test_the_most_important_class_goes_first_regardless_of_age() -> None:
    """The next class follows."""
    waiting = [entry("b", BATCH), entry("d"), entry("c", CRITICAL), entry("D"), entry("C", CRITICAL)]
    assert "cCdDb" == tenants(FairOrder().first(waiting, 8))


def test_within_a_tenant_the_oldest_entry_goes_first() -> None:
    """Five entries of one tenant keep their order."""
    waiting = [entry() for _ in range(5)]
    assert waiting == FairOrder().first(waiting, 8)


def test_two_tenants_get_the_same_number_of_rows_even_if_one_sends_more() -> None:
    """One sends twenty times its share, and the requests of the other do not wait behind them."""
    order, waiting, served = FairOrder(), [], Counter[str]()
    for _ in range(200):
        waiting += [entry("flood") for _ in range(80)] + [entry("quiet") for _ in range(4)]
        batch = order.take(waiting, LIMITS, GPU)
        chosen = set(map(id, batch))
        waiting = [one for one in waiting if id(one) not in chosen][-2000:]
        served.update(one.flow.tenant for one in batch)
    assert 0 == sum(one.flow.tenant == "quiet" for one in waiting)
    assert 200 * 4 == served["quiet"] == served["flood"]


def test_tenants_share_by_tokens_and_not_by_requests() -> None:
    """Long texts are more work."""
    order, served = FairOrder(), Counter[str]()
    for _ in range(300):
        batch = order.take(
            [entry("long", tokens=30) for _ in range(8)] + [entry("short") for _ in range(8)], LIMITS, GPU
        )
        for one in batch:
            served[one.flow.tenant] += one.tokens
    assert 0.9 < served["long"] / served["short"] < 1.1


def test_a_tenant_that_was_idle_gets_no_credit_for_it() -> None:
    """It gets its share from now on. The other tenants do not wait until it has caught up."""
    order = FairOrder()
    for _ in range(100):
        order.take([entry("a") for _ in range(8)], LIMITS, GPU)
    batch = order.take([entry("a") for _ in range(8)] + [entry("b") for _ in range(8)], LIMITS, GPU)
    assert {"a": 4, "b": 4} == Counter(tenants(batch))


def test_batch_work_fills_a_call_that_takes_no_longer_for_it() -> None:
    """If a call costs the same for any number of rows, more rows cost nothing."""
    batch = FairOrder().take([entry("b", BATCH) for _ in range(20)] + [entry("d"), entry("d")], LIMITS, GPU)
    assert "ddbbbbbb" == tenants(batch)


def test_batch_work_waits_if_the_call_would_take_longer() -> None:
    """If each row costs time, two rows are answered before twenty rows of class batch."""
    waiting = [entry("b", BATCH) for _ in range(20)] + [entry("d"), entry("d")]
    assert "dd" == tenants(FairOrder().take(waiting, LIMITS, BY_ROW))


def test_a_critical_call_is_filled_with_default_rows_that_cost_no_more_in_it() -> None:
    """They would otherwise pay for another call. Batch work still waits."""
    waiting = [entry("b", BATCH) for _ in range(20)] + [entry("d") for _ in range(20)] + [entry("c", CRITICAL)]
    assert "cddddddd" == tenants(FairOrder().take(waiting, LIMITS, BY_ROW))


def test_a_critical_call_is_not_filled_with_rows_that_cost_more_in_it_than_alone() -> None:
    """Seven short rows would be padded to the length of the long one."""
    waiting = [entry("c", CRITICAL, tokens=4) for _ in range(7)] + [entry("d", tokens=100)]
    assert "ccccccc" == tenants(FairOrder().take(waiting, LIMITS, BY_TOKEN))


def test_a_bounded_number_of_tenants_is_remembered() -> None:
    """A caller that signs its own tokens can invent tenants."""
    order = FairOrder()
    for number in range(5000):
        order.take([entry(str(number)), entry("a")], LIMITS, GPU)
    assert len(order._attained) < 1100
