"""What `kubectl apply` makes of a number of pods that leaves the manifests, as docs/autoscaling.md says it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cluster.autoscalers import ROOT
from tests.cluster.control_plane import Cluster
from tests.kube_tools import rendered

pytestmark = pytest.mark.xdist_group("half 0")
NAMESPACE: Final = "forgets"


def test_the_number_of_pods_stays_when_manifests_no_longer_name_it(cluster: Cluster, tmp_path: Path) -> None:
    """Without the page's command one pod is left, with it the autoscaler's number stays."""
    cluster.kubectl("create", "namespace", NAMESPACE)

    def deployment(*values: str) -> dict[str, Any]:
        objects = rendered("--set=autoscaling.gateway.by=none", *values)
        (found,) = (
            one for one in objects if (one["kind"], one["metadata"]["name"]) == ("Deployment", "triton-gateway")
        )
        return found | {"metadata": found["metadata"] | {"namespace": NAMESPACE}}

    manifest = tmp_path / "manifests.yaml"

    def applied(content: dict[str, Any], *forget: str) -> int:
        manifest.write_text(json.dumps(content))
        if forget:
            cluster.kubectl(*forget)
        cluster.kubectl("apply", "--filename", str(manifest))
        return int(cluster.get("deployment/triton-gateway", "--namespace", NAMESPACE)["spec"]["replicas"])

    fixed, free = deployment("--set=gateway.replicas=3"), deployment()
    assert "replicas" not in free["spec"]
    assert [3, 1, 3] == [applied(fixed), applied(free), applied(fixed)]
    command = re.search(r"`kubectl (apply set-last-applied [^`]+)`", (ROOT / "docs" / "autoscaling.md").read_text())
    assert command is not None
    assert 3 == applied(free, *command[1].replace("manifests.yaml", str(manifest)).split())
    assert 3 == applied(free)
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
