"""The program that runs inside Triton: groups, pads and cuts so that nobody notices their neighbours."""

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
from deploy.sync.runtime.onnx_model import Item, Refused, Runner, group_by_length, stack

PADDED = {"ids": 9, "mask": 0}


def item(index, length, rows=1):
    """Make a request of rows of one length."""
    ids = np.full((rows, length), index + 1, dtype=np.int64)
    return Item(index, {"ids": ids, "mask": np.ones_like(ids)}, rows, length, ("tokens",))


class FakeSession:
    """Doubles ids where the mask is set; refuses ids of 77 as ONNX Runtime refuses an index out of range."""

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
        if (feeds["ids"] == 77).any():
            raise RuntimeError("index out of bounds\nsecond line")
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


def run(run_with, rows, outputs=()):
    """Run one request per element; returns answers and errors by index."""
    answers, errors = {}, {}
    items = [
        run_with.read(i, {"ids": np.array(r), "mask": np.ones_like(np.array(r))}, outputs) for i, r in enumerate(rows)
    ]
    run_with.run(items, answers.__setitem__, errors.__setitem__)
    return answers, errors


LENGTHS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 4)), min_size=1, max_size=20)


@given(LENGTHS, st.floats(0, 1))
def test_groups_hold_every_request_once_and_little_padding(sizes, most):
    """No request is lost or doubled, and no group has more padding than allowed."""
    items = [item(i, length, rows) for i, (length, rows) in enumerate(sizes)]
    groups = group_by_length(items, PADDED, most)
    assert sorted(range(len(items))) == sorted(i.index for g in groups for i in g)
    for group in groups:
        cells = sum(i.rows * i.length for i in group)
        assert sum(i.rows for i in group) * max(i.length for i in group) <= (1 + most) * cells + 1e-6


def test_a_stacked_batch_is_padded_on_the_right_with_each_inputs_value():
    """Ids with the pad token, the mask with 0."""
    batch, longest = stack([item(0, 2), item(1, 3)], PADDED)
    assert 3 == longest
    assert [[1, 1, 9], [2, 2, 2]] == batch["ids"].tolist()
    assert [[1, 1, 0], [1, 1, 1]] == batch["mask"].tolist()


@given(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=12), min_size=1, max_size=10))
def test_an_answer_does_not_depend_on_the_neighbours(rows):
    """Values, shape and type are those of the request sent alone."""
    _, together = runner(max_padding=1.0)
    answers, errors = run(together, [[r] for r in rows])
    assert {} == errors
    assert [[[v * 2 for v in r]] for r in rows] == [answers[i]["tokens"].tolist() for i in range(len(rows))]


def test_a_poisoned_request_fails_alone():
    """The batch fails, everyone is run again alone, one gets the reason."""
    _, model = runner()
    answers, errors = run(model, [[[1, 2]], [[77, 2]], [[3, 4]]])
    assert ({0, 2}, {1: "index out of bounds"}) == (set(answers), errors)


def test_a_fixed_axis_of_the_same_size_is_not_cut():
    """Only axes whose size comes from the input lose their padding."""
    _, model = runner(max_padding=1.0)
    answers, _ = run(model, [[[1, 2, 3]], [[1, 2, 3, 4]]], outputs=("fixed", "tokens"))
    assert [(1, 4), (1, 3)] == [answers[0]["fixed"].shape, answers[0]["tokens"].shape]


def test_only_requested_outputs_are_computed():
    """Outputs nobody asked for cost nothing."""
    _, model = runner()
    answers, _ = run(model, [[[1]]], outputs=("fixed",))
    assert ["fixed"] == list(answers[0])


def test_inputs_of_different_length_in_one_request_are_refused():
    """Padding would hide the mistake; alone the model would refuse it too."""
    _, model = runner()
    with pytest.raises(Refused, match=r"these inputs must have the same length, got ids \[1, 3\], mask \[1, 2\]"):
        model.read(0, {"ids": np.ones((1, 3), dtype=np.int64), "mask": np.ones((1, 2), dtype=np.int64)}, ())


def test_a_model_without_batch_is_run_one_by_one():
    """max_batch_size 0: shapes are whole, nothing is stacked."""
    session = FakeSession()
    model = Runner(session, {"max_batch_size": 0, "output": [{"name": "tokens", "data_type": "TYPE_INT64"}]})
    answers, errors = run(model, [[[1, 2]], [[3]]])
    assert ([(1, 2), (1, 1)], {}, 2) == (session.batches, errors, len(answers))


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
