"""One suite over the fake backend and the real Triton: a fake that drifts from Triton fails here."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.errors import BackendRefused, DeadlineExceeded, ModelNotReady
from gateway.triton.addresses import http_beside
from gateway.triton.backend import TritonBackend
from gateway.triton.port import Backend
from tests.fakes import FakeBackend
from tests.waiting import LIMIT_S, soon

pytestmark = pytest.mark.integration


_HELD_MODEL = """
import json, os, time
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.folder = parameters["folder"]["string_value"]
        self.run = open(f"{self.folder}/run", "a", buffering=1)

    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb.get_input_tensor_by_name(request, "x")
            self.run.write(f"{int(np.from_dlpack(x).ravel()[0])}\\n")
            while os.path.exists(f"{self.folder}/hold"):
                time.sleep(0.005)
            answers.append(pb.InferenceResponse([pb.Tensor.from_dlpack("y", x.to_dlpack())]))
        return answers
"""
"""A model like a GPU: one call at a time, and none ends while its folder has a file ``hold``. It notes which it ran.

It passes tensors as DLPack, which Triton's stub can also do with the numpy 2 of Python 3.13.
"""


def _held_config(folder: Path) -> str:
    return f"""name: "held"
backend: "python"
max_batch_size: 1
input [ {{ name: "x" data_type: TYPE_INT64 dims: [ 1 ] }} ]
output [ {{ name: "y" data_type: TYPE_INT64 dims: [ 1 ] }} ]
dynamic_batching {{ }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
parameters {{ key: "folder" value {{ string_value: "{folder}" }} }}
"""


@dataclass
class Held:
    """A backend with the held model; ``run`` returns the numbers that the model was called with, in order, and ``hold``
    says whether calls wait.
    """

    port: Backend
    run: Callable[[], list[int]]
    hold: Callable[[bool], None]

    async def call(self, number: int, timeout: float = LIMIT_S) -> int:
        """Call it with a number, which it returns."""
        found = await self.port.infer("held", {"x": np.array([[number]], np.int64)}, ["y"], timeout=timeout)
        return int(found["y"][0, 0])


async def connected(embedded: Any, transport: str) -> TritonBackend:
    """The real one, which calls Triton by ``grpc`` or ``http``."""
    http = http_beside(embedded.http.rpartition(":")[2] if transport == "http" else "off")
    real = TritonBackend(embedded.grpc, http_of=http)
    assert await real.is_live()
    assert (transport == "http") == is_over_http(real)
    return real


def is_over_http(port: Backend) -> bool:
    """Whether calls go over HTTP."""
    return isinstance(port, TritonBackend) and port.all[0].http.is_open


@pytest.fixture(params=["fake", "grpc", "http"])
async def held(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Held]:
    """The held model, called over each transport; the fake runs its calls side by side."""
    if request.param == "fake":
        numbers: list[int] = []
        fake, gate = FakeBackend(), asyncio.Event()
        fake.hold = gate

        def run(inputs: dict[str, Any]) -> dict[str, Any]:
            numbers.append(int(inputs["x"][0, 0]))
            return {"y": inputs["x"]}

        fake.add("held", {"x": "int64"}, {"y": "int64"}, run)
        yield Held(fake, lambda: [*numbers], lambda waits: gate.clear() if waits else gate.set())
        await fake.close()
        return
    embedded = request.getfixturevalue("embedded_triton")
    log, gate_file = tmp_path / "run", tmp_path / "hold"
    log.touch()
    folder = embedded.repository.root / "held"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(_HELD_MODEL)
    (folder / "config.pbtxt").write_text(_held_config(tmp_path))
    embedded.admin.load("held")
    real = await connected(embedded, request.param)
    yield Held(
        real, lambda: [int(line) for line in log.read_text().split()],
        lambda waits: gate_file.touch() if waits else gate_file.unlink(missing_ok=True),
    )  # fmt: skip
    gate_file.unlink(missing_ok=True)
    await real.close()
    embedded.admin.unload("held")
    shutil.rmtree(folder)


def _tokens(inputs: dict[str, Any]) -> dict[str, Any]:
    if "nonsense" in inputs or (inputs["input_ids"] >= 10).any():
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
    real = await connected(embedded, request.param)
    yield real, name
    await real.close()
    embedded.withdraw(name)


def tensors(*rows: list[int]) -> dict[str, Any]:
    """Rows of one length as tensors."""
    ids = np.array(rows, dtype=np.int64)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


async def test_a_loaded_model_is_ready_described_and_answers_what_is_wanted(backend: tuple[Backend, str]) -> None:
    """Names and numpy types of inputs and outputs; only what was asked for, or all; rows in order."""
    port, model = backend
    assert (True, True) == (await port.is_live(), await port.is_ready(model))
    info = await port.describe(model)
    assert {"input_ids": "int64", "attention_mask": "int64"} == {t.name: t.dtype for t in info.inputs}
    assert info.max_batch_size > 0
    assert {"logits", "tokens"} <= {t.name for t in info.outputs}
    outputs = await port.infer(model, tensors([1, 2], [3, 4]), ["logits"], timeout=60)
    assert ["logits"] == list(outputs)
    assert ([[3.0], [7.0]], np.float32) == (outputs["logits"].tolist(), outputs["logits"].dtype)
    assert {"logits", "tokens"} <= set(await port.infer(model, tensors([1, 2]), [], timeout=60))


async def test_a_model_that_is_not_loaded_is_not_ready(backend: tuple[Backend, str]) -> None:
    """Calling it is ModelNotReady, not an outage of the backend."""
    port, _ = backend
    assert await port.is_ready("nobody") is False
    assert "nobody" in await port.why_not_ready("nobody") or "does not have" in await port.why_not_ready("nobody")
    for call in (port.describe("nobody"), port.infer("nobody", tensors([1]), [], timeout=60)):
        with pytest.raises(ModelNotReady):
            await call


async def test_rows_the_model_cannot_run_are_refused(backend: tuple[Backend, str]) -> None:
    """An id outside the table, or names that are not the model's: BackendRefused (or its ModelFailed), no outage."""
    port, model = backend
    for inputs in (tensors([1, 999]), {"nonsense": np.zeros((1, 2), np.int64)}):
        with pytest.raises(BackendRefused):
            await port.infer(model, inputs, ["logits"], timeout=60)
    assert [[1.0]] == (await port.infer(model, tensors([1]), ["logits"], timeout=60))["logits"].tolist()


async def test_deadline_is_kept_and_says_nothing_about_the_server(held: Held) -> None:
    """A caller with too little time gets its error then; the next one is answered, and nobody is taken out."""
    held.hold(True)
    for timeout in (0.025, 0.002, 0.0):
        with pytest.raises(DeadlineExceeded):
            await held.call(1, timeout=timeout)
    held.hold(False)
    assert 2 == await held.call(2)
    assert await held.port.is_live()
    assert 1 == held.port.replicas
    if isinstance(held.port, TritonBackend):
        (replica,) = held.port.all
        assert not replica.is_unhealthy
        assert not replica.http.is_shut


@pytest.mark.parametrize("leave", ["cancelled", "late"])
async def test_work_for_callers_who_left_is_stopped(held: Held, leave: str) -> None:
    """Half of the callers leave while the first call runs: everybody else is answered, and over gRPC hardly one of
    their calls is run, once Triton has heard that they left. Over HTTP it does not notice.
    """
    each, asked = 12, itertools.count()

    async def wave() -> int:
        numbers = [next(asked) for _ in range(each)]
        before = len(held.run())
        held.hold(True)
        first = asyncio.create_task(held.call(numbers[0]))
        if isinstance(held.port, TritonBackend):  # the fake notes a call at its end
            await soon(lambda: len(held.run()) > before)
        timeouts = dict.fromkeys(numbers[1::2], 0.2 if leave == "late" else LIMIT_S)
        # Triton has one or two at hand that it runs in any case: behind those are the ones who leave
        calls = {
            number: asyncio.create_task(held.call(number, timeouts.get(number, LIMIT_S)))
            for number in (*numbers[2:8:2], *numbers[1::2], *numbers[8::2])
        }
        leaving = [calls[number] for number in timeouts]
        await asyncio.sleep(0.1)
        for one in leaving if leave == "cancelled" else ():
            one.cancel()
        left = await asyncio.gather(*leaving, return_exceptions=True)
        assert {asyncio.CancelledError if leave == "cancelled" else DeadlineExceeded} == {type(one) for one in left}
        await asyncio.sleep(0.1)
        held.hold(False)
        assert numbers[::2] == await asyncio.gather(first, *(calls[number] for number in numbers[2::2]))
        return sum(number in numbers[1::2] for number in held.run()[before:])

    async with asyncio.timeout(LIMIT_S):
        while await wave() > 2 and not is_over_http(held.port):
            continue
