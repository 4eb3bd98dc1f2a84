"""How a bundle is to be run: ``runtime.json``, written by ``triton-gateway optimize``, read by model sync.

It names the engine and precision with which speed and accuracy were measured, and the CPU instructions they need. On a
machine without those instructions the bundle is refused before it gets traffic: bf16 is slower than measured there. A
model without the file runs as before. Also what this machine has: CPU features, and cores, of which every model gets
instances and threads. Pure, except for the functions that read a file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from deploy.sync.errors import BadModel
from preprocessing.model_files import read_json

FILE: Final = "runtime.json"
FORMAT: Final = 1

EngineName = Literal["onnxruntime", "openvino"]
Precision = Literal["fp32", "bf16", "fp16"]
Target = Literal["cpu", "gpu"]

BF16: Final = ("amx_bf16", "avx512_bf16", "bf16")
"""Feature names in Linux' ``/proc/cpuinfo``, for x86 and ARM. One of them is enough."""

MAX_ROWS: Final = 64
"""Rows of the largest batch that a bundle was judged with (``bundles/judge/probes``), and so of the largest it is
given.
"""

_CPUINFO: Final = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Execution:
    """Engine and precision, and what they need. Each item of ``needs`` is a list of CPU features of which one is
    required.
    """

    engine: EngineName = "onnxruntime"
    precision: Precision = "fp32"
    target: Target = "cpu"
    needs: tuple[Annotated[tuple[str, ...], Field(min_length=1)], ...] = ()


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a CPU server runs one model: ``instances`` processes of ``threads`` threads each."""

    instances: int = 1
    threads: int = 1
    max_batch_size: int = 64


def tuning_for(cores: int) -> Tuning:
    """Return instances and threads for a model on ``cores`` cores: instances first, which are faster (docs/triton.md).

    At most four instances: each holds its own copy of the weights.
    """
    instances = max(1, min(4, cores))
    return Tuning(instances=instances, threads=max(1, cores // instances))


def available_cores() -> int:
    """Return the cores this process may use: its CPU affinity, and the container's CPU quota if there is one."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        return cores


def cpu_features(cpuinfo: str) -> frozenset[str]:
    """Return the features a ``/proc/cpuinfo`` names, for the first processor in it."""
    found = re.search(r"(?m)^(?:flags|Features)\s*:\s*(.+)$", cpuinfo)
    return frozenset(found[1].split()) if found else frozenset()


def this_cpu() -> frozenset[str]:
    """Return this machine's CPU features; empty if the kernel does not list them."""
    try:
        return cpu_features(_CPUINFO.read_text())
    except OSError:
        return frozenset()


def read_execution(folder: Path) -> Execution | None:
    """Return the content of a model folder's ``runtime.json``; None without the file. Raises ``BadModel``."""
    try:
        return decode(read_json(folder / FILE))
    except OSError:
        return None
    except ValueError as error:
        raise BadModel(
            f"{FILE} of the model cannot be used: {error}",
            hint="make the bundle again with `triton-gateway optimize`, or remove the file",
        ) from error


def encode(execution: Execution) -> str:
    """Return the text of ``runtime.json``."""
    return json.dumps({"format": FORMAT, **asdict(execution)}, indent=1) + "\n"


def decode(values: Any) -> Execution:
    """Read the content of ``runtime.json``. Raises ``ValueError`` with the reason if it is not valid."""
    if not isinstance(values, Mapping) or values.get("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT}")
    try:
        return TypeAdapter(Execution).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{first['loc'][0]}: {first['msg']}") from error


def check_cpu(execution: Execution, features: frozenset[str]) -> None:
    """Raise ``BadModel`` with the missing feature. A CPU whose features are unknown passes."""
    if execution.target != "cpu" or not features:
        return
    for group in execution.needs:
        if not features.intersection(group):
            raise BadModel(
                f"the bundle runs in {execution.precision} on {execution.engine} and needs a CPU with "
                f"{' or '.join(group)}, which this machine does not have",
                hint="make a bundle on this kind of machine with `triton-gateway optimize`",
            )
