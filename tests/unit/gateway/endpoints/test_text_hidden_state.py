"""The mean hidden state of a classifier: asked for by few calls, counted for drift, and never part of an answer."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.metrics import variables
from gateway.metrics.embeddings import Share
from gateway.testing import FakeBackend
from preprocessing.types import MEAN_HIDDEN_STATE
from tests.unit.gateway.conftest import Stack

HIDDEN = 16


class Recording:
    """Wraps a fake model: it answers what is asked for, and remembers what that was."""

    def __init__(self, stack: Stack, model: str) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.backend: FakeBackend = stack.backend
        info, run = self.backend.models[model]
        self.backend.add(
            model, {t.name: t.dtype for t in info.inputs},
            {**{t.name: t.dtype for t in info.outputs}, MEAN_HIDDEN_STATE: "float32"},
            lambda tensors: {**run(tensors), MEAN_HIDDEN_STATE: self.vectors(tensors)},
        )  # fmt: skip
        infer = self.backend.infer

        async def recorded(name: str, inputs: Any, outputs: Any, **options: Any) -> Any:
            self.asked.append(tuple(outputs))
            return await infer(name, inputs, outputs, **options)

        self.backend.infer = recorded  # type: ignore[method-assign]

    @staticmethod
    def vectors(tensors: Any) -> Any:
        ids = np.asarray(tensors["input_ids"], dtype=np.float64).sum(axis=1)
        return np.stack([np.sin(ids * (n + 1)) for n in range(HIDDEN)], axis=1).astype(np.float32)


@pytest.fixture
def watched(stack: Stack) -> Recording:
    stack.deploy("plain", "m1")
    stack.deploy("watched", "m2")
    return Recording(stack, stack.triton_name("watched"))


async def counted(stack: Stack) -> dict[str, float]:
    """Return how many values of each component were counted, by endpoint and component."""
    lines = (await stack.client.get("/metrics?detail=full")).text.splitlines()
    return {
        f"{endpoint} {name}": float(line.rpartition(" ")[2])
        for line in lines if line.startswith("gateway_variable_scalar_count")
        for name in variables.EMBEDDING for endpoint in ("plain", "watched")
        if f'variable="{name}"' in line and f'endpoint="{endpoint}"' in line
    }  # fmt: skip


async def test_it_is_asked_for_and_counted_and_in_no_answer(stack: Stack, watched: Recording) -> None:
    await stack.served("plain", "watched")
    watched.asked.clear()
    for text in ("good film", ["bad film", "hello world"], ["good"] * 130):  # the last takes several calls
        answers = [
            (await stack.client.post(f"/serve/{url}", json={"text": text})).json() for url in ("plain", "watched")
        ]
        assert answers[0] == answers[1]
    assert ("logits",) in watched.asked, "of the endpoint without it"
    assert ("logits", MEAN_HIDDEN_STATE) in watched.asked
    found = await counted(stack)
    assert not [key for key in found if "plain" in key]
    assert {133.0} == {found[f"watched {name}"] for name in variables.EMBEDDING}
    described = await stack.client.get("/v2/models/watched")
    assert 200 == described.status_code
    assert MEAN_HIDDEN_STATE not in described.text


async def test_hooks_get_the_models_answer_only(stack: Stack, watched: Recording) -> None:
    code = "class Preprocess:\n    def postprocess(self, data, state, collect):\n        return {'got': str(data)}\n"
    stack.add_hook("hooked", code, "m2", engine="triton")
    stack.load("hooked")
    Recording(stack, stack.triton_name("hooked"))
    await stack.served("plain", "watched", "hooked")
    answer = await stack.client.post("/serve/hooked", json={"text": "good film"})
    assert 200 == answer.status_code, answer.text
    assert MEAN_HIDDEN_STATE not in answer.text


def test_few_calls_ask_for_it_under_load_and_each_row_has_the_same_chance() -> None:
    """Of 10,000 rows a second in calls of 1 to 64 rows, a few hundred; whatever the size of their call."""
    now, rng = 0.0, np.random.default_rng(0)
    share = Share(chance=rng.random, clock=lambda: now)
    rows, drawn = np.zeros(65), np.zeros(65)
    for number in range(200_000):
        size = (1, 8, 64)[number % 3]
        now += size / 10_000
        got = share.draws(size)
        if now > 2:
            rows[size] += size
            drawn[size] += size * got
    assert 50 < drawn.sum() / now < 300
    shares = [drawn[size] / rows[size] for size in (1, 8, 64)]
    assert max(shares) < 1.5 * min(shares)


def test_all_calls_ask_for_it_at_a_low_rate() -> None:
    now = 0.0
    share = Share(chance=lambda: 0.5, clock=lambda: now)
    for _ in range(500):
        now += 0.1
        assert share.draws(1)
