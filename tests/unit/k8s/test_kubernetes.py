"""The oldest Kubernetes that is promised, in every place that promises it, is what ``.ci/run cluster`` tries."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tests.kube_tools import CHART

ROOT = Path(__file__).parents[3]
PINNED = ROOT / "tests" / "cluster" / "programs" / "kubernetes-oldest" / "go.mod"


def test_the_promise_is_what_is_tried() -> None:
    """The chart and the page of Kubernetes."""
    tried = re.search(r"k8s\.io/kubernetes v(\d+\.\d+)\.", PINNED.read_text())
    assert tried is not None
    assert f">={tried[1]}.0-0" == yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]
    assert f"Kubernetes {tried[1]} or newer" in (ROOT / "docs" / "kubernetes.md").read_text()
