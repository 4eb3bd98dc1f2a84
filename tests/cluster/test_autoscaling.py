"""Both tiers scaled by the real controllers: HPA on CPU, KEDA and Prometheus; what pods measure is played.

All releases stand beside each other in namespaces of their own, as teams on one cluster do; those that KEDA scales have
the values for GPUs. The longer form, which writes docs/autoscaling.md, is
``python -m benchmarks signals-of-autoscaling``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pytest

from tests.cluster.played import Trial
from tests.cluster.trials import Stage, scenarios, stage
from tests.cluster.world import Capacity

pytestmark = pytest.mark.xdist_group("autoscaling")
SCENARIOS: Final = ("step", "stall", "lost target", "idle")
CPU: Final = "step, on CPU"
"""The plain HPAs of the default values, which need a metrics-server only."""
TIERS: Final = ("triton-gateway", "triton")
AWAY_S: Final = 120.0


@dataclass
class Seen:
    """What was seen: the trials, what their autoscalers said of themselves, and who shrank without Prometheus."""

    trials: Mapping[str, Trial]
    scalers: Mapping[str, list[str]]
    shrunk: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    """Seven minutes of five releases; then two without Prometheus."""
    capacity = Capacity(gateway_rps=7_500, call_s=0.004, row_s=0.00005, max_rows=64)
    with stage(autoscaled_every="5s") as on:
        wanted = scenarios(capacity, quick=True)
        trials = {name: on.install(wanted[name], "ours", capacity) for name in SCENARIOS}
        trials[CPU] = on.install(wanted["step"], "cpu", capacity)
        faults: dict[str, list[str]] = {}

        def look() -> None:
            for name, trial in trials.items():
                if name not in faults and trial.times and trial.times[-1] >= 90:  # once the first rates are there
                    faults[name] = scalers(on, trial.namespace)

        on.run([*trials.values()], look)
        found = Seen(trials, faults)
        on.cluster.end("prometheus")
        before = replicas(on, trials)
        deadline = time.monotonic() + AWAY_S
        while time.monotonic() < deadline:
            now = replicas(on, trials)
            found.shrunk += [f"{one}: {before[one]} → {now[one]}" for one in now if now[one] < before[one]]
            before = now
            time.sleep(5)
        yield found


def scalers(on: Stage, namespace: str) -> list[str]:
    """What the autoscalers of a release say is wrong with themselves."""
    kinds = ("horizontalpodautoscalers", "scaledobjects.keda.sh")
    found = [one for kind in kinds for one in on.cluster.get(kind, "--namespace", namespace)["items"]]
    assert len(found) >= 2, found
    bad = {"AbleToScale": "False", "ScalingActive": "False", "Ready": "False", "Fallback": "True"}
    return [
        f"{one['metadata']['name']}: {said['type']} is {said['status']}: {said.get('message', '')}"
        for one in found for said in one.get("status", {}).get("conditions") or ()
        if said["status"] == bad.get(said["type"]) and said.get("reason") != "ScalingDisabled"
    ]  # fmt: skip


def replicas(on: Stage, trials: Mapping[str, Trial]) -> dict[str, int]:
    """How many replicas are asked for, by namespace and tier."""
    ours = {trial.namespace for trial in trials.values()}
    items = on.cluster.get("deployments", "--all-namespaces")["items"]
    return {
        f"{one['metadata']['namespace']}/{one['metadata']['name']}": one["spec"]["replicas"]
        for one in items
        if one["metadata"]["namespace"] in ours
    }


@pytest.mark.parametrize("name", [*SCENARIOS, CPU])
def test_every_metric_of_every_autoscaler_has_a_number(seen: Seen, name: str) -> None:
    """Both tiers at once, whoever owns the API of external metrics."""
    assert [] == seen.scalers[name]


@pytest.mark.parametrize(("name", "tiers"), [("step", TIERS), (CPU, TIERS[:1])])
def test_four_times_the_load_gets_more_of_both_tiers(seen: Seen, name: str, tiers: tuple[str, ...]) -> None:
    """Asked for while the load still comes in, and enough of them: the last minute is answered.

    By CPU the Tritons grow to all that there may be without this load: small batches keep them as busy as full ones.
    """
    step = seen.trials[name]
    assert [] == [tier for tier in tiers if step.first_more(tier) is None], step.asked
    last = [bad for at, bad in zip(step.times, step.bad, strict=True) if at > step.scenario.seconds - 60]
    assert sum(last) / len(last) < 0.01 * step.rates[-1]


def test_a_stalled_gpu_takes_no_gateway_never_doubles_them_and_asks_for_no_further_triton(seen: Seen) -> None:
    """More do not help, and fewer could not take the load when it is over.

    Work is a difference of rates. When everything that waited ends at once, some of it may be taken for the gateways'
    own; what a backlog may ask for is bounded, and holds that below twice as many.
    """
    stall = seen.trials["stall"]
    asked = stall.asked["triton-gateway"]
    assert 4 == min(asked)
    assert max(asked) < 2 * 4
    assert max(stall.asked["triton"]) <= stall.scenario.tritons


def test_a_lost_target_takes_nothing_away_and_adds_nothing(seen: Seen) -> None:
    """Pods that cannot be scraped still serve; and while they are lost one after the other none counts twice."""
    lost = seen.trials["lost target"]
    for tier, began in zip(TIERS, (lost.scenario.gateways, lost.scenario.tritons), strict=True):
        assert began == min(lost.asked[tier]) == max(lost.asked[tier])


def test_the_load_of_another_namespace_adds_nothing(seen: Seen) -> None:
    """Rules and queries are one deployment's."""
    idle = seen.trials["idle"]
    assert 2 == max(idle.asked["triton-gateway"])
    assert 2 == max(idle.asked["triton"])


def test_without_prometheus_no_tier_shrinks(seen: Seen) -> None:
    """An empty answer is not 'no load'."""
    assert [] == seen.shrunk
