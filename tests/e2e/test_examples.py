"""The examples as their readmes tell them: the commands are taken from there and run beside `triton-gateway up`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import warm
from tests.waiting import LIMIT_S, until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

ROOT = Path(__file__).parents[2]
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

    folder: Path
    port: int
    out: Path
    environ: dict[str, str]

    def type(self, name: str, *lines: str) -> str:
        """Run lines in one shell in an example's folder."""
        done = subprocess.run(
            ["bash", "-ec", "\n".join(lines)], cwd=self.folder / "examples" / name, env=self.environ,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        assert 0 == done.returncode, f"{lines}\n{done.stdout}"
        return done.stdout


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Everything up, every example trained and added."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(ROOT / "examples", folder / "examples")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CLEARML_", "TRAINS_", "TRITON_GATEWAY_", "XDG_"))}
    environ = {
        **kept, "HOME": str(folder), "PYTHONPATH": str(ROOT), "COLUMNS": "200", "NO_PROXY": "*",
        "PATH": f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    tool = folder / "clearml-serving"
    settled = f"CLEARML_CACHE_DIR={folder}/cache CLEARML_CONFIG_FILE=${{CLEARML_CONFIG_FILE:-{folder}/none.conf}}"
    # Two stock commands at once each write the whole Task back: an endpoint is lost, as on the real server.
    command = shlex.join(("flock", str(folder / "lock"), sys.executable, *warm.tool()))
    tool.write_text(f'#!/bin/sh\n{settled} exec {command} "$@"\n')
    tool.chmod(0o755)
    out = folder / "out"
    with out.open("w") as log:
        up = subprocess.Popen(
            [sys.executable, "-P", "-m", "deploy.cli.main", "up", "--port", "0", "--controlplane-port", "0"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, env=environ, start_new_session=True,
        )  # fmt: skip
    try:
        address = re.compile(r"gateway {2,}http://[\d.]+:(\d+)/serve/")
        found = until(lambda: address.search(out.read_text()) or up.poll() is not None)
        assert up.poll() is None, out.read_text()
        stack = Running(folder, int(found[1]), out, environ)
        with ThreadPoolExecutor(2) as two:
            list(two.map(lambda name: stack.type(name, *commands(name)[0]), FOLDERS))
        yield stack
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(timeout=LIMIT_S)


@pytest.mark.parametrize("name", FOLDERS)
def test_example_trains_registers_is_added_and_answers(running: Running, name: str) -> None:
    """What the readme shows is what comes."""
    _, call, answer = commands(name)
    pattern = re.escape(answer).replace("…", r"[\d.e-]*")
    ask = call.replace("localhost:8080", f"127.0.0.1:{running.port}")
    # 404 and 503 mean that it is not live yet, as does a pipeline whose parts are not.
    until(lambda: re.fullmatch(pattern, running.type(name, ask).strip()), pause=0.5, what=answer)


def test_an_example_that_checks_bodies_tells_what_is_wrong(running: Running) -> None:
    """422, with the field."""
    ask = f"curl -s -w ' %{{http_code}}' 127.0.0.1:{running.port}/serve/lightgbm-example -d '{{\"flowers\": [[1, 2]]}}'"
    ask += " -H 'content-type: application/json'"
    got = until(lambda: (said := running.type("lightgbm", ask)).endswith(" 422") and said, pause=0.5)
    assert re.search(r"flowers\.0\.2\\n +Field required", got)
