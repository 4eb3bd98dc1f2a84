"""Models made by ``triton-gateway optimize``, and how a stack serves them, for the published tables."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.shared.command import STATE, Say
from benchmarks.shared.stack import Small
from deploy.bundles.serving import Tuned, add_arguments
from deploy.modelsync.model_folder import execution
from deploy.tools.clearml_serving import Tensor

FOLDER: Final = STATE / "infinity"
"""Files that these questions keep between runs: models, bundles, finished measurements."""
_INPUTS = [Tensor(name, "int64", (-1, -1)) for name in ("input_ids", "attention_mask")]
_OUTPUTS = [Tensor("logits", "float32", (-1, 2))]


@dataclass(frozen=True)
class Setting:
    """How Triton runs the model."""

    cores: int
    instances: int
    threads: int

    @property
    def endpoint(self) -> str:
        """Return its url."""
        return f"distilbert-{self.instances}x{self.threads}"


def settings(cores: int) -> list[Setting]:
    """Return the ways to use all cores of this machine: as instances, or as threads of one instance."""
    return [Setting(cores, cores, 1), Setting(cores, 1, cores)] if cores > 1 else [Setting(1, 1, 1)]


def bundle(state: Path, folder: Path, say: Say, candidate: str = "") -> Path:
    """Return the bundle of ``folder``, made by the command that a user would type.

    It is bf16 if the CPU has it, else fp32, and only what the gate passes with its own tolerance. With a ``candidate``,
    that one is made and accepted whatever the gate says about random weights, in order to compare engines.
    """
    note = state / f"bundle-{candidate or 'default'}.json"
    if note.exists() and Path(json.loads(note.read_text())["bundle"]).exists():
        return Path(json.loads(note.read_text())["bundle"])
    argv = ["optimize", str(folder), "--output", str(state / "optimized"), "--quick", "--json"]
    if candidate:
        argv += ["--candidate", candidate, "--accept", "random weights: only speed is measured", "--latency"]
    else:
        argv += ["--precision", "bf16" if execution.this_cpu().intersection(execution.BF16) else "fp32"]
    say(f"triton-gateway {' '.join(argv)}")
    argv = [sys.executable, "-m", "deploy.admin.cli", *argv]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True, timeout=1800)
    note.write_text(done.stdout)
    return Path(json.loads(done.stdout)["bundle"])


def serve(small: Small, bundle: Path, chosen: Sequence[Setting], say: Say) -> None:
    """Upload the bundle and add one endpoint per setting, with the stock CLI; wait until all are served."""
    say("clearml-serving model upload, model add …")
    model = asyncio.run(small.cli.upload_model(small.task, bundle, name=bundle.name, project="benchmarks"))
    for setting in chosen:
        tuned = Tuned(setting.instances, setting.threads, 32)
        small.run(*add_arguments(setting.endpoint, model, _INPUTS, _OUTPUTS, tuned))
    wanted = {setting.endpoint for setting in chosen}
    small.until(
        lambda status: wanted <= {e.get("url") for e in status.get("endpoints", ())},
        "serving every setting",
        within=300,
    )


def measured_on(found: Mapping[str, Any]) -> str:
    """Return one line about the machine and the versions."""
    versions = ", ".join(f"{n} {found['versions'][n]}" for n in ("torch", "transformers", "onnxruntime", "openvino")
                         if n in found["versions"])  # fmt: skip
    features = ", ".join(found["machine"]["features"])
    return f"Measured on {found['machine']['cpu']}, {found['machine']['cores']} cores ({features}); {versions}."
