"""Every values file on a real API: applied, applied again, upgraded, taken back, drained, removed.

The tests of one file run in their order on one install; nothing here runs in pods, see ``nodes.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import pytest

from tests.cluster.control_plane import Cluster
from tests.cluster.installs import VALUES, Install, applied
from tests.waiting import until

EXPLAINED: Final = {
    r"Failed(Get(Resource|Pods|Object|External)Metric|ComputeMetricsReplicas) HorizontalPodAutoscaler/":
        "no metrics are served here: tests/cluster/test_autoscaling.py",
    r"FailedScheduling .*(unbound immediate PersistentVolumeClaims|not-ready|unschedulable)":
        "until the volume is bound, and while a node is drained",
    r"ClusterIPNotAllocated Service/":
        "the API server's repair of addresses ran while a Service was being made, and mended it",
}  # fmt: skip
"""Warnings that are as they should be, as patterns, and why."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test of this file for each file of values, in two processes of as many."""
    cases = [
        pytest.param(name, id=name, marks=pytest.mark.xdist_group(f"half {number % 2}"))
        for number, name in enumerate(VALUES)
    ]
    metafunc.parametrize("install", cases, indirect=True)


@pytest.fixture(scope="module")
def install(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Install]:
    """One release, applied once; at the end its volumes go."""
    try:
        with applied(cluster, request.param, tmp_path_factory.mktemp("own")) as made:
            yield made
    finally:
        cluster.kubectl("delete", "persistentvolumes", "--all", "--timeout=300s")


def test_every_pod_is_let_in_and_gets_ready(install: Install) -> None:
    """By the scheduler and the restricted policy; nothing is warned of."""
    install.settle()
    assert [] == install.warnings


def test_a_second_apply_changes_nothing(install: Install) -> None:
    """No object's wanted state, no pod; and the API has what the files say."""
    install.settle()  # the autoscalers have given every tier its least
    before = install.generations()
    install.apply()
    assert before == install.generations()
    assert "" == install.difference()


def test_an_upgrade_and_the_way_back(install: Install) -> None:
    """Other images and another size of gateways come and go; both times the API has what was applied."""
    install.settle()  # a status that changes meanwhile is a difference
    first = install.difference()
    install.apply(changed=True)
    install.settle()
    assert "" == install.difference()
    install.go_back()
    install.settle()
    assert first == install.difference()


def test_every_node_can_be_drained(install: Install) -> None:
    """One after the other, by eviction, as budgets allow it; and pods are ready elsewhere."""
    cluster = install.cluster
    pods = cluster.get("pods", "--namespace", install.namespace)["items"]
    for node in sorted({pod["spec"]["nodeName"] for pod in pods if pod["status"]["phase"] == "Running"}):
        cluster.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=300s")
        install.settle()
        cluster.kubectl("uncordon", node)


def test_no_event_warns_of_what_is_not_explained(install: Install) -> None:
    """Of everything that happened above."""
    unexplained = [event for event in install.events() if not any(re.match(each, event) for each in EXPLAINED)]
    assert [] == unexplained
    assert [] == install.warnings


def test_nothing_is_left_behind(install: Install) -> None:
    """When it is removed; but Helm keeps the claim with every model: a release of the same name takes it up again."""
    install.remove()
    kept = {"persistentvolumeclaim/controlplane"} if install.name in ("dev", "trial") else set()

    def gone() -> bool:
        return install.objects() - install.before == kept

    until(gone, pause=1, what=f"nothing but {sorted(install.before | kept)} left")
