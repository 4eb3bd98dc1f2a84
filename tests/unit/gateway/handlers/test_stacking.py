"""Tensors of several requests in one call: each request gets its own rows, and only its own error."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from gateway.errors import BackendRefused
from gateway.handlers.endpoint import Endpoint, Identity
from gateway.handlers.stacking import StackedCalls
from gateway.handlers.tensors import TensorHandler, TritonCall
from gateway.path.serve import ask_version
from gateway.trace import Trace
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


async def ask(calls: StackedCalls, *arrays: Any, timeout: float = LIMIT_S) -> list[Any]:
    """Make a call with each of the arrays at the same time; return outputs or errors."""
    asked = (calls.infer({"x": array}, ("y",), request(timeout)) for array in arrays)
    found = await asyncio.gather(*asked, return_exceptions=True)
    return [one if isinstance(one, BaseException) else one[0] for one in found]


def request(timeout: float = LIMIT_S) -> Trace:
    """Return a request that has so many seconds."""
    trace = Trace("r")
    trace.deadline = asyncio.get_running_loop().time() + timeout
    return trace


def full(value: float, *shape: int) -> Any:
    """Return an array filled with one number."""
    return np.full(shape, value, np.float32)


async def test_tensors_with_the_same_shape_of_a_row_share_a_call(backend: FakeBackend) -> None:
    """Three requests make one call, and each gets its own rows. Another shape makes another call."""
    calls = StackedCalls(backend, "m", max_rows=8)
    one, two, wide, three = await ask(calls, full(1, 2, 3), full(2, 1, 3), full(9, 1, 4), full(3, 3, 3))
    assert [(2, 3), (1, 3), (1, 4), (3, 3)] == [found["y"].shape for found in (one, two, wide, three)]
    assert [2, 4, 18, 6] == [found["y"][0, 0] for found in (one, two, wide, three)]
    assert [("m", 1), ("m", 6)] == sorted(backend.calls)


async def test_rows_beyond_the_models_batch_size_are_left_for_another_call(backend: FakeBackend) -> None:
    """A single request with more rows is sent as it is, and Triton refuses it."""
    await ask(StackedCalls(backend, "m", max_rows=4), full(1, 3, 2), full(2, 3, 2), full(3, 9, 2))
    assert [3, 3, 9] == [rows for _, rows in backend.calls]


async def test_requests_for_different_outputs_do_not_share_a_call(backend: FakeBackend) -> None:
    """One asks for y and one for z, but a call has one list of outputs."""
    calls = StackedCalls(backend, "m", max_rows=8)
    (y, *_), (z, *_) = await asyncio.gather(
        calls.infer({"x": full(1, 1, 2)}, ("y",), request()),
        calls.infer({"x": full(1, 1, 2)}, ("z",), request()),
    )
    assert (["y"], ["z"]) == (list(y), list(z))
    assert len(backend.calls) == 2


async def test_large_arrays_are_sent_alone(backend: FakeBackend) -> None:
    """Joining megabytes on the event loop would cost more than a call."""
    await ask(StackedCalls(backend, "m", max_rows=64), full(1, 1, 100_000), full(2, 1, 100_000))
    assert [1, 1] == [rows for _, rows in backend.calls]


async def test_tensors_without_rows_are_sent_alone(backend: FakeBackend) -> None:
    """A scalar beside an array cannot be joined or cut."""
    backend.add("s", {"x": "float32", "k": "int64"}, {"y": "float32"}, lambda i: {"y": i["x"] * i["k"]})
    calls = StackedCalls(backend, "s", max_rows=8)
    inputs = {"x": full(2, 3, 2), "k": np.array(5)}
    found = await asyncio.gather(*(calls.infer(inputs, (), request()) for _ in range(2)))
    assert [(3, 2), (3, 2)] == [outputs["y"].shape for outputs, _, _ in found]
    assert len(backend.calls) == 2


async def test_a_request_id_is_sent_only_with_a_call_of_that_request_alone(backend: FakeBackend) -> None:
    """Triton's log names the request that a call was made for. A call for two requests has no id."""
    ids: list[str] = []
    infer = backend.infer

    async def noting(*arguments: Any, request_id: str = "", **more: Any) -> Any:
        ids.append(request_id)
        return await infer(*arguments, **more)

    backend.infer = noting  # type: ignore[method-assign]
    calls = StackedCalls(backend, "m", max_rows=8)
    await calls.infer({"x": full(1, 1, 2)}, (), request(), request_id="a")
    await asyncio.gather(*(calls.infer({"x": full(1, 1, 2)}, (), request(), request_id=i) for i in "bc"))
    assert ["a", ""] == ids


async def test_requests_of_a_tensor_endpoint_share_calls_and_the_status_shows_their_prices(
    backend: FakeBackend,
) -> None:
    """Two requests of one tick make one call. ``/v1/status`` then has the prices."""
    info = await backend.describe("m")
    endpoint = Endpoint(Identity("e", "e", ""), TensorHandler(TritonCall(backend, "m", info.inputs, ("y",), info)))
    assert endpoint.prices is None
    asks = await asyncio.gather(*(ask_version(endpoint, {"x": [[value]]}, LIMIT_S) for value in (1.0, 2.0)))
    assert [[[2.0]], [[4.0]]] == [ask.reply["y"].tolist() for ask in asks]
    assert [("m", 2)] == backend.calls
    assert endpoint.prices is not None
    assert endpoint.prices["calls"] == 1


async def test_the_rows_of_each_call_of_a_tensor_endpoint_are_told(backend: FakeBackend) -> None:
    """Two requests in one call, then one alone."""
    info = await backend.describe("m")
    rows: list[int] = []
    handler = TensorHandler(
        TritonCall(backend, "m", info.inputs, ("y",), info, on_batch=lambda count, *_: rows.append(count))
    )
    endpoint = Endpoint(Identity("e", "e", ""), handler)
    await asyncio.gather(*(ask_version(endpoint, {"x": [[value]]}, LIMIT_S) for value in (1.0, 2.0)))
    await ask_version(endpoint, {"x": [[1.0], [2.0], [3.0]]}, LIMIT_S)
    assert [2, 3] == rows


async def test_a_hooks_number_beyond_the_range_becomes_infinity(backend: FakeBackend) -> None:
    """As in ClearML: hooks mask attention with the smallest float64. No warning is raised."""
    call = TritonCall(backend, "m", (await backend.describe("m")).inputs, ("y",))
    mask = np.array([0.0, np.finfo(np.float64).min])
    assert [0.0, -np.inf] == call.tensors(mask)["x"].tolist()
