"""Both tiers by HPA beside a KEDA that owns external metrics: what the real controllers make of it, and the doctor.

Pods are kwok's; an exporter plays two deployments in namespaces of their own: a full one, and one that nobody asks.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import yaml

from dashboards import rules
from deploy.cli.doctor.kube import Kubectl, check
from tests.cluster.autoscalers import shipped_rules, start_adapter, start_keda, start_prometheus, target
from tests.cluster.control_plane import Cluster
from tests.kube_tools import CHART, unpacked
from tests.sites import Asked, site

pytestmark = pytest.mark.xdist_group("metrics")
RATE: Final = 5_000.0
"""Requests, one row each, that come to the full deployment in a second."""
DOES: Final = {"triton-gateway": 960.0, "triton": 1_430.0}
"""What one replica of each tier does in a second."""
NEEDED: Final = {"triton-gateway": 7, "triton": 5}
"""With four requests in hand each, which is 80 % of a CPU, and at 70 % of a GPU."""
MOST: Final = 1.5
"""How many times that may be asked for, while the rates of a minute still hold what was before."""
SPACES: Final = ("full", "idle")
WITHIN: Final = 200.0


Pod = tuple[str, str, str]
"""Namespace, tier and name."""


class Played:
    """What the pods of both deployments say at `/metrics`: a full tier lets requests wait, and refuses some."""

    def __init__(self, cluster: Cluster) -> None:
        """Nothing has been counted yet."""
        self._cluster = cluster
        self._counts: dict[Pod, Counter[str]] = {}
        self._full: dict[Pod, bool] = {}
        self._pods: list[Pod] = []
        self._at = time.monotonic()
        self._lock = threading.Lock()

    def _ready(self) -> list[Pod]:
        return [
            (each["metadata"]["namespace"], each["metadata"]["labels"]["tier"], each["metadata"]["name"])
            for space in SPACES for each in self._cluster.get("pods", "--namespace", space)["items"]
            if any(one["type"] == "Ready" and one["status"] == "True" for one in each["status"].get("conditions", ()))
        ]  # fmt: skip

    def pods(self) -> list[Pod]:
        """Every pod that is ready, with what was done since the last look; one every three seconds is enough."""
        with self._lock:
            now = time.monotonic()
            if self._pods and now - self._at < 3:
                return self._pods
            pods, seconds = self._ready(), now - self._at
            for pod in pods:
                space, tier, _ = pod
                many = {each: sum(one[:2] == (space, each) for one in pods) for each in DOES}
                rate = RATE if space == "full" else 0.0
                passed = min(rate, many["triton-gateway"] * DOES["triton-gateway"])
                answered = min(passed, many["triton"] * DOES["triton"])
                done = answered / many[tier]
                busy = min(1.0, (rate if tier == "triton-gateway" else passed) / many[tier] / DOES[tier])
                self._full[pod] = answered < rate
                self._counts.setdefault(pod, Counter()).update({
                    "done": done * seconds, "refused": (rate - answered) / many[tier] * seconds, "busy": busy * seconds,
                    # as in a queue of random arrivals: M/D/1 in Triton, M/M/1 in the gateway's own hands
                    "waited": busy * min(busy / 2 / max(1e-3, 1 - busy), 5.0) * seconds,
                    "late": min(busy / max(1e-3, 1 - busy), 20.0) * seconds,
                })  # fmt: skip
            self._at, self._pods = now, pods
            return pods

    def text(self, pod: Pod) -> str:
        """One pod's metrics."""
        counts = self._counts.get(pod, Counter())
        done = counts["done"]
        if pod[1] == "triton":
            return "".join(f'nv_inference_{name}{{model="m",version="1"}} {value}\n' for name, value in (
                ("count", done), ("exec_count", done / 8), ("request_success", done / 8),
                ("compute_infer_duration_us", counts["busy"] * 1e6), ("queue_duration_us", counts["waited"] * 1e6),
            ))  # fmt: skip
        of = 'endpoint="e",version="1",route="direct"'
        lines = [
            f"gateway_requests_in_flight {900 if self._full.get(pod) else 20}",
            f"gateway_cpu_wait_seconds_total {counts['late']}",
            f'gateway_requests_total{{{of},outcome="ok"}} {done}',
            f'gateway_requests_total{{{of},outcome="overloaded"}} {counts["refused"]}',
            f"gateway_request_duration_seconds_sum{{{of}}} {done * 0.011}",
            f'gateway_stage_duration_seconds_sum{{{of},stage="queue"}} {done * 0.001}',
            f'gateway_stage_duration_seconds_sum{{{of},stage="infer"}} {done * 0.01}',
            f'gateway_stage_duration_seconds_count{{{of},stage="infer"}} {done}',
            f'gateway_batch_rows_count{{endpoint="e",version="1"}} {done / 8}',
            'gateway_model_info{endpoint="e",version="1",model_id="m",model="m",link="",pool="default"} 1',
        ]
        return "\n".join(lines) + "\n"

    def answer(self, asked: Asked) -> tuple[int, Any]:
        """Lists of targets for Prometheus, and every target's metrics."""
        parts = urllib.parse.urlsplit(asked.path).path.strip("/").split("/")
        if len(parts) == 1:
            address = asked.headers["host"]
            return 200, [
                target(address, f"/{tier}/{space}/{name}", space, name)
                for space, tier, name in self.pods() if tier == parts[0]
            ]  # fmt: skip
        tier, space, name = parts
        return 200, self.text((space, tier, name)).encode()


