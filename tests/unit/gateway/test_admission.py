"""How many requests a process holds, of which class: pure."""

from __future__ import annotations

import pytest

from gateway.admission import SHARE, Permits
from gateway.errors import Overloaded
from gateway.trace import BATCH, CRITICAL, DEFAULT


def refusal(permits: Permits, rank: int = DEFAULT, size: int = 0) -> str:
    """Why one more is refused."""
    with pytest.raises(Overloaded) as refused:
        permits.take(size, rank)
    return refused.value.because


def test_batch_work_leaves_half_of_the_places_to_others() -> None:
    """It fills what is left, and is told why it waits."""
    permits = Permits(100, 1000)
    held = [permits.take(0, BATCH) for _ in range(50)]
    assert "batch_full" == refusal(permits, BATCH)
    held += [permits.take() for _ in range(50)]
    assert "gateway_full" == refusal(permits)
    for permit in held:
        permit.release()
    assert 0 == permits.in_flight


def test_critical_work_has_places_of_its_own() -> None:
    """A sixteenth beyond what others may take."""
    permits = Permits(160, 1000)
    for _ in range(160):
        permits.take()
    assert "gateway_full" == refusal(permits)
    for _ in range(10):
        permits.take(0, CRITICAL)
    assert "gateway_full" == refusal(permits, CRITICAL)


def test_a_process_of_one_place_has_it_for_every_class() -> None:
    """Small limits are kept exactly."""
    for rank in (CRITICAL, DEFAULT, BATCH):
        permits = Permits(1, 1000)
        permits.take(0, rank)
        assert "gateway_full" == refusal(permits, rank)


def test_bytes_are_a_reason_of_their_own() -> None:
    """Beside the number of requests."""
    permits = Permits(100, 1000)
    permits.take(900)
    assert "bytes_full" == refusal(permits, DEFAULT, 200)


@pytest.mark.parametrize("floods", [1, 2, 3])
def test_endpoints_that_want_everything_share_and_leave_room(floods: int) -> None:
    """In simulated time: each flood takes whatever it is given; one that comes later finds room at once."""
    permits = Permits(1024, 1 << 30)
    used = [0] * floods
    for _ in range(2000):
        for one in range(floods):
            if used[one] < SHARE * permits.free() and permits.free():
                permits.take()
                used[one] += 1
    assert max(used) - min(used) <= 1
    left = 1024 / (1 + SHARE * floods)
    assert left - floods <= permits.free() <= left + floods
