"""From a model's files to an endpoint that answers, in one command: `up --model` and `deploy`, with models that need no
export. What is exported first: tests/integration/optimize/test_command.py.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

from tests.e2e.test_up_demo import ROOT, Up, command
from tests.tiny import saved
from tests.waiting import LIMIT_S, until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

WORDS = ROOT / "deploy" / "laptop" / "demo" / "words_model"
"""A classifier that is an ONNX file already."""


def answered(printed: str) -> tuple[str, Any]:
    """The request that was printed to be pasted, and the answer behind it."""
    lines = printed.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("$ curl"))
    return lines[at].removeprefix("$ "), json.loads(lines[at + 1])


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Everything on this machine, and a model that was named."""
    running = Up(tmp_path_factory.mktemp("up"), "--model", str(WORDS))
    try:
        running.wait_ready()
        yield running
    finally:
        running.stop()


def test_up_with_a_model_serves_it_and_prints_a_request_with_its_answer(up: Up) -> None:
    """The version, what the model says, and what was typed in the stock tool for it."""
    request, answer = answered(up.printed())
    assert f"{up.gateway.removesuffix('/serve/')}/serve/words_model/1 " in request
    body = json.loads(shlex.split(request)[-1])
    assert body["text"]
    pasted = subprocess.run(["bash", "-c", request], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert answer["label"] == json.loads(pasted.stdout)["label"]
    bare = subprocess.run(
        ["bash", "-c", request.replace("/serve/words_model/1 ", "/serve/words_model ")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert answer["label"] == json.loads(bare.stdout)["label"], "when `deploy` has ended, the name answers too"
    argv = [*command(), "deploy", str(WORDS), "--endpoint", "words_model", "--state-dir", str(up.state)]
    again = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert "words_model/1 already serves exactly these files" in again.stderr
    assert answer == answered(again.stdout)[1]
    typed = re.findall(r"^\$ (clearml-serving .*)$", up.err.read_text(), re.M)
    assert ["upload", "add"] == [shlex.split(line)[4] for line in typed]


def test_what_triton_refuses_is_taken_back(up: Up, tmp_path: Path) -> None:
    """Else it would be the first version of its endpoint, which a bare name means."""
    x, y = ((name, TensorProto.FLOAT, ("batch", 4)) for name in "xy")
    saved(tmp_path / "own.onnx", [helper.make_node("NoSuch", ["x"], ["y"], domain="own")], [x], [y], "own")
    argv = [*command(), "deploy", str(tmp_path / "own.onnx"), "--endpoint", "own", "--state-dir", str(up.state)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=tmp_path)
    assert 1 == done.returncode
    assert "own/1 cannot be served" in done.stderr
    assert "the endpoint is removed again" in done.stderr

    def known() -> set[str]:
        with urllib.request.urlopen(f"{up.gateway.removesuffix('/serve/')}/v1/status", timeout=LIMIT_S) as answer:
            status = json.load(answer)
        return {one["url"] for one in [*status["endpoints"], *status["pending"]]}

    until(lambda: "own/1" not in known())
