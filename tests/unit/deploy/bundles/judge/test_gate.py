"""What is asked of a candidate besides its own answers: its graph without rounding."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from deploy.bundles.export.candidates import CANDIDATES
from deploy.bundles.judge.gate import Gate
from deploy.bundles.judge.parity import Parity

FP32, _, BF16 = CANDIDATES


@pytest.fixture
def gate(tmp_path, monkeypatch):
    """Make the gate of a graph; ``found`` is what it shows at a precision."""
    found, asked = {}, []

    def compare(self, name, execution, precision):
        asked.append(precision)
        faults, excesses = found.get(precision, ((), ()))
        return Parity(name, 1, faults=faults, excesses=excesses)

    monkeypatch.setattr(Gate, "_compare", compare)
    exported = tmp_path / "fp32.onnx"
    exported.write_text("exported")

    def judge(*candidates):
        made = Gate(SimpleNamespace(bodies=[{}]), tmp_path, exported, options={}, threads=1, say=str)
        return [made.judge(candidate, candidate.precision) for candidate in candidates]

    return SimpleNamespace(judge=judge, found=found, asked=asked)


@pytest.mark.parametrize("order", [(BF16, FP32, BF16), (FP32, BF16, BF16)])
def test_a_graph_is_judged_without_rounding_once_for_all_that_round(gate, order):
    """Whoever needs it; what an fp32 candidate showed is that."""
    assert all(found.is_within for found in gate.judge(*order))
    assert gate.asked.count("fp32") == (2 if order[0] is BF16 else 1)


def test_a_graph_that_is_rounded_while_it_runs_must_be_exact(gate):
    """Its tolerance hides nothing that is in the file."""
    gate.found["fp32"] = ((), ("largest difference 2.0e-04 (allowed 1.0e-04)",))
    for order in ((BF16,), (FP32, BF16)):
        assert "its graph is wrong even without rounding" in gate.judge(*order)[-1].faults[0]
