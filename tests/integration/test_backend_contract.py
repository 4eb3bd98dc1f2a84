"""One suite over the fake backend and the real Triton: a fake that drifts from Triton fails here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.errors import BackendRefused, BackendUnavailable, DeadlineExceeded, ModelNotReady
from gateway.testing import FakeBackend
from gateway.triton.grpc import TritonBackend
from gateway.triton.port import Backend

pytestmark = pytest.mark.integration


def _tokens(inputs: dict[str, Any]) -> dict[str, Any]:
    if (inputs["input_ids"] >= 10).any():
        raise BackendRefused("index out of range")
    worth = (inputs["input_ids"] * inputs["attention_mask"]).astype(np.float32)
    return {"tokens": worth, "logits": worth.sum(1, keepdims=True)}


@pytest.fixture(params=["fake", "grpc", "http"])
async def backend(
    request: pytest.FixtureRequest, tmp_path: Path, make_token_model: Callable[..., Path]
) -> AsyncIterator[tuple[Backend, str]]:
    """A backend with the token model loaded, and the model's name."""
    if request.param == "fake":
        fake = FakeBackend()
        fake.add("m", {"input_ids": "int64", "attention_mask": "int64"},
                 {"logits": "float32", "tokens": "float32"}, _tokens)  # fmt: skip
        yield fake, "m"
        await fake.close()
        return
    embedded = request.getfixturevalue("embedded_triton")
    name = embedded.serve(make_token_model(tmp_path / "model" / "model.onnx"))
    real = TritonBackend(embedded.grpc, http=embedded.http if request.param == "http" else "off")
    await real.describe(name)
    assert (request.param == "http") == bool(real._http and real._http.is_up)
    yield real, name
    await real.close()
    embedded.withdraw(name)


def tensors(*rows: list[int]) -> dict[str, Any]:
    """Rows of one length as tensors."""
    ids = np.array(rows, dtype=np.int64)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


async def test_infer_returns_the_wanted_outputs(backend: tuple[Backend, str]) -> None:
    """Only what was asked for, rows in order, right numbers and type."""
    port, model = backend
    outputs = await port.infer(model, tensors([1, 2], [3, 4]), ["logits"], timeout=10)
    assert ["logits"] == list(outputs)
    assert ([[3.0], [7.0]], np.float32) == (outputs["logits"].tolist(), outputs["logits"].dtype)


async def test_infer_returns_every_output_when_none_is_named(backend: tuple[Backend, str]) -> None:
    """An empty list asks for all."""
    port, model = backend
    outputs = await port.infer(model, tensors([1, 2]), [], timeout=10)
    assert {"logits", "tokens"} <= set(outputs)


async def test_loaded_model_is_ready_and_described(backend: tuple[Backend, str]) -> None:
    """Names and numpy types of inputs and outputs."""
    port, model = backend
    assert (True, True) == (await port.is_live(), await port.is_ready(model))
    assert "" == await port.refusal(model)
    info = await port.describe(model)
    assert {"input_ids": "int64", "attention_mask": "int64"} == {t.name: t.dtype for t in info.inputs}
    assert info.max_batch_size > 0
    assert {"logits", "tokens"} <= {t.name for t in info.outputs}


async def test_model_that_is_not_loaded_is_not_ready(backend: tuple[Backend, str]) -> None:
    """Calling it is ModelNotReady, not an outage of the backend."""
    port, _ = backend
    assert await port.is_ready("nobody") is False
    assert "nobody" in await port.why_not_ready("nobody") or "does not have" in await port.why_not_ready("nobody")
    assert "" == await port.refusal("nobody")
    with pytest.raises(ModelNotReady):
        await port.describe("nobody")
    with pytest.raises(ModelNotReady):
        await port.infer("nobody", tensors([1]), [], timeout=10)


async def test_rows_the_model_cannot_run_are_refused(backend: tuple[Backend, str]) -> None:
    """An id outside the table: BackendRefused (or its ModelFailed), never an outage."""
    port, model = backend
    with pytest.raises(BackendRefused):
        await port.infer(model, tensors([1, 999]), ["logits"], timeout=10)
    assert [[1.0]] == (await port.infer(model, tensors([1]), ["logits"], timeout=10))["logits"].tolist()


async def test_unreachable_server_is_unavailable_and_not_live() -> None:
    """Nothing listens there: BackendUnavailable at once; probes answer False."""
    real = TritonBackend("127.0.0.1:9")
    assert (False, False) == (await real.is_live(), await real.is_ready("m"))
    with pytest.raises(BackendUnavailable):
        await real.infer("m", tensors([1]), [], timeout=5)
    await real.close()
    fake = FakeBackend()
    fake.is_up = False
    with pytest.raises(BackendUnavailable):
        await fake.infer("m", tensors([1]), [], timeout=5)


async def test_wrong_input_names_are_refused(embedded_triton: Any, tmp_path: Path, make_token_model: Any) -> None:
    """Triton's own complaint reaches the error."""
    name = embedded_triton.serve(make_token_model(tmp_path / "model" / "model.onnx"))
    real = TritonBackend(embedded_triton.grpc)
    try:
        with pytest.raises(BackendRefused, match="Triton refuses the tensors"):
            await real.infer(name, {"nonsense": np.zeros((1, 2), np.int64)}, [], timeout=10)
    finally:
        await real.close()
        embedded_triton.withdraw(name)


async def test_deadline_is_carried_to_triton(embedded_triton: Any, tmp_path: Path, make_token_model: Any) -> None:
    """A call that cannot make it ends as DeadlineExceeded."""
    name = embedded_triton.serve(make_token_model(tmp_path / "model" / "model.onnx"))
    real = TritonBackend(embedded_triton.grpc)
    try:
        with pytest.raises(DeadlineExceeded):
            await real.infer(name, tensors([1]), [], timeout=0.000001)
    finally:
        await real.close()
        embedded_triton.withdraw(name)


async def test_many_concurrent_calls_get_their_own_rows(backend: tuple[Backend, str]) -> None:
    """Different lengths at the same time, each answer its own."""
    port, model = backend
    rows = [[(i + j) % 10 for j in range(1 + i % 7)] for i in range(60)]
    answers = await asyncio.gather(*(port.infer(model, tensors(row), ["logits"], timeout=30) for row in rows))
    assert [float(sum(row)) for row in rows] == [float(a["logits"][0, 0]) for a in answers]
