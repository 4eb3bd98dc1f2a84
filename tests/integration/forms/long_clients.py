"""Clients that need an environment of their own, made from PyPI once: ``.ci/run clients`` runs this file.

Those that get along with each other share one. KServe's SDK wants another numpy than the embedded Triton; perf_analyzer
is a binary inside an older tritonclient (and needs Debian's libb64-0d). Not collected by default because each takes a
while to install; CI runs it after the tests.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import environments
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
ENVIRONMENTS = Path(os.environ.get("TRITON_GATEWAY_ENVIRONMENTS", ".bench/environments"))


def test_kserve_client_speaks_all_its_protocols(stack: Any) -> None:
    """REST v2 and v1 and gRPC of ``kserve``'s clients: live, ready, infer."""
    python = environments.python(ENVIRONMENTS, "kserve", print)
    done = subprocess.run(
        [str(python), str(HERE / "kserve_calls.py"), stack.url, stack.grpc],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr
    assert {
        "live": True, "ready": True, "model_ready": True, "rest": ["GOOD", "BAD"],
        "v1": ["GOOD", "BAD"], "v1_ready": True, "rpc_live": True, "rpc_model_ready": True, "rpc": ["GOOD", "BAD"],
    } == json.loads(done.stdout.splitlines()[-1])  # fmt: skip


def test_clients_people_already_have(stack: Any) -> None:
    """LangChain's (by Hugging Face's and OpenAI's), LlamaIndex' and Cohere's, in their newest versions."""
    python = environments.python(ENVIRONMENTS, "clients", print)
    done = subprocess.run(
        [str(python), str(HERE / "client_calls.py"), stack.url],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr
    assert {
        "langchain": {"same vectors": True, "query": True},
        "llama_index": {"vectors": [8, 8], "query": True},
        "cohere": {
            "first": [[1, "film film"], [2, "film"], [0, "bad"]], "second": [1, 2], "scores": True,
            "wrong model": "BadRequestError", "no model": "NotFoundError",
        },
    } == json.loads(done.stdout.splitlines()[-1])  # fmt: skip


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        ("live", ["--string-data", "good film", "-b", "2"]),
        ("tokens", ["--shape", "input_ids:4", "--shape", "attention_mask:4", "--input-data", "zero"]),
    ],
)
def test_perf_analyzer_measures_the_gateway(
    stack: Any, tmp_path: Path, protocol: str, model: str, arguments: list[str]
) -> None:
    """Text and plain tensors, over both protocols: it reads metadata, config and statistics, and infers."""
    python = environments.python(ENVIRONMENTS, "perf_analyzer", print)
    libraries = [str(p) for p in python.parents[1].glob("lib/python*/site-packages/nvidia/cuda_runtime/lib")]
    report = tmp_path / "report.csv"
    done = subprocess.run(
        [
            str(python.with_name("perf_analyzer")), "-m", model, "-i", protocol,
            "-u", stack.http if protocol == "http" else stack.grpc,
            "--concurrency-range", "2", "--request-count", "50", "-f", str(report), *arguments,
        ],
        env={**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert 0 == done.returncode, done.stdout + done.stderr
    (row,) = csv.DictReader(report.read_text().splitlines())
    assert float(row["Inferences/Second"]) > 0
    assert float(row["Server Compute Infer"]) > 0, row