def objects(space: str) -> list[dict[str, Any]]:
    """Two Deployments of pods that hold nothing, in a namespace."""
    found: list[dict[str, Any]] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}}]
    for tier, component in (("triton-gateway", "gateway"), ("triton", "triton")):
        labels = {"tier": tier, "app.kubernetes.io/component": component}
        containers = [{"name": "c", "image": "none", "resources": {"requests": {"cpu": "100m"}}}]
        template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
        found.append({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": tier, "namespace": space},
            "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
        })  # fmt: skip
    return found


def until(fact: Callable[[], object], seen: object) -> None:
    """Wait for a fact; what was seen until then is said if it does not come."""
    deadline = time.monotonic() + WITHIN
    while not fact():
        assert time.monotonic() < deadline, seen
        time.sleep(1)


@pytest.fixture(scope="module")
def scaled(cluster: Cluster) -> Iterator[tuple[Cluster, str]]:
    """The chart's autoscalers, both by HPA, with everything that serves metrics; and where Prometheus is."""
    played = Played(cluster)
    for space in SPACES:
        cluster.apply(*objects(space))
        done = cluster.helm(
            "template", "triton-gateway", str(CHART), "--namespace", space, "--show-only",
            "templates/autoscaling.yaml", "--set", "autoscaling.triton.by=hpa",
        )  # fmt: skip
        cluster.kubectl("apply", "--namespace", space, "--filename", "-", given=done.stdout)
    with site(played.answer) as address:
        prometheus = start_prometheus(cluster, address, scrape="5s")
        start_adapter(cluster, prometheus, shipped_rules())
        start_keda(cluster)
        yield cluster, prometheus
        # An API that nobody answers any more would keep every namespace from going.
        groups = [f"v1beta1.{group}metrics.k8s.io" for group in ("", "custom.", "external.")]
        cluster.kubectl("delete", "apiservice", *groups, ok=(0, 1))
        for name in ("keda-adapter", "keda-operator", "prometheus-adapter", "prometheus"):
            cluster.end(name)
        for space in SPACES:
            cluster.kubectl("delete", "namespace", space, "--wait=false")


def ask(prometheus: str, query: str) -> list[dict[str, Any]]:
    """Series of an instant query."""
    address = f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(address, timeout=20) as answer:
        return list(json.loads(answer.read())["data"]["result"])


def replicas(cluster: Cluster, space: str) -> dict[str, int]:
    """How many are asked for, by tier."""
    items = cluster.get("deployments", "--namespace", space)["items"]
    return {each["metadata"]["name"]: each["spec"]["replicas"] for each in items}


@pytest.mark.timeout(540)
def test_both_tiers_scale_by_hpa_beside_keda_and_another_namespace_does_not(scaled: tuple[Cluster, str]) -> None:
    """As many as the load needs, half as many again at most; the idle ones stay two; no record is ever NaN."""
    cluster, prometheus = scaled
    seen: dict[str, list[int]] = {tier: [] for tier in NEEDED}
    nan = " or ".join(f"({name} != {name})" for name in (record.name for record in rules.records()) if ":" in name)

    def enough() -> bool:
        assert [] == ask(prometheus, nan)
        assert {"triton-gateway": 2, "triton": 2} == replicas(cluster, "idle")
        now = replicas(cluster, "full")
        for tier, count in now.items():
            seen[tier].append(count)
        return all(now[tier] >= needed for tier, needed in NEEDED.items())

    until(enough, seen)
    end = time.monotonic() + 45
    until(lambda: enough() and time.monotonic() > end, seen)
    most = {tier: max(counts) for tier, counts in seen.items()}
    assert all(most[tier] <= MOST * needed for tier, needed in NEEDED.items()), most


def test_every_metric_but_cpu_has_a_number_and_the_doctor_says_so(scaled: tuple[Cluster, str]) -> None:
    """External metrics are KEDA's."""
    cluster, _ = scaled
    program = cluster.folder / "doctors-kubectl"
    program.write_text(f'#!/bin/sh\nexport KUBECONFIG={cluster.kubeconfig}\nexec {unpacked("kubectl")} "$@"\n')
    program.chmod(0o755)
    for space in SPACES:
        kubectl = Kubectl(space, program=str(program))
        found = {each.subject: each for each in check(kubectl, "gpu")}
        assert "ok" == found["hpa/triton"].state, found
        assert {"ok"} == {found[name].state for name in ("/apis/custom.metrics.k8s.io", "external metrics (KEDA)")}


def test_replicas_that_are_taken_out_stay_if_the_last_apply_forgets_them_first(cluster: Cluster) -> None:
    """As docs/scaling.md says it; a plain apply without the line leaves one pod."""
    *others, with_line = objects("handover")
    without = {**with_line, "spec": {key: value for key, value in with_line["spec"].items() if key != "replicas"}}
    try:
        for forget, left in ((False, 1), (True, 2)):
            given = yaml.safe_dump_all([*others, with_line])
            cluster.kubectl("apply", "--filename", "-", given=given)
            if forget:
                cluster.kubectl("apply", "set-last-applied", "--filename", "-", given=yaml.safe_dump_all([without]))
            cluster.kubectl("apply", "--filename", "-", given=yaml.safe_dump_all([without]))
            assert left == replicas(cluster, "handover")["triton"]
    finally:
        cluster.kubectl("delete", "namespace", "handover", "--wait=false")
