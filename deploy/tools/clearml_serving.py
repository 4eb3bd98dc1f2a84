"""Runs the unmodified ``clearml-serving`` command line as a user would, and detects its failures.

``up`` changes the registry in no other way. The stock tool exits with 0 after many failures (a refused write, a failed
upload), so its output is checked as well as its exit code. Never imports clearml.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Final

from deploy.tools import process_logs, processes
from deploy.tools.errors import DeployError

_FAILED = re.compile(
    r"(Action failed <|Exception encountered while uploading|^Error: |Could not |failed_uploading| - ERROR - )", re.M
)
_NEW_SERVICE = re.compile(r"New Serving Service created: id=([0-9a-f]{32})")

PROGRAM = (
    "-c",
    "import runpy, sys; sys.modules['torch'] = None;"
    " runpy.run_module('clearml_serving', run_name='__main__', alter_sys=True)",
)
"""Python's arguments that run the tool: like ``-m clearml_serving``, but without torch. If torch is installed, the tool
imports it at every start, which takes seconds, although no command uses it."""


LEADS_ELSEWHERE: Final = (
    "CLEARML_AUTH_TOKEN", "CLEARML_CONFIG_PATH", "CLEARML_DEFAULT_OUTPUT_URI", "CLEARML_FORCE_MAX_API_VERSION",
    "CLEARML_OFFLINE_MODE", "CLEARML_PROC_MASTER_ID", "CLEARML_SIMULATE_REMOTE_TASK", "CLEARML_TASK_ID",
)  # fmt: skip
"""Variables by which the SDK leaves the server that host and keys name: another server's token, settings and store for
models; the Task that an agent runs; or no server at all. The SDK takes an empty variable for one that is not set."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output in the form of the stock CLI: numpy's name of the type, the whole shape, -1 for any size."""

    name: str
    type: str
    shape: tuple[int, ...]


def model_add(
    endpoint: str, model_id: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], pairs: Sequence[str] = ()
) -> list[str]:
    """Return the arguments that add a Triton endpoint (``NAME`` or ``NAME/VERSION``); ``pairs`` for ``--aux-config``.

    The tool needs a description of every tensor.
    """
    name, _, version = endpoint.partition("/")
    arguments = ["model", "add", "--engine", "triton", "--endpoint", name]
    arguments += ["--version", version] if version else []
    arguments += ["--model-id", model_id]
    for side, described in (("input", inputs), ("output", outputs)):
        if not described:
            continue
        arguments += [f"--{side}-name", *(tensor.name for tensor in described)]
        arguments += [f"--{side}-type", *(tensor.type for tensor in described)]
        arguments += [f"--{side}-size", *(json.dumps(list(tensor.shape)) for tensor in described)]
    return [*arguments, *(["--aux-config", *pairs] if pairs else [])]


@dataclass(frozen=True, slots=True)
class ClearMLServing:
    """Runs ``clearml-serving`` of this Python environment. The output of every run is appended to ``log``."""

    env: Mapping[str, str]
    log: Path
    timeout: float = 180.0

    async def create_service(self, name: str) -> str:
        """Run ``clearml-serving create``, and return the id of the new serving Task."""
        output = await self.run("create", "--name", name)
        if not (found := _NEW_SERVICE.findall(output)):
            raise DeployError(
                f"clearml-serving printed no id: {process_logs.last_error_line(output)}",
                hint="install the supported version: `pip install clearml-serving==1.3.5`",
            )
        return str(found[-1])

    async def run(self, *arguments: str) -> str:
        """Run one command and return its output.

        Raises ``DeployError`` with the tool's own reason if it failed, printed an error, or did not finish in
        time (it retries an unreachable server silently).
        """
        if util.find_spec("clearml_serving") is None:
            raise DeployError("clearml-serving is not installed", hint='run `pip install ".[cli]"`')
        shown = f"clearml-serving {' '.join(arguments)}"[:200]
        argv = [sys.executable, "-P", *PROGRAM, *arguments]
        code, output = await processes.output_of(argv, env=self.env, log=self.log, timeout=self.timeout)
        if code is None:
            raise DeployError(
                f"`{shown}` did not finish within {self.timeout:.0f} s",
                hint=f"check that {self.env.get('CLEARML_API_HOST', 'the ClearML server')} can be reached; see the log "
                f"{self.log}",
            )
        if code != 0 or _FAILED.search(output):
            reason = process_logs.last_error_line(output) or process_logs.describe_exit(code)
            raise DeployError(f"`{shown}` failed: {reason}", hint=f"see the log {self.log}")
        return output
