"""Processes end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from gateway.parent_death import ending_with_parent

ROOT = Path(__file__).parents[3]


def test_a_program_keeps_the_id_of_the_started_process() -> None:
    """No process is between parent and child, so signals and exit codes are the program's own."""
    with subprocess.Popen(
        ending_with_parent(["sh", "-c", "echo $$; exit 3"]), stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.pid == int(child.stdout.readline())
    assert child.returncode == 3


def test_a_program_whose_parent_is_gone_already_gets_the_signal_at_once() -> None:
    """A parent can end between the fork and the request to the kernel. Nothing else would end the child."""
    started = ending_with_parent(["sh", "-c", "exit 0"], signal.SIGTERM)
    started[started.index(str(os.getpid()))] = "1"  # as of another process than this one
    assert subprocess.run(started, check=False).returncode == -signal.SIGTERM
