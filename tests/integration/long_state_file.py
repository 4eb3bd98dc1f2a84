"""``export``, ``diff`` and ``apply`` between two real control planes, as people type them, beside the stock CLI.

Staging is as strict as a ClearML server, production is the embedded one: other ids, nothing shared but the file. Twenty
commands that each load the clearml SDK: not collected by default, `.ci/run clients` runs it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from deploy.tools.clearml_serving import PROGRAM
from tests.control_planes import control_plane

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

CODE = "class Preprocess:\n    def process(self, data, state, collect=None):\n        return {'ä': 1}\n"


class Shell:
    """Runs commands against one control plane."""

    def __init__(self, environ: Mapping[str, str], folder: Path) -> None:
        self._environ = environ
        self._folder = folder

    def run(self, *argv: str, code: int = 0) -> str:
        """What a command has printed, which must end with `code`."""
        done = subprocess.run(
            [sys.executable, *argv],
            capture_output=True, text=True, env=self._environ, cwd=self._folder, timeout=120, check=False,
        )  # fmt: skip
        assert code == done.returncode, done.stdout + done.stderr
        return done.stdout + done.stderr

    def stock(self, *arguments: str) -> str:
        """The stock CLI."""
        return self.run(*PROGRAM, *arguments)

    def ours(self, *arguments: str, code: int = 0) -> str:
        """`triton-gateway`."""
        return self.run("-m", "deploy.cli.main", *arguments, code=code)

    def service(self, weights: Path) -> str:
        """A new serving Task, beside a model."""
        task = _one(r"id=([0-9a-f]{32})", self.stock("create", "--name", "state"))
        self.stock("--id", task, "model", "upload", "--project", "models", "--name", "one", "--path", str(weights),
                   "--publish")  # fmt: skip
        return task


def _one(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found, text
    return found[1]


def test_staging_becomes_production(tmp_path: Path) -> None:
    """What the stock CLI has configured there is here, code included; the stock CLI goes on with it."""
    weights, code, file = tmp_path / "one.onnx", tmp_path / "preprocess.py", tmp_path / "serving.yaml"
    weights.write_bytes(os.urandom(2000))
    code.write_text(CODE)
    (tmp_path / "a").mkdir()
    with control_plane(tmp_path / "a" / "state") as server:
        staging = Shell(server.client_environment(os.environ, tmp_path / "a"), tmp_path)
        task = staging.service(weights)
        tensors = ("--input-name", "x", "--input-type", "float32", "--input-size", "[1, 4]",
                   "--output-name", "y", "--output-type", "float32", "--output-size", "[1]")  # fmt: skip
        add = ("--id", task, "model", "add", "--engine", "triton", "--name", "one", "--project", "models", *tensors,
               "--endpoint", "faq")  # fmt: skip
        staging.stock(*add, "--version", "1", "--preprocess", str(code))
        staging.stock(*add, "--version", "2", "--aux-config", "gateway.max_length=128")
        staging.stock("--id", task, "model", "canary", "--endpoint", "live", "--weights", "0.25", "0.75",
                      "--input-endpoints", "faq/1", "faq/2")  # fmt: skip
        staging.stock("--id", task, "metrics", "add", "--endpoint", "faq/1", "--variable-scalar", "x=0,0.5,1")
        staging.ours("export", "-o", str(file), "--serving-task-id", task)
        staging.ours("diff", "-f", str(file), "--exit-code", "--prune", "--serving-task-id", task)
    (tmp_path / "b").mkdir()
    with control_plane(tmp_path / "b" / "state") as server:
        production = Shell(server.client_environment(os.environ, tmp_path / "b"), tmp_path)
        task = production.service(weights)
        here = ("-f", str(file), "--serving-task-id", task)
        shown = production.ours("diff", *here, "--exit-code", code=2)
        assert {"+ endpoint faq/1", "+ endpoint faq/2", "+ canary live", "+ metrics faq/1"} <= set(shown.splitlines())
        assert "none made" in production.ours("apply", *here, "--dry-run")
        production.ours("apply", *here)
        assert "nothing to do" in production.ours("apply", *here, "--prune")
        again = tmp_path / "again.yaml"
        production.ours("export", "-o", str(again), "--serving-task-id", task)
        kept = [re.sub(r"id: \w+", "id: …", path.read_text().partition("\n")[2]) for path in (file, again)]
        assert kept[0] == kept[1]
        assert "return {'ä': 1}" in kept[1]
        # The stock CLI reads what was written, and writes it all back with what it adds.
        production.stock("--id", task, "metrics", "remove", "--endpoint", "faq/1")
        assert "+ metrics faq/1" in production.ours("diff", *here).splitlines()
        assert 1 == len([line for line in production.ours("diff", *here).splitlines() if line[:1] in "+~-"])
