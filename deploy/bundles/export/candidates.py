"""The candidates: the forms into which an original can be turned, their CPUs, and how to make each.

``CANDIDATES`` is the only list of them. A candidate is an ONNX file and an ``Execution``; several candidates share one
file. Left out because they measured worse or wrong: dynamic int8 (per channel, an answer depends on the other texts
of its batch; per tensor, unsigned or through torch, cosine 0.94–0.98 on MiniLM); fp16 and block-wise 8 bit on CPUs
(right, but no faster); fused attention before calibration (minimum cosine 0.47).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deploy.bundles.export.original import quietly
from deploy.sync.model_folder.execution import BF16, INT8, EngineName, Execution, Precision
from deploy.tools.errors import ExportFailed, first_line

Feeds = Mapping[str, Any]

PAD_TO: Final = 16
"""OpenVINO compiles each new shape (10 to 40 ms). Lengths are rounded up to multiples of this and warmed up at load."""

CALIBRATION: Final = 96
"""Texts for measuring activations; more made no measurable difference."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run the model: ``graph`` is ``fp32``, the exported one, or ``int8`` (see ``calibrated``)."""

    name: str
    engine: EngineName
    precision: Precision
    graph: str
    about: str
    any_of: tuple[str, ...] = ()
    """CPU features of which one is required; empty: any CPU."""

    def execution(self, max_length: int, *, source: str) -> Execution:
        """Return the content of this candidate's ``runtime.json``."""
        is_openvino = self.engine == "openvino"
        return Execution(
            engine=self.engine,
            precision=self.precision,
            needs=(self.any_of,) if self.any_of else (),
            fallback=f"make a bundle for it there: `triton-gateway optimize {source} --precision fp32`"
            if self.any_of
            else "",
            pad_to=PAD_TO if is_openvino else 1,
            max_length=max_length if is_openvino else 0,
        )


CANDIDATES: Final = (
    Candidate("ort-fp32", "onnxruntime", "fp32", "fp32", "ONNX Runtime, all graph optimisations"),
    Candidate("openvino-fp32", "openvino", "fp32", "fp32", "OpenVINO"),
    Candidate("openvino-bf16", "openvino", "bf16", "fp32", "OpenVINO, sums in fp32, factors in bf16", BF16),
    Candidate("openvino-int8", "openvino", "int8", "int8", "OpenVINO, calibrated int8 with smoothed activations", INT8),
)
GPU: Final = (
    Candidate("gpu-fp16", "onnxruntime", "fp16", "fp32", "ONNX Runtime with TensorRT in fp16, in NVIDIA's container"),
    Candidate("gpu-fp32", "onnxruntime", "fp32", "fp32", "ONNX Runtime with TensorRT in fp32, in NVIDIA's container"),
)
"""Only written and checked as configurations; nothing about them is measured here."""


def usable(
    features: frozenset[str], precision: str, among: Sequence[Candidate] = CANDIDATES
) -> tuple[list[Candidate], list[tuple[Candidate, str]]]:
    """Return the candidates to try on a CPU with ``features``, and those left out with the reason."""
    tried: list[Candidate] = []
    left: list[tuple[Candidate, str]] = []
    for candidate in among:
        if candidate.any_of and features and not features.intersection(candidate.any_of):
            left.append((candidate, f"this CPU has none of {', '.join(candidate.any_of)}"))
        elif precision not in ("auto", candidate.precision):
            left.append((candidate, f"--precision {precision}"))
        else:
            tried.append(candidate)
    return tried, left


def calibrated(exported: Path, target: Path, calibration: Sequence[Feeds]) -> None:
    """Write the int8 graph of ``exported`` to ``target``, which appears when it is complete. Raises ``ExportFailed``.

    ``calibration`` are batches of real inputs.
    """
    # Without this, its telemetry would write a consent file to the home directory and open connections.
    os.environ.setdefault("NNCF_CI", "1")
    import nncf
    import onnx

    aside = target.with_name(f".{target.name}.part")
    try:
        with quietly():
            model = nncf.quantize(
                onnx.load(str(exported)),
                nncf.Dataset([dict(feeds) for feeds in calibration]),
                model_type=nncf.ModelType.TRANSFORMER,
                # "mixed": activations may be asymmetric. With the symmetric preset, a third of the nearest neighbours
                # changed.
                preset=nncf.QuantizationPreset.MIXED,
                subset_size=len(calibration),
            )
            onnx.save(model, str(aside))
        aside.replace(target)
    except Exception as error:
        raise ExportFailed(f"the int8 graph cannot be made: {first_line(error)}") from error
    finally:
        aside.unlink(missing_ok=True)
