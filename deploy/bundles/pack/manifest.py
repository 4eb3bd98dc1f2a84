"""The manifest of a bundle, which makes it reproducible: versions, machine, arguments and the hash of every file."""

from __future__ import annotations

import platform
import re
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from deploy.bundles.export.candidates import Candidate
from deploy.bundles.export.source import Source
from deploy.bundles.judge.parity import Parity
from deploy.bundles.options import Options
from deploy.bundles.serving import Tuned
from deploy.bundles.work_folder import file_hash
from deploy.sync.model_folder.execution import BF16, available_cores, this_cpu
from gateway import manifest as judged

FILE: Final = judged.FILE
FORMAT: Final = 1

_PACKAGES: Final = (
    "triton-gateway", "torch", "transformers", "tokenizers", "onnx", "onnxscript", "onnxruntime", "openvino",
    "numpy",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Return the versions of Python and of every package involved."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Return this machine's CPU, cores, and the instructions in which candidates differ."""
    try:
        found = re.search(r"(?m)^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    features = this_cpu()
    named = sorted(features.intersection((*BF16, "avx2", "avx512f")))
    return {
        "cpu": found[1].strip() if found else platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "cores": available_cores(),
        "features": named,
    }


def describe(
    options: Options, source: Source, chosen: Candidate, found: Parity, tuned: Tuned, ratio: float,
) -> dict[str, Any]:  # fmt: skip
    """Return what was asked, chosen and used; ``ratio`` is the chosen candidate's speed in multiples of PyTorch's."""
    return {
        "format": FORMAT,
        "name": options.name or source.name,
        "target": options.target,
        "source": {
            "given": source.given, "digest": source.digest, "architecture": source.config.architecture,
            "task": source.config.task,
        },
        "arguments": {k: str(v) for k, v in asdict(options).items() if k != "output"},
        "chosen": {
            "candidate": chosen.name, "engine": chosen.engine, "precision": chosen.precision,
            "about": chosen.about, "needs": [list(group) for group in chosen.execution.needs], "times_pytorch": ratio,
            "load": options.load, "parity": asdict(found), "aux_config": tuned.pairs(),
        },
        "accepted": options.accept if not found.is_within else "",
        "machine": machine(),
        "versions": versions(),
    }  # fmt: skip


def hashes(folder: Path) -> dict[str, str]:
    """Return the sha256 of every file of a bundle except the manifest."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != FILE)
    return {path.relative_to(folder).as_posix(): file_hash(path) for path in paths}
