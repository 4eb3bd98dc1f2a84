"""Looks up a serving Task in a process of its own (``python -m deploy.laptop.registry_process``): the SDK runs there.

The SDK keeps threads and global configuration, and ``up`` must stay small and able to fork.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deploy.tools import process_logs, processes
from deploy.tools.errors import DeployError, GatewayError, RegistryRefused

_TIMEOUT_S: Final = 180.0
_NONE: Final = 3
"""Exit code of this program if there is no such Task."""


async def is_there(task_id: str, *, env: Mapping[str, str], log: Path) -> bool:
    """Return whether there is such a serving Task.

    Raises ``DeployError`` if the registry does not answer or refuses the credentials.
    """
    argv = [sys.executable, "-P", "-m", "deploy.laptop.registry_process", task_id]
    code, output = await processes.output_of(argv, env=env, log=log, timeout=_TIMEOUT_S)
    if code in (0, _NONE):
        return code == 0
    raise DeployError(
        f"the serving Task {task_id} cannot be read: {process_logs.last_error_line(output) or 'no answer'}",
        hint=f"check CLEARML_API_HOST and the access keys; the log is {log}",
    )


def main(task_id: str) -> int:
    """Look the Task up, and return the exit code."""
    from gateway.registry import ClearMLRegistry

    try:
        ClearMLRegistry(task_id).spec()
    except GatewayError as error:
        if isinstance(error, RegistryRefused) and "does not exist" in error.message:
            return _NONE
        sys.stderr.write(f"error: {error.message}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
