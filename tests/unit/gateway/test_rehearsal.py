"""New versions are tried before they are served: samples of the bundle, with the answers they must give."""

from __future__ import annotations

import json
import zipfile
from typing import Any

import numpy as np

from tests.unit.gateway.conftest import classify

GOOD = {
    "body": {"text": "good film"},
    "answer": {"label": "GOOD", "score": 0.731, "scores": {"GOOD": 0.731, "BAD": 0.269}},
}


def add(stack: Any, model_id: str, samples: list[dict[str, Any]], code: str = "", **content: Any) -> None:
    """Register a text bundle with a ``warmup.json``."""
    stack.add_text_model(f"{model_id}-plain")
    bundle = stack.folder / model_id
    with zipfile.ZipFile(stack.folder / f"{model_id}-plain.zip") as packed:
        packed.extractall(bundle)
    (bundle / "warmup.json").write_text(json.dumps({"samples": samples, **content}))
    if code:
        (bundle / "preprocess.py").write_text(code)
    stack.add_package(model_id, bundle)


async def test_a_version_that_answers_its_samples_is_served(stack: Any) -> None:
    """Within the tolerance; a sample without an answer only warms up."""
    add(stack, "m1", [GOOD, {"body": {"text": "bad"}}])
    stack.registry.add_endpoint("e", "m1")
    stack.load("e")
    await stack.served("e")


async def test_a_version_that_answers_otherwise_is_refused_and_the_old_one_serves(stack: Any) -> None:
    """The reason names the sample and the difference; it is tried again and served when it agrees."""
    stack.deploy("e", "m0")
    await stack.served("e")
    add(stack, "m1", [GOOD])
    stack.registry.add_endpoint("e", "m1")

    def swapped(inputs: dict[str, Any]) -> dict[str, Any]:
        return {"logits": np.flip(classify(inputs)["logits"], axis=1).copy()}

    stack.load("e", swapped)
    await stack.until(lambda: stack.state("e")[0] == "failed")
    assert 'sample 0 of the bundle: answer.label is "BAD" instead of "GOOD"' in stack.state("e")[1]
    reply = await stack.client.post("/serve/e", json={"text": "good"})
    assert (200, "m0") == (reply.status_code, reply.headers["x-model-id"])
    assert 'gateway_endpoint_builds_total{outcome="answers_disagree"}' in (await stack.client.get("/metrics")).text
    stack.load("e")
    await stack.until(lambda: stack.gateway.table.current.endpoints["e"].identity.model_id == "m1")


async def test_samples_are_compared_without_the_endpoints_options(stack: Any) -> None:
    """Options change what an answer looks like, not whether the model is what it was."""
    add(stack, "m1", [GOOD])
    stack.registry.add_endpoint("e", "m1", auxiliary_cfg={"gateway": {"top_k": "1"}})
    stack.load("e")
    await stack.served("e")
    assert {"GOOD"} == set((await stack.client.post("/serve/e", json={"text": "good"})).json()["scores"])


CODE = """
class Preprocess:
    def process(self, body, state, collect_custom_statistics_fn=None):
        return {{"y": body["x"] * {factor}}}
"""


async def test_samples_run_through_the_bundles_own_code(stack: Any) -> None:
    """Code that answers otherwise, or raises, is found before it is served."""
    samples = [{"body": {"x": 2}, "answer": {"y": 6}}]
    add(stack, "right", samples, CODE.format(factor=3))
    add(stack, "wrong", samples, CODE.format(factor=4))
    add(stack, "raises", samples, CODE.format(factor="None"))
    for name in ("right", "wrong", "raises"):
        stack.registry.add_endpoint(name, name, engine="custom")
    await stack.served("right")
    await stack.until(lambda: stack.state("wrong")[0] == stack.state("raises")[0] == "failed")
    assert "answer.y is 8 instead of 6" in stack.state("wrong")[1]
    assert "sample 0 of the bundle failed" in stack.state("raises")[1]


async def test_other_code_in_front_of_the_bundle_is_not_held_to_its_samples(stack: Any) -> None:
    """They were recorded without it."""
    add(stack, "m1", [GOOD])
    stack.add_hook("e", CODE.format(factor=1), model_id="m1", engine="custom")
    await stack.served("e")
