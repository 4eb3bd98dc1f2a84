"""Tensors of several requests in one call: each request gets its own rows, and only its own error."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from gateway.errors import BackendRefused
from gateway.handlers.endpoint import Endpoint, Identity, ask_version
from gateway.handlers.tensors import TensorHandler, TritonCall
from gateway.trace import Trace
from gateway.triton.port import ModelInfo
from tests.fakes import FakeBackend
from tests.waiting import LIMIT_S


def doubled(inputs: dict[str, Any]) -> dict[str, Any]:
    """A model that doubles its input and refuses negative numbers."""
    if (inputs["x"] < 0).any():
        raise BackendRefused("negative")
    return {"y": inputs["x"] * 2, "z": inputs["x"] + 1}


@pytest.fixture
def backend() -> FakeBackend:
    """A server with that model."""
    backend = FakeBackend()
    backend.add("m", {"x": "float32"}, {"y": "float32", "z": "float32"}, doubled)
    return backend


def request(timeout: float = LIMIT_S) -> Trace:
    """Return a request that has so many seconds."""
    trace = Trace("r")
    trace.deadline = asyncio.get_running_loop().time() + timeout
    return trace


def full(value: float, *shape: int) -> Any:
    """Return an array filled with one number."""
    return np.full(shape, value, np.float32)


@pytest.mark.parametrize(
    ("asked", "max_rows", "calls"),
    [
        ([("y", 2, 3), ("y", 1, 3), ("y", 1, 4), ("y", 3, 3)], 8, [1, 6]),
        ([("y", 3, 2), ("y", 2, 2), ("y", 9, 2)], 4, [2, 3, 9]),  # Triton refuses more rows than its model takes
        ([("y", 1, 2), ("z", 1, 2)], 8, [1, 1]),  # a call has one list of outputs
        ([("y", 1, 100_000), ("y", 1, 100_000)], 64, [1, 1]),  # joining megabytes would cost more than a call
        ([("y", 1, 2), ("y", 1, 2)], 0, [1, 1]),  # a model without a batch dimension
    ],
    ids=["shapes of rows", "the model's batch size", "outputs", "large arrays", "no batch dimension"],
)
async def test_tensors_with_the_same_shape_of_a_row_share_a_call(
    backend: FakeBackend, asked: list[tuple[Any, ...]], max_rows: int, calls: list[int]
) -> None:
    """Each request gets its own rows, of the output that it asked for."""
    stacked = TritonCall(backend, ModelInfo("m", (), (), max_rows), ())
    found = await asyncio.gather(
        *(stacked.infer({"x": full(value, *shape)}, (name,), request()) for value, (name, *shape) in enumerate(asked))
    )
    for value, ((name, *shape), (outputs, _, _)) in enumerate(zip(asked, found, strict=True)):
        assert [name] == list(outputs)
        assert np.array_equal(outputs[name], full(value * 2 if name == "y" else value + 1, *shape))
    assert calls == sorted(rows for _, rows in backend.calls)


async def test_tensors_without_rows_are_sent_alone(backend: FakeBackend) -> None:
    """A scalar beside an array cannot be joined or cut."""
    backend.add("s", {"x": "float32", "k": "int64"}, {"y": "float32"}, lambda i: {"y": i["x"] * i["k"]})
    calls = TritonCall(backend, ModelInfo("s", (), (), 8), ())
    inputs = {"x": full(2, 3, 2), "k": np.array(5)}
    found = await asyncio.gather(*(calls.infer(inputs, (), request()) for _ in range(2)))
    assert [(3, 2), (3, 2)] == [outputs["y"].shape for outputs, _, _ in found]
    assert len(backend.calls) == 2


async def test_requests_of_a_tensor_endpoint_share_calls_and_the_status_shows_their_prices(
    backend: FakeBackend,
) -> None:
    """Two requests of one tick make one call. ``/v1/status`` then has the prices. The rows of each call are told."""
    info, rows = await backend.describe("m"), list[int]()
    call = TritonCall(backend, info, ("y",), on_batch=lambda count, *_: rows.append(count))
    endpoint = Endpoint(Identity("e", "e", ""), TensorHandler(call))
    assert endpoint.prices is None
    asks = await asyncio.gather(*(ask_version(endpoint, {"x": [[value]]}, LIMIT_S) for value in (1.0, 2.0)))
    assert [[[2.0]], [[4.0]]] == [ask.answer["y"].tolist() for ask in asks]
    await ask_version(endpoint, {"x": [[1.0], [2.0], [3.0]]}, LIMIT_S)
    assert [("m", 2), ("m", 3)] == backend.calls
    assert [2, 3] == rows
    assert endpoint.prices is not None
    assert endpoint.prices["calls"] >= 1


async def test_a_hooks_number_beyond_the_range_becomes_infinity(backend: FakeBackend) -> None:
    """As in ClearML: hooks mask attention with the smallest float64. No warning is raised."""
    call = TritonCall(backend, await backend.describe("m"), ("y",))
    mask = np.array([0.0, np.finfo(np.float64).min])
    assert [0.0, -np.inf] == call.tensors(mask)["x"].tolist()
