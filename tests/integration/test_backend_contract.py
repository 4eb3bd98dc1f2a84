"""One suite over the fake backend and the real Triton: a fake that drifts from Triton fails here."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.errors import BackendRefused, BackendUnavailable, DeadlineExceeded, ModelNotReady
from gateway.testing import FakeBackend
from gateway.triton.addresses import http_beside
from gateway.triton.backend import TritonBackend
from gateway.triton.port import Backend
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.integration


_SLOW_S = 0.1
_SLOW_MODEL = """
import json, time
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.run = open(parameters["run"]["string_value"], "a", buffering=1)
        self.seconds = float(parameters["seconds"]["string_value"])

    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb.get_input_tensor_by_name(request, "x")
            self.run.write(f"{int(np.from_dlpack(x).ravel()[0])}\\n")
            time.sleep(self.seconds)
            answers.append(pb.InferenceResponse([pb.Tensor.from_dlpack("y", x.to_dlpack())]))
        return answers
"""
"""A model like a GPU: one call at a time, each takes its time. It notes which calls it ran.

It passes tensors as DLPack, which Triton's stub can also do with the numpy 2 of Python 3.13.
"""


def _slow_config(name: str, run: Path) -> str:
    return f"""name: "{name}"
backend: "python"
max_batch_size: 1
input [ {{ name: "x" data_type: TYPE_INT64 dims: [ 1 ] }} ]
output [ {{ name: "y" data_type: TYPE_INT64 dims: [ 1 ] }} ]
dynamic_batching {{ }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
parameters {{ key: "run" value {{ string_value: "{run}" }} }}
parameters {{ key: "seconds" value {{ string_value: "{_SLOW_S}" }} }}
"""


@dataclass
class Slow:
    """A backend with the slow model; ``run`` returns the numbers that the model was called with, in order."""

    port: Backend
    run: Callable[[], list[int]]

    async def call(self, number: int, timeout: float = 60) -> int:
        """Call it with a number, which it returns."""
        found = await self.port.infer("slow", {"x": np.array([[number]], np.int64)}, ["y"], timeout=timeout)
        return int(found["y"][0, 0])

    async def idle(self) -> None:
        """Return when the model has nothing to do any more."""
        seen = -1
        while seen != (seen := len(self.run())):
            await asyncio.sleep(8 * _SLOW_S)


@pytest.fixture(params=["fake", "grpc", "http"])
async def slow(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Slow]:
    """The slow model, called over each transport; the fake runs its calls side by side."""
    if request.param == "fake":
        numbers: list[int] = []
        fake = FakeBackend()

        def run(inputs: dict[str, Any]) -> dict[str, Any]:
            numbers.append(int(inputs["x"][0, 0]))
            return {"y": inputs["x"]}

        fake.add("slow", {"x": "int64"}, {"y": "int64"}, run)
        fake.latency = 4 * _SLOW_S
        yield Slow(fake, lambda: [*numbers])
        await fake.close()
        return
    embedded = request.getfixturevalue("embedded_triton")
    log = tmp_path / "run"
    log.touch()
    folder = embedded.repository.root / "slow"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(_SLOW_MODEL)
    (folder / "config.pbtxt").write_text(_slow_config("slow", log))
    embedded.admin.load("slow")
    real = TritonBackend(
        embedded.grpc, http_of=http_beside(embedded.http.rpartition(":")[2] if request.param == "http" else "off")
    )
    await real.describe("slow")
    yield Slow(real, lambda: [int(line) for line in log.read_text().split()])
    await real.close()
    embedded.admin.unload("slow")
    shutil.rmtree(folder)


def _is_over_http(real: TritonBackend) -> bool:
    (replica,) = real._replicas.all
    return replica.http.is_open


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
    real = TritonBackend(
        embedded.grpc, http_of=http_beside(embedded.http.rpartition(":")[2] if request.param == "http" else "off")
    )
    await real.describe(name)
    assert (request.param == "http") == _is_over_http(real)
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
    outputs = await port.infer(model, tensors([1, 2], [3, 4]), ["logits"], timeout=60)
    assert ["logits"] == list(outputs)
    assert ([[3.0], [7.0]], np.float32) == (outputs["logits"].tolist(), outputs["logits"].dtype)


async def test_infer_returns_every_output_when_none_is_named(backend: tuple[Backend, str]) -> None:
    """An empty list asks for all."""
    port, model = backend
    outputs = await port.infer(model, tensors([1, 2]), [], timeout=60)
    assert {"logits", "tokens"} <= set(outputs)


async def test_loaded_model_is_ready_and_described(backend: tuple[Backend, str]) -> None:
    """Names and numpy types of inputs and outputs."""
    port, model = backend
    assert (True, True) == (await port.is_live(), await port.is_ready(model))
    assert "" == await port.refusal(model)
    info = await port.describe(model)
    assert {"input_ids": "int64", "attention_mask": "int64"} == {t.name: t.dtype for t in info.inputs}
    assert info.max_batch_size > 0
    assert info.merges_calls
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
        await port.infer("nobody", tensors([1]), [], timeout=60)


async def test_what_is_ready_is_told_with_the_key_and_without(
    embedded_triton: Any, tmp_path: Path, make_token_model: Any
) -> None:
    """The index and the statistics name the same models; what was unloaded or refused is in neither."""
    name = embedded_triton.serve(make_token_model(tmp_path / "model" / "model.onnx"))
    other = embedded_triton.serve(make_token_model(tmp_path / "other" / "model.onnx"))
    backends = [TritonBackend(embedded_triton.grpc, lookup_every=0) for _ in range(2)]
    await backends[1].is_live()
    backends[1]._replicas.all[0].grpc._refused_key = ""  # as by a Triton that was started with a key
    try:
        for real in backends:
            assert (True, True) == (await real.is_ready(name), await real.is_ready(other))
        (with_key, without) = (real._replicas.all[0].held for real in backends)
        assert with_key is not None
        assert without is not None
        assert with_key.ready == without.ready
        assert (True, None) == (with_key.entries is not None, without.entries)
    finally:
        embedded_triton.withdraw(other)
    for real in backends:
        async with asyncio.timeout(LIMIT_S):
            while await real.is_ready(other):
                await asyncio.sleep(0.05)
        assert await real.is_ready(name)
        await real.close()
    embedded_triton.withdraw(name)


async def test_rows_the_model_cannot_run_are_refused(backend: tuple[Backend, str]) -> None:
    """An id outside the table: BackendRefused (or its ModelFailed), never an outage."""
    port, model = backend
    with pytest.raises(BackendRefused):
        await port.infer(model, tensors([1, 999]), ["logits"], timeout=60)
    assert [[1.0]] == (await port.infer(model, tensors([1]), ["logits"], timeout=60))["logits"].tolist()


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
            await real.infer(name, {"nonsense": np.zeros((1, 2), np.int64)}, [], timeout=60)
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


async def test_deadline_is_kept_and_says_nothing_about_the_server(slow: Slow) -> None:
    """A caller with too little time gets its error then; the next one is answered, and nobody is taken out."""
    for timeout in (_SLOW_S / 4, 0.002, 0.0):
        with pytest.raises(DeadlineExceeded):
            await slow.call(1, timeout=timeout)
    assert 2 == await slow.call(2)
    assert await slow.port.is_live()
    assert 1 == slow.port.replicas
    if isinstance(slow.port, TritonBackend):
        (replica,) = slow.port._replicas.all
        assert not replica.is_unhealthy
        assert not replica.http.is_shut


@pytest.mark.parametrize("leave", ["cancelled", "late"])
async def test_work_for_callers_who_left_is_stopped(slow: Slow, leave: str) -> None:
    """Half of the callers leave, wave after wave: everybody else is answered, and over gRPC few of their calls run.

    Over HTTP Triton does not notice that they left.
    """
    waves, each = 5, 12
    asked = 0
    for _ in range(waves):
        numbers = range(asked, asked := asked + each)
        timeout = {number: 1.5 * _SLOW_S if leave == "late" and number % 2 else 60.0 for number in numbers}
        calls = {number: asyncio.create_task(slow.call(number, timeout[number])) for number in numbers}
        await asyncio.sleep(1.2 * _SLOW_S)
        if leave == "cancelled":
            for number in numbers:
                if number % 2:
                    calls[number].cancel()
        found = await asyncio.gather(*calls.values(), return_exceptions=True)
        assert [n for n in numbers if n % 2 == 0] == [one for n, one in zip(numbers, found, strict=True) if n % 2 == 0]
    await slow.idle()
    run = slow.run()
    for_nobody = sum(number % 2 for number in run)
    assert {number for number in range(asked) if number % 2 == 0} <= set(run)
    over_http = isinstance(slow.port, TritonBackend) and slow.port._replicas.all[0].http.is_open
    # What runs cannot be stopped: one or two of a wave, and what a busy machine runs before they have left.
    assert for_nobody <= (each // 2 if over_http else each // 3) * waves, run


async def test_many_concurrent_calls_get_their_own_rows(backend: tuple[Backend, str]) -> None:
    """Different lengths at the same time, each answer its own."""
    port, model = backend
    rows = [[(i + j) % 10 for j in range(1 + i % 7)] for i in range(60)]
    answers = await asyncio.gather(*(port.infer(model, tensors(row), ["logits"], timeout=30) for row in rows))
    assert [float(sum(row)) for row in rows] == [float(a["logits"][0, 0]) for a in answers]
