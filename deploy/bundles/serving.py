"""The stock ``clearml-serving model add`` command that serves a bundle, tuned by what was measured.

Pure: shapes and measurements in, arguments out. The same command works for the embedded server and for a full Triton:
model sync translates what concerns only one of them (``deploy/sync/model_folder/native.py``).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploy.sync.model_folder.execution import Target
from deploy.tools.clearml_serving import Tensor


@dataclass(frozen=True, slots=True)
class Tuned:
    """How to run the bundle: processes, threads of each, rows per call."""

    instances: int
    threads: int
    max_batch_size: int
    target: Target = "cpu"
    task: str = ""
    """The requested task, if the model's files do not name one."""

    def pairs(self) -> list[str]:
        """Return the ``--aux-config`` pairs."""
        kind = "KIND_CPU" if self.target == "cpu" else "KIND_GPU"
        pairs = [
            *([f"gateway.task={self.task}"] if self.task else []),
            f"max_batch_size={self.max_batch_size}",
            f"instance_group.0.count={self.instances}",
            f"instance_group.0.kind={kind}",
        ]
        if self.target == "gpu":
            # a GPU gains from full batches: waiting 2 ms for other requests costs less than a call with few rows
            return [*pairs, "dynamic_batching.max_queue_delay_microseconds=2000"]
        return [*pairs, f"parameters.threads={self.threads}"]


def tensors(feeds: Mapping[str, Any], outputs: Sequence[Mapping[str, Any]]) -> tuple[list[Tensor], list[Tensor]]:
    """Return inputs and outputs as the stock CLI takes them; batch and length are −1.

    ``feeds`` are the inputs of the first request, ``outputs`` the answers to requests of different lengths. A size that
    differs between answers, or that is the length of the first text in a tensor of three dimensions, is a length.
    """
    length = next(iter(feeds.values())).shape[1]
    inputs = [Tensor(name, value.dtype.name, (-1,) * value.ndim) for name, value in feeds.items()]
    answers = []
    for name, first in outputs[0].items():
        sizes = [
            -1 if len({one[name].shape[axis] for one in outputs}) > 1
            or (axis == 1 and first.ndim > 2 and size == length) else size
            for axis, size in enumerate(first.shape) if axis
        ]  # fmt: skip
        answers.append(Tensor(name, "float32", (-1, *sizes)))
    return inputs, answers


def command_line(arguments: Sequence[str]) -> str:
    """Return the command line as text."""
    return f"clearml-serving {shlex.join(arguments)}"
