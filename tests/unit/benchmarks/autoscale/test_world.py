"""What is played upon pods: nothing is lost, capacities hold, and counters say what happened."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gateway.metrics.catalog import STAGE_SECONDS
from tests.cluster.world import Capacity, World, gateway_text, triton_text

CAPACITY = Capacity(9000.0, 0.004, 50e-6)
BASE = 0.6 * 4 * CAPACITY.gateway_rps


def pods(name: str, count: int) -> list[str]:
    """Names of pods."""
    return [f"{name}-{number}" for number in range(count)]


def played(rate: float, gateways: int, tritons: int, *, seconds: float = 60.0, **options: object) -> World:
    """A minute of a steady load."""
    world = World(CAPACITY, lambda _: rate, **options)  # type: ignore[arg-type]
    world.go_on(seconds, pods("gateway", gateways), pods("triton", tritons))
    return world


@pytest.mark.parametrize("tick_s", [0.25, 1.0, 2.0])
def test_the_step_of_the_clock_fails_no_request(tick_s: float) -> None:
    """Gateways at 60 % of their CPU answer everything, however many requests one step of the clock brings."""
    world = played(BASE, 4, 8, tick_s=tick_s)
    assert 0.0 == world.tally.failed
    assert world.tally.ok == pytest.approx(BASE * 60, rel=0.1)


def test_what_is_too_much_is_refused_or_too_late_and_nothing_is_lost() -> None:
    """Four gateways answer what four can, whatever comes."""
    world = played(4 * BASE, 4, 16)
    most = 4 * CAPACITY.gateway_rps * 60
    assert world.tally.ok + world.tally.late <= most
    waiting = 4 * (CAPACITY.backlog + CAPACITY.in_flight) + 4 * CAPACITY.gateway_rps
    assert 4 * BASE * 60 - world.tally.total <= waiting
    assert next(iter(world.gateways.values())).cpu_s == pytest.approx(60, rel=0.05)


def test_a_gpu_that_stalls_costs_the_gateways_no_cpu() -> None:
    """Requests in flight pile up; CPU and the wait for it do not."""
    world = played(BASE, 4, 5, triton_works=lambda t: t < 30)
    one = next(iter(world.gateways.values()))
    assert one.in_flight > 256
    assert one.cpu_wait_s < 60
    assert world.tally.failed > 0


def test_pods_that_go_take_their_counters_along_and_new_ones_begin_at_zero() -> None:
    """As processes do."""
    world = played(BASE, 4, 5)
    world.go_on(90, [*pods("gateway", 2), "new"], pods("triton", 5))
    assert {"gateway-0", "gateway-1", "new"} == world.gateways.keys()
    assert world.gateways["new"].requests < world.gateways["gateway-0"].requests / 2


def test_counters_are_written_as_prometheus_reads_them() -> None:
    """Every series once, with a number; buckets grow to the count."""
    world = played(BASE, 1, 5)
    for text in (gateway_text(world.gateways["gateway-0"]), triton_text(world.tritons["triton-0"])):
        names = [line.rsplit(" ", 1)[0] for line in text.splitlines()]
        assert len(names) == len(set(names))
        assert all(float(line.rsplit(" ", 1)[1]) >= 0 for line in text.splitlines())
    lines = dict(line.rsplit(" ", 1) for line in gateway_text(world.gateways["gateway-0"]).splitlines())
    served = 'endpoint="texts",version="1",route="stable",stage="infer"'
    counted = lines[f"gateway_stage_duration_seconds_count{{{served}}}"]
    assert float(lines[f'gateway_stage_duration_seconds_bucket{{{served},le="+Inf"}}']) == pytest.approx(float(counted))
    assert isinstance(STAGE_SECONDS.brief, Mapping)
    for stage in ("queue", "infer"):
        bounds = [name for name in lines if f'stage="{stage}",le=' in name]
        assert len(STAGE_SECONDS.brief[stage]) + 1 == len(bounds), "more than gateways show by default"
