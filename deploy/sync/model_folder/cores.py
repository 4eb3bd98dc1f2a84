"""How many cores this process may use, and how many instances and threads a model gets.

Called when model sync is set up. One instance per core is faster than one instance with several threads
(docs/triton.md).
"""

from __future__ import annotations

import os
from pathlib import Path

from deploy.sync.model_folder.model_config import Tuning

_MAX_INSTANCES = 4
"""Each instance holds its own copy of the weights."""


def tuning_for(cores: int) -> Tuning:
    """Return instances and threads for a model on ``cores`` cores: instances first, then threads."""
    instances = max(1, min(_MAX_INSTANCES, cores))
    return Tuning(instances=instances, threads=max(1, cores // instances))


def available_cores() -> int:
    """Return the cores this process may use: its CPU affinity, and the container's CPU quota if there is one."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        return cores
