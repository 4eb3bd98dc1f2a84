"""What is asked of a candidate besides its own answers: the graph it was made from."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from deploy.bundles.export.candidates import CANDIDATES
from deploy.bundles.judge import gate as gates
from deploy.bundles.judge.gate import Gate
from deploy.bundles.judge.parity import Parity

FP32, _, BF16, INT8 = CANDIDATES


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
    exported, rounded = tmp_path / "fp32.onnx", tmp_path / "int8.onnx"
    exported.write_text("exported")
    rounded.write_text("int8")

    def run(candidate):
        graph = exported if candidate.graph == "fp32" else rounded
        return gate.judge(candidate, graph, None, candidate.precision, exported=exported)

    return SimpleNamespace(run=run, found=found, wrong=wrong, asked=asked)


def test_int8_of_a_graph_that_is_right_passes(judge):
    """The graph it was made from is judged once, whoever needs it."""
    for candidate in (INT8, FP32, BF16, INT8):
        assert judge.run(candidate).is_within
    assert 2 == judge.asked.count(("int8", "int8"))
    assert 2 == judge.asked.count(("exported", "fp32"))


def test_int8_of_a_graph_that_is_wrong_is_never_accepted(judge):
    """Its own answers may be within what int8 may lose."""
    judge.found["exported", "fp32"] = (("77 tokens: the answer differs from PyTorch's",), ())
    assert judge.run(INT8).faults == (
        "the graph it was made from is wrong: 77 tokens: the answer differs from PyTorch's",
    )


def test_int8_of_a_graph_with_a_wrong_weight_is_never_accepted(judge):
    """Quantisers fold weights beyond recognition: the graph before that is looked at."""
    judge.wrong["exported"] = ["the weight a is not the original's: 1 of 9 numbers differ"]
    (fault,) = judge.run(INT8).faults
    assert "the graph it was made from is wrong: the weight a" in fault


def test_int8_of_an_inexact_graph_is_inexact(judge):
    """A person may accept it, as the graph itself."""
    judge.found["exported", "fp32"] = ((), ("largest difference 2.0e-04 (allowed 1.0e-04)",))
    found = judge.run(INT8)
    assert not found.faults
    assert found.excesses == ("the graph it was made from is inexact: largest difference 2.0e-04 (allowed 1.0e-04)",)


def test_a_graph_that_is_rounded_while_it_runs_must_be_exact(judge):
    """Its tolerance hides nothing that is in the file."""
    judge.found["exported", "fp32"] = ((), ("largest difference 2.0e-04 (allowed 1.0e-04)",))
    assert "its graph is wrong even without rounding" in judge.run(BF16).faults[0]
