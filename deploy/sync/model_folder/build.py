"""Plans the content of a model folder: layout, config.pbtxt and, on the embedded server, the program that runs ONNX.

Model sync calls it for one model at a time. It reads cached files and writes nothing. Weights are read only to compare
them with the manifest of a bundle of ``triton-gateway optimize``, and never as a whole into memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deploy.sync.errors import BadModel
from deploy.sync.model_folder.execution import Tuning, check_cpu, read_execution, this_cpu
from deploy.sync.model_folder.layout import Engine, choose_kind, find_onnx, lay_out
from deploy.sync.model_folder.model_config import (
    FORMAT,
    auxiliary_backend,
    build_config,
    build_generation_config,
    cpu_instances,
)
from deploy.sync.model_folder.onnx_signature import OnnxSignature, onnx_signature
from gateway import manifest, spec

_PROGRAM = Path(__file__).parents[1] / "runtime" / "onnx_model.py"
_GENERATOR = Path(__file__).parents[1] / "runtime" / "generate_model.py"


@dataclass(frozen=True, slots=True)
class Build:
    """Content of one model folder: config.pbtxt, files linked from the cache, and small files given as text."""

    config: str
    linked: Mapping[str, str]
    texts: Mapping[str, str] = field(default_factory=dict)
    instances: int = 0


class Builder:
    """Builds model folders for one kind of server. ``recipe`` fingerprints everything that shapes them besides the
    model.
    """

    def __init__(self, engine: Engine, tuning: Tuning, features: frozenset[str] | None = None) -> None:
        self._engine: Engine = engine
        # Model sync runs next to its Triton, with which it shares a folder, so this machine's CPU serves the model.
        self._features = this_cpu() if features is None else features
        self._tuning = tuning
        self._program = _PROGRAM.read_text("utf-8")
        self._generator = _GENERATOR.read_text("utf-8")
        # Only the embedded server's configuration contains instances and threads; a full Triton's does not depend on
        # the CPU.
        parts = [
            engine,
            FORMAT,
            tuning if engine == "python" else tuning.max_batch_size,
            self._program,
            self._generator,
        ]
        self.recipe = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def build(self, name: str, endpoint: spec.EndpointSpec, record: spec.ModelRecord, folder: Path) -> Build:
        """Plan the folder of ``name`` from the model's files in ``folder``. Raises ``BadModel``."""
        files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
        if not files:
            raise BadModel(f"model {record.id} ({record.name}) holds no files", hint="upload it again")
        # Triton must load the files that were judged. Weights are read here, once for each time they are written.
        manifest.check(folder, is_used=lambda _: True)
        kind = choose_kind(files, auxiliary_backend(endpoint))
        execution = read_execution(folder) if kind == "onnx" else None
        if execution is not None:
            check_cpu(execution, self._features)
        signature = onnx_signature(folder / find_onnx(files)) if kind == "onnx" else None
        linked = lay_out(kind, files, external=signature.external_files if signature else ())
        if signature is not None and _generates(signature, endpoint):
            config = build_generation_config(name=name, endpoint=endpoint, tuning=self._tuning)
            return Build(
                config,
                linked,
                {"1/model.py": self._generator, "1/onnx_model.py": self._program},
                cpu_instances(config),
            )
        config = build_config(
            name=name,
            endpoint=endpoint,
            kind=kind,
            engine=self._engine,
            signature=signature,
            tuning=self._tuning,
            execution=execution,
        )
        texts = {"1/model.py": self._program} if self._engine == "python" and kind == "onnx" else {}
        return Build(config, linked, texts, cpu_instances(config) if texts else 0)


def _generates(signature: OnnxSignature, endpoint: spec.EndpointSpec) -> bool:
    """Return True if the graph generates text in a loop: if it takes a key/value cache, or if the endpoint's task says
    so.
    """
    if dict(endpoint.options).get("task") == "text-generation":
        return True
    return any(tensor.name.startswith("past_key_values") for tensor in signature.inputs)
