"""What the registry says about one serving Task, read through the clearml SDK in a process of its own.

``up`` asks before it creates or registers anything. A separate process (``python -m deploy.laptop.serving_task ID``),
because the SDK keeps threads and global configuration, and ``up`` has to stay small and able to fork. Reads only.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.tools import process_family, process_logs, processes
from deploy.tools.errors import DeployError, GatewayError, RegistryRefused

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class TaskContents:
    """A serving Task as the registry has it: ``endpoints`` maps each endpoint (with version) to its model id."""

    exists: bool
    endpoints: Mapping[str, str]


async def read_contents(task_id: str, *, env: Mapping[str, str], log: Path) -> TaskContents:
    """Ask the registry. Raises ``DeployError`` when it cannot be reached or refuses the credentials."""
    offset = process_logs.log_end(log)
    argv = [sys.executable, "-P", "-m", "deploy.laptop.serving_task", task_id]
    process = await processes.spawn(argv, env=env, log=log, death_signal=signal.SIGKILL)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        pass
    finally:
        if process.returncode is None:
            process_family.signal_family(process.pid, "", signal.SIGKILL)
            await process.wait()
    output = process_logs.read_from(log, offset)
    if process.returncode == 0:
        for line in reversed(output.splitlines()):
            if line.startswith('{"seen"'):
                seen = json.loads(line)["seen"]
                return TaskContents(exists=seen["exists"], endpoints=seen["endpoints"])
    raise DeployError(
        f"the serving Task {task_id} cannot be read: {process_logs.last_error_line(output) or 'no answer'}",
        hint=f"check CLEARML_API_HOST and the access keys; the log is {log}",
    )


def read(task_id: str) -> tuple[str, dict[str, str]]:
    """Return the id of the serving Task that is meant, and the model id of each of its endpoints.

    Through the SDK, so in a process of its own only. Raises ``RegistryRefused`` and ``RegistryUnavailable``.
    """
    from gateway.registry import ClearMLRegistry

    task = ClearMLRegistry(task_id)
    return task.followed(), {key: endpoint.model_id or "" for key, endpoint in task.spec().endpoints.items()}


def main(task_id: str) -> int:
    """Print what the registry says as one JSON line."""
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
