"""The Task of a fresh stack."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from deploy.laptop.demo import seed
from tests.waiting import LIMIT_S


@pytest.mark.parametrize(
    ("endpoints", "versions"),
    [((), ["1", "2"]), (("demo/1",), ["2"]), (("demo/1", "demo/2"), []), (("mine",), []), (("demo/1", "mine"), [])],
)
def test_setup_adds_what_is_missing_and_touches_nothing_of_others(endpoints: Any, versions: list[str]) -> None:
    """It runs at every start."""
    assert versions == seed.left_to_do(frozenset(endpoints))


def test_beside_a_server_it_tries_again_and_ends_when_it_is_told_to() -> None:
    """It never ends by itself: its container would be restarted, and the pod would not be ready."""
    code = (
        "from deploy.laptop.demo import seed\n"
        "codes = iter([1, 1, 0])\n"
        "def seeded():\n    code = next(codes)\n    print('ended', code, flush=True)\n    return code\n"
        "seed.seeded, seed.AGAIN_S = seeded, 0.01\n"
        "seed.main(['--stay'])"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = [process.stdout.readline().strip() for _ in range(4)]
            assert ["ended 1", "ended 1", "ended 0", "waits until it is ended"] == said
            process.terminate()
            assert 0 == process.wait(LIMIT_S)
        finally:
            process.kill()
