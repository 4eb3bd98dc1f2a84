"""The examples as their readmes tell them: the commands are taken from there and run beside `triton-gateway up`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import warm
from tests.e2e.test_up_demo import ROOT, Up, clean_environment
from tests.waiting import LIMIT_S, until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

FOLDERS = ("sklearn", "xgboost", "lightgbm", "custom", "huggingface", "pipeline", "async", "ensemble")


def commands(name: str) -> tuple[list[str], str, str]:
    """What a readme has typed before and after the change is live, and the answer it shows."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "examples" / name / "readme.md").read_text(), re.S)
    assert 2 == len(blocks)
    before = re.split(r"^\$ ", blocks[0].replace("\\\n", " "), flags=re.M)[1:]
    call, answer = blocks[1].replace("\\\n", " ").removeprefix("$ ").split("\n", 1)
    return [line.strip() for line in before], call, answer.strip()


@dataclass
class Running:
    """`up` in a folder that has the examples beside its state."""

    up: Up
    environ: dict[str, str]

    @property
    def address(self) -> str:
        """The gateway's, as curl is told it."""
        return self.up.gateway.removeprefix("http://")

    def type(self, name: str, *lines: str) -> str:
        """Run lines in one shell in an example's folder."""
        done = subprocess.run(
            ["bash", "-ec", "\n".join(lines)], cwd=self.up.folder / "examples" / name, env=self.environ,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        assert 0 == done.returncode, f"{lines}\n{done.stdout}"
        return done.stdout


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Everything up, every example trained and added."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / ".triton-gateway").symlink_to("state")
    environ = clean_environment(folder / "home") | {
        "PATH": f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "NO_PROXY": "*",
    }  # fmt: skip
    tool = folder / "clearml-serving"
    settled = f"CLEARML_CACHE_DIR={folder}/cache CLEARML_CONFIG_FILE=${{CLEARML_CONFIG_FILE:-{folder}/none.conf}}"
    # Two stock commands at once each write the whole Task back: an endpoint is lost, as on the real server.
    tool_itself = shlex.join(("flock", str(folder / "lock"), sys.executable, *warm.tool()))
    tool.write_text(f'#!/bin/sh\n{settled} exec {tool_itself} "$@"\n')
    tool.chmod(0o755)
    up = Up(folder, env=environ)
    try:
        up.wait_ready()
        stack = Running(up, environ)
        with ThreadPoolExecutor(2) as two:
            list(two.map(lambda name: stack.type(name, *commands(name)[0]), FOLDERS))
        yield stack
    finally:
        up.stop()


@pytest.mark.parametrize("name", FOLDERS)
def test_example_trains_registers_is_added_and_answers(running: Running, name: str) -> None:
    """What the readme shows is what comes."""
    _, call, answer = commands(name)
    pattern = re.escape(answer).replace("…", r"[\d.e-]*")
    ask = call.replace("localhost:8080", running.address)
    # 404 and 503 mean that it is not live yet, as does a pipeline whose parts are not.
    until(lambda: re.fullmatch(pattern, running.type(name, ask).strip()), pause=0.5, what=answer)


def test_an_example_that_checks_bodies_tells_what_is_wrong(running: Running) -> None:
    """422, with the field."""
    ask = f"curl -s -w ' %{{http_code}}' {running.address}/serve/lightgbm-example -d '{{\"flowers\": [[1, 2]]}}'"
    ask += " -H 'content-type: application/json'"
    got = until(lambda: (said := running.type("lightgbm", ask)).endswith(" 422") and said, pause=0.5)
    assert re.search(r"flowers\.0\.2\\n +Field required", got)
