"""Reads and registers through the clearml SDK, in separate processes.

The SDK keeps threads and global configuration, and ``up`` must stay small and able to fork. It therefore runs as
``python -m deploy.laptop.registry_process``. Models are registered as ``deploy`` does: the stock ``clearml-serving
model upload`` can lose the address of what it has uploaded (a thread of the SDK writes it while the main thread writes
back what it read before).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from deploy.tools import process_logs, processes
from deploy.tools.errors import DeployError, GatewayError, RegistryRefused

_TIMEOUT_S: Final = 180.0
_RESULT: Final = "result: "


async def read_endpoints(task_id: str, *, env: Mapping[str, str], log: Path) -> Mapping[str, str] | None:
    """Return the model id of each endpoint (with version) of a serving Task; None if there is no such Task.

    Raises ``DeployError`` if the registry does not answer or refuses the credentials.
    """
    found: Mapping[str, str] | None = await _result(("read", task_id), f"the serving Task {task_id}", env, log)
    return found


async def upload_model(
    task_id: str, folder: Path, *, project: str, name: str, env: Mapping[str, str], log: Path
) -> str:  # fmt: skip
    """Register a folder as a published ONNX model, and return its id. Raises ``DeployError``."""
    return str(await _result(("register", task_id, str(folder), project, name), f"the model {name}", env, log))


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


async def _result(words: tuple[str, ...], what: str, env: Mapping[str, str], log: Path) -> Any:
    argv = [sys.executable, "-P", "-m", "deploy.laptop.registry_process", *words]
    code, output = await processes.output_of(argv, env=env, log=log, timeout=_TIMEOUT_S)
    for line in reversed(output.splitlines()):
        if code == 0 and line.startswith(_RESULT):
            return json.loads(line.removeprefix(_RESULT))
    verb = "read" if words[0] == "read" else "registered"
    raise DeployError(
        f"{what} cannot be {verb}: {process_logs.last_error_line(output) or 'no answer'}",
        hint=f"check CLEARML_API_HOST and the access keys; the log is {log}",
    )


def main(action: str, task_id: str, *more: str) -> int:
    """Print the result as a line of JSON."""
    found: object
    try:
        found = read(task_id)[1] if action == "read" else register(task_id, Path(more[0]), *more[1:])
    except GatewayError as error:
        if not (action == "read" and isinstance(error, RegistryRefused) and "nvalid task id" in error.message):
            sys.stderr.write(f"error: {error.message}\n")
            return 1
        found = None
    sys.stdout.write(f"{_RESULT}{json.dumps(found)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
