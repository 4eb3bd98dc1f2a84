"""Every architecture the exporter promises: exported, accepted by the gate, served by one real Triton with parity."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy.bundles.export import candidates
from deploy.sync.model_folder import execution
from tests.integration.conftest import ask_triton

from . import tiny
from .conftest import Case

pytestmark = [pytest.mark.integration, pytest.mark.long]


FEW = ("DistilBERT", "DeBERTa-v2", "ModernBERT")
"""The most different ones; ``.ci/run models`` does all."""
ALL = ("Bert", "DistilBERT", "RoBERTa", "ModernBERT", "ELECTRA", "DeBERTa-v2", "MPNet", "XLM-R")


@pytest.mark.parametrize("name", ALL if tiny.IS_ALL else FEW)
def test_architecture_is_served_as_pytorch_answers(
    name: str, make_case: Callable[..., Case], make_bundle: Any, embedded_triton: Any, tmp_path: Path
) -> None:
    """Through the exporter, the gate and Triton's python backend on ONNX Runtime and OpenVINO: logits within 1e-4."""
    case = make_case(name)
    graph = tmp_path / "graph.onnx"
    case.original.export(graph, case.feeds())
    bundle = make_bundle(case, graph)
    for candidate in candidates.CANDIDATES[:2]:
        found = case.judge(bundle, name=candidate.name)
        assert found.is_within, found
        (bundle / execution.FILE).write_text(execution.encode(candidate.execution))
        served = embedded_triton.serve(bundle)
        try:
            for number in (0, 30, len(case.truth.bodies) - 1):
                feeds = case.processor.collate_rows(case.processor.prepare(case.truth.bodies[number]).rows)
                true = case.truth.outputs[number]["logits"]
                answered = ask_triton(embedded_triton.grpc, served, feeds)["logits"]
                np.testing.assert_allclose(answered, true, atol=1e-4 * max(1, np.abs(true).max()))
        finally:
            embedded_triton.withdraw(served)
