"""The program that runs inside Triton: pads and cuts so that nobody notices."""

from __future__ import annotations

import hashlib
import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.sync.runtime import generate_model, onnx_model
from deploy.sync.runtime.onnx_model import Refused, Runner

PADDED = {"ids": 9, "mask": 0}


class FakeSession:
    """Doubles ids where the mask is set."""

    def __init__(self):
        self.batches = []

    def get_inputs(self):
        return [SimpleNamespace(name=n, type="tensor(int64)", shape=["batch", "seq"]) for n in ("ids", "mask")]

    def get_outputs(self):
        return [
            SimpleNamespace(name="tokens", type="tensor(int64)", shape=["batch", "seq"]),
            SimpleNamespace(name="fixed", type="tensor(int64)", shape=["batch", 4]),
        ]

    def run(self, names, feeds):
        self.batches.append(feeds["ids"].shape)
        both = {"tokens": feeds["ids"] * 2 * feeds["mask"], "fixed": np.zeros((len(feeds["ids"]), 4), dtype=np.int64)}
        return [both[n] for n in names]


def runner(**parameters):
    """Make a runner over the fake session."""
    values = {"pad_values": json.dumps(PADDED), **parameters}
    session = FakeSession()
    config = {
        "max_batch_size": 8,
        "parameters": {k: {"string_value": str(v)} for k, v in values.items()},
        "output": [{"name": "tokens", "data_type": "TYPE_INT64"}],
    }
    return session, Runner(session, config)


def feeds(ids):
    """A request of these token ids."""
    return {"ids": np.array(ids), "mask": np.ones_like(np.array(ids))}


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 3), st.integers(1, 8))
def test_a_padded_answer_is_that_of_the_request_without_padding(ids, rows, pad_to):
    """Values and shape; what is computed is as long as a multiple says, with each input's own padding."""
    session, model = runner(pad_to=pad_to)
    answer = model.answer(feeds([ids] * rows))
    assert [[v * 2 for v in ids]] * rows == answer["tokens"].tolist()
    assert [(rows, -(-len(ids) // pad_to) * pad_to)] == session.batches


def test_a_fixed_axis_of_the_same_size_is_not_cut():
    """Only axes whose size comes from the input lose their padding."""
    _, model = runner(pad_to=4)
    answer = model.answer(feeds([[1, 2, 3]]), ("fixed", "tokens"))
    assert [(1, 4), (1, 3)] == [answer["fixed"].shape, answer["tokens"].shape]


def test_only_requested_outputs_are_computed():
    """Outputs nobody asked for cost nothing."""
    _, model = runner()
    assert ["fixed"] == list(model.answer(feeds([[1]]), ("fixed",)))


def test_inputs_of_different_length_in_one_request_are_refused():
    """Padding would hide the mistake; without it the model itself refuses."""
    _, model = runner(pad_to=4)
    with pytest.raises(Refused, match=r"these inputs must have the same length, got ids \[1, 3\], mask \[1, 2\]"):
        model.answer({"ids": np.ones((1, 3), dtype=np.int64), "mask": np.ones((1, 2), dtype=np.int64)})


def test_a_file_that_was_not_judged_is_named(tmp_path):
    """Missing, or of another hash; a model without hashes is not compared."""
    (tmp_path / "model.onnx").write_bytes(b"graph")

    def found(judged):
        return onnx_model.find_changed(tmp_path, {"judged": json.dumps(judged)})

    assert "" == onnx_model.find_changed(tmp_path, {})
    assert "" == found({"model.onnx": hashlib.sha256(b"graph").hexdigest()})
    assert found({"model.onnx": "0" * 64}).startswith("model.onnx is not the file that was judged")
    assert "model.onnx.data cannot be read: No such file or directory" == found({"model.onnx.data": "0" * 64})


class Stub:
    """The stub's module, as far as tensors go; built for numpy 1 it takes the sizes of numpy 2's elements for 0."""

    class TritonModelException(Exception):
        pass

    def __init__(self, *, is_of_numpy_1: bool) -> None:
        self._is_broken = is_of_numpy_1
        self.Tensor = SimpleNamespace(from_dlpack=self._taken)

    def _taken(self, name: str, given: Any) -> Any:
        capsule = given if type(given).__name__ == "PyCapsule" else given.__dlpack__()
        array = np.from_dlpack(Held(capsule))
        seen = np.lib.stride_tricks.as_strided(array, strides=(0,) * array.ndim) if self._is_broken else array
        return SimpleNamespace(name=name, as_numpy=lambda: seen, held=array)


class Held:
    """What numpy takes a capsule from."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def test_a_stub_that_reads_arrays_wrong_is_found_out():
    """Whatever versions it and numpy are of."""
    assert [True, False] == [onnx_model.passes_arrays(Stub(is_of_numpy_1=broken)) for broken in (False, True)]


def test_an_array_that_is_handed_over_says_its_sizes_itself():
    """Nothing is copied."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = onnx_model.as_tensor(Stub(is_of_numpy_1=True), "logits", array)
    assert ("logits", (2, 3)) == (tensor.name, tensor.held.shape)
    assert np.shares_memory(array, tensor.held)


def test_texts_that_the_stub_cannot_pass_are_refused_when_the_model_is_loaded(monkeypatch):
    """With what to do, and before any file is read."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", Stub(is_of_numpy_1=True))
    config = {"input": [{"name": "words", "data_type": "TYPE_STRING"}], "output": []}
    with pytest.raises(Stub.TritonModelException, match=r"words holds texts.*Python 3.11 or 3.12 and 'numpy<2'"):
        onnx_model.TritonPythonModel().initialize({"model_config": json.dumps(config)})
    with pytest.raises(Stub.TritonModelException, match=r"text generation needs texts.*Python 3.11 or 3.12"):
        generate_model.TritonPythonModel().initialize({})
