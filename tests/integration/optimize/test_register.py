"""What `optimize --register` leaves in the registry: a published model with its report and tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.control_planes import control_plane
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.integration

SCRIPT = """
import json
from pathlib import Path
import requests
from deploy.bundles.register import register

accepted, plain_send = [], requests.Session.send

def send(session, request, **how):
    answer = plain_send(session, request, **how)
    if request.url.endswith("/events.add_batch") and answer.status_code == 200:
        accepted.extend(json.loads(line) for line in request.body.splitlines())
    return answer

requests.Session.send = send
parity = {"candidate": "onnx-fp32", "mean_cosine": 0.99999, "min_cosine": 0.9999, "max_difference": 1e-6,
          "decisions": 1.0, "shift": 0.0, "neighbours": None}
values = {
    "arguments": {"quick": True}, "files": {}, "target": "cpu", "versions": {"torch": "2"}, "accepted": None,
    "source": {"given": "somebody/model", "digest": "0123456789abcdef", "task": "text-classification"},
    "samples": {"count": 3, "source": "texts.txt"}, "machine": {"cpu": "a CPU"}, "parity": [parity],
    "chosen": {"candidate": "onnx-fp32", "engine": "onnx", "precision": "fp32", "parity": parity,
               "times_pytorch": 2.0, "needs": []},
    "speed": [{"batch": 1, "length": 8, "ms": {"pytorch": 2.0, "onnx-fp32": 1.0}}],
}
made = register(Path("bundle"), values, project="Optimized", name="tiny", tags=["t"], source="somebody/model")
plots = sorted(event["metric"] for event in accepted if event["type"] == "plot" and event["task"] == made.model_id)
print("RESULT", json.dumps([made.model_id, plots]))
"""


def test_the_tables_reach_the_model_before_it_is_published(tmp_path: Path) -> None:
    """A published model takes no events, of either server: `Events not added: Invalid model id`, and all is lost."""
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "report.md").write_text("# tiny")
    (bundle / "model.onnx").write_bytes(b"weights")
    with control_plane(tmp_path / "state") as server:
        environment = server.client_environment(os.environ, tmp_path)
        done = subprocess.run(
            [sys.executable, *warm.registering(SCRIPT)], cwd=tmp_path, text=True, capture_output=True, check=False,
            env={**environment, "PYTHONPATH": str(Path(__file__).parents[3])}, timeout=LIMIT_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "events.add_batch" not in done.stdout + done.stderr
        model_id, plots = json.loads(done.stdout.rpartition("RESULT ")[2])
        model = server.call("models.get_by_id", model=model_id)["model"]
        assert model["ready"]
        assert plots == ["accuracy", "speed"]
        assert server.download(model["uri"])[:2] == b"PK"
