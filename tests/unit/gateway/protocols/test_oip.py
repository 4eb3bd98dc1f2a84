"""The Open Inference Protocol: one or several texts give the same tensors. Binary data: the conformance tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.protocols.tensors import DTYPES


async def _asked(served: Any, name: str, texts: list[str], **more: Any) -> dict[str, list[Any]]:
    """Return the answer's tensors as nested lists."""
    text = {"name": "text", "datatype": "BYTES", "shape": [len(texts), 1], "data": texts}
    reply = await served.client.post(f"/v2/models/{name}/infer", json={"inputs": [text], **more})
    assert 200 == reply.status_code, reply.text
    return {
        tensor["name"]: np.array(tensor["data"], DTYPES[tensor["datatype"]]).reshape(tensor["shape"]).tolist()
        for tensor in reply.json()["outputs"]
    }


@pytest.mark.parametrize("name", ["labels", "vectors", "tokens"])
async def test_a_single_text_is_answered_as_in_a_batch(served: Any, name: str) -> None:
    """Each tensor's row is the same, and so is the shape except for the number of rows."""
    one, other = await _asked(served, name, ["good film"]), await _asked(served, name, ["bad"])
    both = await _asked(served, name, ["good film", "bad"])
    assert one.keys() == both.keys()
    assert {tensor: one[tensor] + other[tensor] for tensor in one} == both


async def test_probabilities_cover_all_labels_even_if_few_are_requested(served: Any) -> None:
    """In JSON they are the same numbers, to FP32's last digit."""
    every = await _asked(served, "labels", ["good", "bad"])
    best = await _asked(served, "labels", ["good", "bad"], parameters={"top_k": 1})
    assert np.allclose(every["probabilities"], best["probabilities"], rtol=1e-6)
    assert every["label"] == best["label"]
