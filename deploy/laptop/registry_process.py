"""Reads and registers through the clearml SDK.

The SDK keeps threads and global configuration, and ``up`` must stay small and able to fork. For ``up`` it therefore
runs as ``python -m deploy.laptop.registry_process``. Models are registered as ``deploy`` does: the stock
``clearml-serving model upload`` can lose the address of what it has uploaded (a thread of the SDK writes it while the
main thread writes back what it read before).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deploy.tools import process_logs, processes
from deploy.tools.errors import DeployError, GatewayError, RegistryRefused

_TIMEOUT_S: Final = 180.0
_RESULT: Final = "result: "


async def is_there(task_id: str, *, env: Mapping[str, str], log: Path) -> bool:
    """Return whether there is such a serving Task.

    Raises ``DeployError`` if the registry does not answer or refuses the credentials.
    """
    argv = [sys.executable, "-P", "-m", "deploy.laptop.registry_process", task_id]
    code, output = await processes.output_of(argv, env=env, log=log, timeout=_TIMEOUT_S)
    for line in reversed(output.splitlines()):
        if code == 0 and line.startswith(_RESULT):
            return line.removeprefix(_RESULT) == "there"
    raise DeployError(
        f"the serving Task {task_id} cannot be read: {process_logs.last_error_line(output) or 'no answer'}",
        hint=f"check CLEARML_API_HOST and the access keys; the log is {log}",
    )


def read(task_id: str) -> tuple[str, dict[str, str]]:
    """Return the id of the serving Task, and the model id of each of its endpoints, in this process.

    Raises ``RegistryRefused`` and ``RegistryUnavailable``.
    """
    from gateway.registry import ClearMLRegistry

    task = ClearMLRegistry(task_id)
    return task.followed(), {key: endpoint.model_id or "" for key, endpoint in task.spec().endpoints.items()}


def register(task_id: str, folder: Path, project: str, name: str) -> str:
    """Register in this process. Raises ``RegistryRefused`` and ``RegistryUnavailable``."""
    from gateway.registry import ClearMLRegistry, Upload

    return ClearMLRegistry(task_id).register(Upload(folder, project, name, "ONNX"))


def main(task_id: str) -> int:
    """Print whether there is such a serving Task, as a line."""
    found = "there"
    try:
        read(task_id)
    except GatewayError as error:
        if not (isinstance(error, RegistryRefused) and "nvalid task id" in error.message):
            sys.stderr.write(f"error: {error.message}\n")
            return 1
        found = "none"
    sys.stdout.write(f"{_RESULT}{found}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
