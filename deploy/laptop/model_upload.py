"""Registers the demo's model through the clearml SDK, in a separate process.

The stock ``clearml-serving model upload`` can lose the address of what it has uploaded (a thread of the SDK writes it
while the main thread writes back what it read before), so the demo registers as ``deploy`` does. ``up`` must stay small
and able to fork, so this runs as ``python -m deploy.laptop.model_upload TASK FOLDER PROJECT NAME``.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deploy.tools import process_logs, processes
from deploy.tools.errors import DeployError, GatewayError

_TIMEOUT_S: Final = 180.0
_SAID: Final = "registered model "


async def upload_model(
    task_id: str, folder: Path, *, project: str, name: str, env: Mapping[str, str], log: Path
) -> str:  # fmt: skip
    """Register a folder as a published ONNX model, and return its id. Raises ``DeployError``."""
    argv = [sys.executable, "-P", "-m", "deploy.laptop.model_upload", task_id, str(folder), project, name]
    code, output = await processes.output_of(argv, env=env, log=log, timeout=_TIMEOUT_S)
    for line in reversed(output.splitlines()):
        if code == 0 and line.startswith(_SAID):
            return line.removeprefix(_SAID).strip()
    raise DeployError(
        f"the model {name} cannot be registered: {process_logs.last_error_line(output) or 'no answer'}",
        hint=f"check CLEARML_API_HOST and the access keys; the log is {log}",
    )


def register(task_id: str, folder: Path, project: str, name: str) -> str:
    """Do it in this process. Raises ``RegistryRefused`` and ``RegistryUnavailable``."""
    from gateway.registry import ClearMLRegistry, Upload

    with tempfile.TemporaryDirectory() as scratch:
        return ClearMLRegistry(task_id).register(Upload(folder, Path(scratch), project, name, "ONNX"))


def main(task_id: str, folder: str, project: str, name: str) -> int:
    """Print the id of the model."""
    try:
        model_id = register(task_id, Path(folder), project, name)
    except GatewayError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 1
    sys.stdout.write(f"{_SAID}{model_id}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
