"""Reads the endpoints of one serving Task through the clearml SDK, in a separate process.

``up`` does so before it creates or registers anything. The SDK keeps threads and global configuration, and ``up`` must
stay small and able to fork. It therefore runs as ``python -m deploy.laptop.serving_task ID``. Only reads.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.tools import process_logs, processes
from deploy.tools.errors import DeployError, GatewayError, RegistryRefused

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class TaskContents:
    """The contents of a serving Task: ``endpoints`` maps each endpoint (with version) to its model id."""

    exists: bool
    endpoints: Mapping[str, str]


async def read_contents(task_id: str, *, env: Mapping[str, str], log: Path) -> TaskContents:
    """Read the serving Task. Raises ``DeployError`` if the registry does not answer or refuses the credentials."""
    argv = [sys.executable, "-P", "-m", "deploy.laptop.serving_task", task_id]
    code, output = await processes.output_of(argv, env=env, log=log, timeout=_TIMEOUT_S)
    if code == 0:
        for line in reversed(output.splitlines()):
            if line.startswith('{"seen"'):
                seen = json.loads(line)["seen"]
                return TaskContents(exists=seen["exists"], endpoints=seen["endpoints"])
    raise DeployError(
        f"the serving Task {task_id} cannot be read: {process_logs.last_error_line(output) or 'no answer'}",
        hint=f"check CLEARML_API_HOST and the access keys; the log is {log}",
    )


def read(task_id: str) -> tuple[str, dict[str, str]]:
    """Return the id of the serving Task, and the model id of each of its endpoints.

    Uses the SDK, so call it in a separate process only. Raises ``RegistryRefused`` and ``RegistryUnavailable``.
    """
    from gateway.registry import ClearMLRegistry

    task = ClearMLRegistry(task_id)
    return task.followed(), {key: endpoint.model_id or "" for key, endpoint in task.spec().endpoints.items()}


def main(task_id: str) -> int:
    """Print the contents of the Task as one JSON line."""
    try:
        _, endpoints = read(task_id)
    except RegistryRefused as error:
        if "nvalid task id" not in error.message:
            sys.stderr.write(f"error: {error.message}\n")
            return 1
        seen: dict[str, object] = {"exists": False, "endpoints": {}}
    except GatewayError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 1
    else:
        seen = {"exists": True, "endpoints": endpoints}
    sys.stdout.write(json.dumps({"seen": seen}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
