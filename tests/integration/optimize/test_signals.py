"""Ctrl-C while candidates are judged is Python's to handle, whatever engines came and went before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

AFTER_TWO_ENGINES = """
import os, pathlib, signal, sys, time
from deploy.bundles.judge.engine import Engine
from deploy.sync.model_folder.execution import Execution

signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background ignores it
first, second = (Engine(pathlib.Path(sys.argv[1]), Execution(engine="openvino"), threads=1, pads={}) for _ in range(2))
del first
del second
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_after_two_openvino_engines_is_an_interruption(graph: Path) -> None:
    """Freed in the order in which they were made; it was a segmentation fault on processors with AMX."""
    done = subprocess.run(
        [sys.executable, "-c", AFTER_TWO_ENGINES, str(graph)], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
