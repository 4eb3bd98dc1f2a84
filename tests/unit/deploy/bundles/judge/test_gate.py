"""What is asked of a candidate besides its own answers: its graph without rounding, and its weights."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from deploy.bundles.export.candidates import CANDIDATES
from deploy.bundles.judge import gate as gates
from deploy.bundles.judge.gate import Gate
from deploy.bundles.judge.parity import Parity

FP32, _, BF16 = CANDIDATES


@pytest.fixture
def judge(tmp_path, monkeypatch):
    """Judge a candidate; ``found`` is what the answers of a graph's content show, and ``wrong`` its weights."""
    found, wrong, asked = {}, {}, []

    def compare(self, name, graph, execution, precision, tolerance):
        asked.append((graph.read_text(), precision))
        faults, excesses = found.get((graph.read_text(), precision), ((), ()))
        return Parity(name, 1, faults=faults, excesses=excesses)

    monkeypatch.setattr(Gate, "_compare", compare)
    monkeypatch.setattr(gates.weights, "faults", lambda originals, graph: wrong.get(graph.read_text(), []))
    config = SimpleNamespace(pad_id=0)
    processor = SimpleNamespace(config=config, input_names=())
    truth = SimpleNamespace(bodies=[{}])
    gate = Gate(truth, {}, tmp_path, processor, tolerance={}, options={}, threads=1, say=str)
    exported = tmp_path / "fp32.onnx"
    exported.write_text("exported")

    def run(candidate):
        return gate.judge(candidate, exported, None, candidate.precision)

    return SimpleNamespace(run=run, found=found, wrong=wrong, asked=asked)


def test_a_graph_is_judged_without_rounding_once(judge):
    """Whoever needs it."""
    for candidate in (BF16, FP32, BF16):
        assert judge.run(candidate).is_within
    assert 2 == judge.asked.count(("exported", "fp32"))


def test_a_graph_that_is_rounded_while_it_runs_must_be_exact(judge):
    """Its tolerance hides nothing that is in the file."""
    judge.found["exported", "fp32"] = ((), ("largest difference 2.0e-04 (allowed 1.0e-04)",))
    assert "its graph is wrong even without rounding" in judge.run(BF16).faults[0]
