"""Programs as people run them on a control plane: the unmodified ``clearml-serving``, our command line, scripts.

The one place that starts them, for tests of what no fake registry can show.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import warm
from tests.control_planes import RunningControlPlane
from tests.waiting import LIMIT_S

ROOT = Path(__file__).parents[1]

OURS = (
    "import runpy, sys; sys.modules.pop('torch', None);"
    " runpy.run_module('deploy.cli.main', run_name='__main__', alter_sys=True)"
)
"""`triton-gateway`, in a fork of what has imported the stock tool; as anywhere, torch can be imported."""

TENSORS = (
    "--input-name", "x", "--input-type", "float32", "--input-size", "4",
    "--output-name", "y", "--output-type", "float32", "--output-size", "2",
)  # fmt: skip
"""Inputs and outputs that the stock tool wants to be told of a model for Triton."""


class Client:
    """Runs programs in a folder, as a client of one server that sees nothing of its user's configuration.

    After ``create`` both command lines are told the serving Task; ``variables`` are further ones of the environment.
    """

    def __init__(self, server: RunningControlPlane, folder: Path, **variables: str) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_GATEWAY_")}
        self.environment = {**server.client_environment(inherited, folder), "PYTHONPATH": str(ROOT), **variables}
        self.server = server
        self.folder = folder
        self.task = ""

    def start(
        self, *argv: str, errors: int | None = subprocess.PIPE, **variables: str
    ) -> subprocess.Popen[str]:  # fmt: skip
        """A Python program, with its input and both its outputs at hand; ``errors`` None are shown instead."""
        return subprocess.Popen(
            [sys.executable, *argv], env={**self.environment, **variables}, cwd=self.folder, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip

    def run(self, *argv: str, code: int | None = 0, both: bool = False, **variables: str) -> str:
        """A Python program to its end, with this exit code (None: any); what it printed, and its errors if ``both``."""
        return ended(self.start(*argv, **variables), code=code, both=both)

    def stock(self, *arguments: str, code: int = 0, **variables: str) -> str:
        """The stock tool to its end; what it printed, its errors too."""
        return self.run(*warm.tool(), *self._named(), *arguments, code=code, both=True, **variables)

    def begin_stock(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """The stock tool, at its beginning."""
        return self.start(*warm.tool(), *self._named(), *arguments, **variables)

    def ours(self, *arguments: str, code: int | None = 0, both: bool = False) -> str:
        """`triton-gateway` to its end; what it printed."""
        task = {"CLEARML_SERVING_TASK_ID": self.task} if self.task else {}
        return self.run(*warm.program(OURS), *arguments, code=code, both=both, **task)

    def create(self, name: str, *arguments: str) -> str:
        """A serving Task, the one of this client from now on; its id."""
        self.task = ""
        self.task = _found(r"id=([0-9a-f]{32})", self.stock("create", "--name", name, *arguments))
        return self.task

    def upload(
        self, name: str, path: Path | str, *arguments: str, project: str = "models", publish: bool = True
    ) -> str:
        """A file or a folder as a model; its id."""
        published = ("--publish",) if publish else ()
        printed = self.stock("model", "upload", "--name", name, "--project", project, "--path", str(path),
                             "--framework", "onnx", *published, *arguments)  # fmt: skip
        return _found(r"new Model ID=([0-9a-f]{32})", printed)

    def add(self, endpoint: str, *arguments: str, engine: str = "triton") -> str:
        """Serve a model: what the tool printed. For Triton its tensors are told."""
        tensors = TENSORS if engine == "triton" else ()
        return self.stock("model", "add", "--engine", engine, "--endpoint", endpoint, *arguments, *tensors)

    @contextmanager
    def here(self) -> Iterator[None]:
        """While it is open, this process is a client of the server too."""
        with pytest.MonkeyPatch.context() as patch:
            _become(patch, self.environment)
            yield

    def _named(self) -> list[str]:
        return ["--id", self.task] if self.task else []


def ended(process: subprocess.Popen[str], *, code: int | None = 0, both: bool = False) -> str:
    """What a program has printed, with its errors if ``both``, once it has ended with this exit code."""
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert code in (None, process.returncode), out + err
    return out + err if both else out


def _become(patch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> None:
    for name in ("CLEARML_SERVING_TASK_ID", "TRITON_GATEWAY_SERVING_TASK_ID"):
        patch.delenv(name, raising=False)
    for name, value in environment.items():
        if name.startswith("CLEARML_"):
            patch.setenv(name, value)


def _found(pattern: str, printed: str) -> str:
    found = re.findall(pattern, printed)
    assert found, printed
    return str(found[-1])
