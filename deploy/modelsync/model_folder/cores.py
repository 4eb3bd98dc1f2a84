"""How many cores this process may use, and how a model is spread over them.

Called when model sync is set up. Measured (docs/triton.md): one instance per core beats threads of one instance.
"""

from __future__ import annotations

import os
from pathlib import Path

from deploy.modelsync.model_folder.model_config import Tuning

_MAX_INSTANCES = 4
"""Each instance holds the weights once more."""


def tuning_for(cores: int) -> Tuning:
    """Return instances × threads for a model on ``cores`` cores: instances first, then threads."""
    instances = max(1, min(_MAX_INSTANCES, cores))
    return Tuning(instances=instances, threads=max(1, cores // instances))


def available_cores() -> int:
    """Return the cores this process may use: its affinity, and the container's CPU quota when there is one."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        return cores
