"""The program that runs inside Triton: what passes between Triton and ONNX Runtime."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from deploy.sync.runtime import generate_model, onnx_model
from deploy.sync.runtime.onnx_model import Refused, Runner


def test_only_requested_outputs_are_computed_and_an_answer_has_a_requests_rows():
    """Outputs nobody asked for cost nothing; the declared ones are the answer to a request that names none."""
    asked = []

    def run(names, feeds):
        asked.extend(names)
        both = {"tokens": feeds["ids"] * 2, "fixed": np.zeros((2, 4), dtype=np.int64)}  # however many are asked for
        return [both[n] for n in names]

    inputs = [SimpleNamespace(name="ids", type="tensor(int64)", shape=["batch", "seq"])]
    outputs = [SimpleNamespace(name=name) for name in ("tokens", "fixed")]
    session = SimpleNamespace(get_inputs=lambda: inputs, get_outputs=lambda: outputs, run=run)
    model = Runner(session, {"max_batch_size": 8, "output": [{"name": "tokens"}]})
    assert [[2, 4]] == model.answer({"ids": np.array([[1, 2]])})["tokens"].tolist()
    assert ["tokens"] == asked
    assert ["fixed"] == list(model.answer({"ids": np.array([[1], [2]])}, ("fixed",)))
    with pytest.raises(Refused, match=r"output fixed has shape \[2, 4\] for a batch of 1 rows"):
        model.answer({"ids": np.array([[1]])}, ("fixed",))


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


def test_a_stub_that_reads_arrays_wrong_is_found_out_and_gets_arrays_that_say_their_sizes():
    """Whatever versions it and numpy are of. Nothing is copied."""
    assert [True, False] == [onnx_model.passes_arrays(Stub(is_of_numpy_1=broken)) for broken in (False, True)]
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = onnx_model.as_tensor(Stub(is_of_numpy_1=True), "logits", array)
    assert ("logits", (2, 3)) == (tensor.name, tensor.held.shape)
    assert np.shares_memory(array, tensor.held)


def test_texts_that_the_stub_cannot_pass_are_refused_when_the_model_is_loaded(monkeypatch):
    """With what to do, and before any file is read."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", Stub(is_of_numpy_1=True))
    config = json.dumps({"input": [{"name": "words", "data_type": "TYPE_STRING"}], "output": []})
    with pytest.raises(Stub.TritonModelException, match=r"words holds texts.*Python 3.11 or 3.12 and 'numpy<2'"):
        onnx_model.TritonPythonModel().initialize(
            {"model_repository": "models/m", "model_version": "1", "model_config": config}
        )
    with pytest.raises(Stub.TritonModelException, match=r"text generation needs texts.*Python 3.11 or 3.12"):
        generate_model.TritonPythonModel().initialize({})
