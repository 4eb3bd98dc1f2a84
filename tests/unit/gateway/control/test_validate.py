"""Validation of new versions: they must answer their bundle's samples before they serve."""

from __future__ import annotations

import json
import threading
import zipfile
from typing import Any

import numpy as np

from gateway.errors import ModelFailed
from tests.unit.gateway.conftest import answering, classify

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


async def test_a_version_with_wrong_answers_is_refused_and_the_old_one_serves(stack: Any) -> None:
    """The reason names the sample and the difference; the version is tried again, and served once it agrees."""
    stack.deploy("e", "m0")
    await stack.served("e")
    add(stack, "m1", [GOOD, {"body": {"text": "bad"}}])
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


CODE = """
class Preprocess:
    def process(self, body, state, collect_custom_statistics_fn=None):
        return {{"y": body["x"] * {factor}}}
"""


async def test_samples_run_through_the_bundles_own_code(stack: Any) -> None:
    """Code that gives wrong answers or raises is detected before it serves. Samples were recorded without other code,
    and without the endpoint's options, which change the form of answers, not the model.
    """
    samples = [{"body": {"x": 2}, "answer": {"y": 6}}]
    for name, factor in (("right", 3), ("wrong", 4), ("raises", "None")):
        add(stack, name, samples, CODE.format(factor=factor))
        stack.registry.add_endpoint(name, name, engine="custom")
    add(stack, "m1", [GOOD])
    stack.add_hook("other", CODE.format(factor=1), model_id="m1", engine="custom")
    stack.registry.add_endpoint("top", "m1", auxiliary_cfg={"gateway": {"top_k": "1"}})
    stack.load("top")
    await stack.served("right", "other", "top")
    assert {"GOOD"} == set((await stack.client.post("/serve/top", json={"text": "good"})).json()["scores"])
    await stack.until(lambda: stack.state("wrong")[0] == stack.state("raises")[0] == "failed")
    assert "answer.y is 8 instead of 6" in stack.state("wrong")[1]
    assert "sample 0 of the bundle failed" in stack.state("raises")[1]


async def test_code_that_never_finishes_loading_delays_nothing_else(make_stack: Any) -> None:
    """The previous version serves, and other versions are built. What is no longer wanted is unloaded at last."""
    stack = make_stack()
    async with stack.gateway.running(), stack.client:
        stack.add_hook("h", answering("1"))
        await stack.served("h")
        go_on, unloaded = stack.folder / "go-on", stack.folder / "unloaded"
        stuck = f"import os, time\nwhile not os.path.exists({str(go_on)!r}):\n    time.sleep(0.1)\n{answering('2')}"
        stuck += f"    def unload(self):\n        open({str(unloaded)!r}, 'w').close()\n"
        urls = ["h", *(f"stuck{number}" for number in range(12))]
        for url in urls:
            stack.add_hook(url, f"# {url}\n{stuck}")
        await stack.until(lambda: 13 == sum(thread.name == "load-code" for thread in threading.enumerate()))
        stack.add_hook("fine", answering("7"))
        await stack.until(lambda: "fine" in stack.gateway.table.current.endpoints)
        assert 1 == (await stack.client.post("/serve/h", json={})).json()
        del stack.registry.endpoints[urls.pop()]
        await stack.until(lambda: stack.state("stuck11") == ("", ""))
        go_on.touch()
        await stack.served("fine", *urls)
        await stack.until(unloaded.exists)


async def test_weights_without_the_tokenizers_ids_are_refused(stack: Any) -> None:
    """Also if config.json does not state the size of the vocabulary."""
    stack.add_text_model("m1")
    stack.registry.add_endpoint("e", "m1")

    def small_table(inputs: dict[str, Any]) -> dict[str, Any]:
        if inputs["input_ids"].tolist() == [[2, 1, 1, 1, 10, 1, 1, 1, 3]]:
            raise ModelFailed("indices element out of data bounds, idx=10 must be within the inclusive range [-10,9]")
        return classify(inputs)

    stack.load("e", small_table)
    await stack.until(lambda: stack.state("e")[0] == "failed")
    assert "fails on the highest token id of its tokenizer, 10: indices element out of data" in stack.state("e")[1]
