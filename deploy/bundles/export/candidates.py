"""The candidates: the ways in which an exported graph can run, and their CPUs.

``CANDIDATES`` is the only list of them. All run the same fp32 file; bf16 rounds while it runs. Graphs that a quantiser
made are other models: whoever makes one gives its file to ``deploy``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from deploy.sync.model_folder.execution import BF16, EngineName, Execution, Precision, Target


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run the model."""

    name: str
    engine: EngineName
    precision: Precision
    about: str
    any_of: tuple[str, ...] = ()
    """CPU features of which one is required; empty: any CPU."""
    target: Target = "cpu"

    @property
    def execution(self) -> Execution:
        """The content of its ``runtime.json``."""
        return Execution(self.engine, self.precision, self.target, (self.any_of,) if self.any_of else ())


CANDIDATES: Final = (
    Candidate("ort-fp32", "onnxruntime", "fp32", "ONNX Runtime, all graph optimisations"),
    Candidate("openvino-fp32", "openvino", "fp32", "OpenVINO"),
    Candidate("openvino-bf16", "openvino", "bf16", "OpenVINO, sums in fp32, factors in bf16", BF16),
)
GPU: Final = (
    Candidate(
        "gpu-fp16", "onnxruntime", "fp16", "ONNX Runtime with TensorRT in fp16, in NVIDIA's container", (), "gpu"
    ),
    Candidate(
        "gpu-fp32", "onnxruntime", "fp32", "ONNX Runtime with TensorRT in fp32, in NVIDIA's container", (), "gpu"
    ),
)
"""Only written and checked as configurations; nothing about them is measured here."""
