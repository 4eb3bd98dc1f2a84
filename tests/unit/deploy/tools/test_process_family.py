"""A family's leader ends with whoever started it, and a program that is not there is named before anything starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from deploy.tools.process_family import leader_of


def test_the_command_line_of_a_leader_runs_the_program_itself() -> None:
    """Found on PATH, with its arguments; what asks the kernel for the signal is replaced by it."""
    done = subprocess.run(leader_of([sys.executable, "-c", "print('ran')"]), capture_output=True, text=True, check=True)
    assert "ran\n" == done.stdout


def test_a_program_that_is_not_there_is_named() -> None:
    """Not started as a child that dies of it."""
    with pytest.raises(FileNotFoundError, match=r"no such program: 'no-such-program'"):
        leader_of(["no-such-program", "--version"])
