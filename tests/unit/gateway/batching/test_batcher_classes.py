"""Work of class batch beside other classes under the real batcher, in simulated time."""

from __future__ import annotations

import pytest

from tests.simulated import MIXES, OpenLoad, Price, open_load

GPU = Price("gpu", 22e-3, 0.5e-3, 0.0)
CAPACITY = 64 / GPU.seconds(64, 16)


def run(load: float, *, servers: int = 1, batch: int = 0, seconds: float = 5.0) -> OpenLoad:
    """Simulate a load on ``servers`` servers, beside ``batch`` callers of class batch."""
    return open_load(
        GPU, MIXES["short"], load * servers * CAPACITY, seconds=seconds, warm=3.0, others=[GPU] * (servers - 1),
        batch=batch * servers, rule="off",
    )  # fmt: skip


@pytest.mark.parametrize(("load", "servers"), [(0.1, 1), (0.3, 1), (0.6, 1), (0.3, 4)])
def test_batch_work_uses_the_time_that_other_classes_leave(load: float, servers: int) -> None:
    """Requests of other classes wait hardly longer, and some batch work is done however busy the servers are."""
    alone, beside = run(load, servers=servers), run(load, servers=servers, batch=128)
    assert beside.percentile(50) <= 1.15 * alone.percentile(50)
    assert beside.percentile(99) <= 2 * alone.percentile(99)
    assert beside.batch >= 0.08 * servers * CAPACITY


def test_batch_work_alone_gets_the_whole_capacity() -> None:
    """No other class has to wait for it."""
    assert run(1e-6, batch=128).batch >= 0.9 * CAPACITY
