"""A family's leader ends with its parent, and a missing program is named before anything starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from deploy.tools.process_family import leader_of


def test_the_command_line_of_a_leader_runs_the_program_itself() -> None:
    """The program is found on PATH and replaces the process that sets the parent-death signal."""
    done = subprocess.run(leader_of([sys.executable, "-c", "print('ran')"]), capture_output=True, text=True, check=True)
    assert "ran\n" == done.stdout


def test_a_program_that_is_not_there_is_named() -> None:
    """The error comes before a child is started."""
    with pytest.raises(FileNotFoundError, match=r"no such program: 'no-such-program'"):
        leader_of(["no-such-program", "--version"])
