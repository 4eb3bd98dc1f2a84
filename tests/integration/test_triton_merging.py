"""Which calls a real Triton merges: what several gateways in front of it rely on."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.triton.backend import TritonBackend
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.integration

_MODEL = """
import json
import triton_python_backend_utils as pb

class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.log = open(parameters["log"]["string_value"], "a", buffering=1)

    def execute(self, requests):
        inputs = [pb.get_input_tensor_by_name(request, "x") for request in requests]
        self.log.write(f"{len(requests)}\\n")
        return [pb.InferenceResponse([pb.Tensor.from_dlpack("y", x.to_dlpack())]) for x in inputs]
"""
"""Notes how many calls it got at a time."""

Runs = Callable[..., Any]


@pytest.fixture
async def merged(embedded_triton: Any, tmp_path: Path) -> AsyncIterator[Runs]:
    """Return how many calls the model got at a time for two calls of these lengths, and what its description says."""
    folders: list[Path] = []

    async def run(*lengths: int, is_ragged: bool) -> tuple[list[int], bool]:
        name = f"merging{len(folders)}"
        folder, log = embedded_triton.repository.root / name, tmp_path / name
        folders.append(folder)
        (folder / "1").mkdir(parents=True)
        log.touch()
        (folder / "1" / "model.py").write_text(_MODEL)
        ragged = "allow_ragged_batch: true" if is_ragged else ""
        # Calls that can be merged wait for each other however long the machine takes; others wait in vain.
        delay_us = 60_000_000 if is_ragged or len({*lengths}) == 1 else 2_000_000
        (folder / "config.pbtxt").write_text(
            f"""backend: "python" max_batch_size: 8
            input [ {{ name: "x" data_type: TYPE_INT64 dims: [ -1 ] {ragged} }} ]
            output [ {{ name: "y" data_type: TYPE_INT64 dims: [ -1 ] }} ]
            dynamic_batching {{ preferred_batch_size: [ 2 ] max_queue_delay_microseconds: {delay_us} }}
            instance_group [ {{ count: 1 kind: KIND_CPU }} ]
            parameters {{ key: "log" value {{ string_value: "{log}" }} }}"""
        )
        embedded_triton.admin.load(name)
        backend = TritonBackend(embedded_triton.grpc)
        try:
            info = await backend.describe(name)
            calls = [{"x": np.ones((1, length), np.int64)} for length in lengths]
            found = await asyncio.gather(*(backend.infer(name, call, ["y"], timeout=LIMIT_S) for call in calls))
            assert list(lengths) == [answer["y"].shape[1] for answer in found]
        finally:
            await backend.close()
            embedded_triton.admin.unload(name)
        return sorted(int(line) for line in log.read_text().split()), info.merges_calls

    yield run
    for folder in folders:
        shutil.rmtree(folder)


async def test_calls_of_equal_length_are_merged(merged: Runs) -> None:
    assert ([2], False) == await merged(12, 12, is_ragged=False)


async def test_calls_of_different_lengths_are_not_merged_and_the_description_says_so(merged: Runs) -> None:
    assert ([1, 1], False) == await merged(11, 12, is_ragged=False)


async def test_calls_of_different_lengths_are_merged_if_the_input_is_ragged(merged: Runs) -> None:
    assert ([2], True) == await merged(11, 12, is_ragged=True)
