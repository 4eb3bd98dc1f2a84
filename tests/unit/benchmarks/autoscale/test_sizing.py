"""How many pods and GPUs a load needs."""

from __future__ import annotations

import pytest

from benchmarks.autoscale import sizing
from tests.cluster.world import Capacity


@pytest.mark.parametrize("rate", [100, 5_000, 1_000_000])
def test_a_size_has_room_and_never_less_than_two_of_each(rate: float) -> None:
    """Both tiers stay below their targets; more load never costs more per request."""
    capacity = Capacity(4000, 0.004, 0.00005)
    prices = sizing.prices()
    found = sizing.size(rate, capacity, prices)
    assert rate <= found.gateways * capacity.gateway_rps * sizing.CPU_SHARE or found.gateways == 2
    assert rate <= found.gpus * capacity.triton_rps * sizing.GPU_SHARE or found.gpus == 2
    assert min(found.gateways, found.gpus) >= 2
    assert sizing.size(rate * 10, capacity, prices).cost <= found.cost * 1.01
