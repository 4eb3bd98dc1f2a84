"""The number of requests that a process admits, by class. Pure."""

from __future__ import annotations

import pytest

from gateway.errors import Overloaded
from gateway.path.admission import SHARE, Permits
from gateway.trace import BATCH, CRITICAL, DEFAULT


def refusal(permits: Permits, rank: int = DEFAULT) -> str:
    """Return why one more request is refused."""
    with pytest.raises(Overloaded) as refused:
        permits.take(rank)
    return refused.value.because


def test_batch_work_leaves_half_of_the_places_to_others() -> None:
    """It fills the other half and is told why it is refused."""
    permits = Permits(100, 1000)
    held = [permits.take(BATCH) for _ in range(50)]
    assert "batch_full" == refusal(permits, BATCH)
    held += [permits.take() for _ in range(50)]
    assert "gateway_full" == refusal(permits)
    for permit in held:
        permit.release()
    assert 0 == permits.in_flight


def test_critical_work_has_places_of_its_own() -> None:
    """A sixteenth more than the others may take."""
    permits = Permits(160, 1000)
    for _ in range(160):
        permits.take()
    assert "gateway_full" == refusal(permits)
    for _ in range(10):
        permits.take(CRITICAL)
    assert "gateway_full" == refusal(permits, CRITICAL)


def test_a_limit_of_one_admits_one_request_of_any_class() -> None:
    """Small limits are kept exactly."""
    for rank in (CRITICAL, DEFAULT, BATCH):
        permits = Permits(1, 1000)
        permits.take(rank)
        assert "gateway_full" == refusal(permits, rank)


def test_bytes_have_a_separate_limit() -> None:
    """Beside the number of requests."""
    permits = Permits(100, 1000)
    first, second = permits.take(), permits.take()
    first.hold(900)
    with pytest.raises(Overloaded) as refused:
        second.hold(200)
    assert "bytes_full" == refused.value.because


def _free(permits: Permits) -> int:
    return permits.max_requests - permits.in_flight


@pytest.mark.parametrize("floods", [1, 2, 3])
def test_flooded_endpoints_share_and_leave_room(floods: int) -> None:
    """In simulated time: each flood takes all that it may, and a later one still finds room at once."""
    permits = Permits(1024, 1 << 30)
    used = [0] * floods
    for _ in range(2000):
        for one in range(floods):
            if used[one] < SHARE * _free(permits) and _free(permits):
                permits.take()
                used[one] += 1
    assert max(used) - min(used) <= 1
    left = 1024 / (1 + SHARE * floods)
    assert left - floods <= _free(permits) <= left + floods
