"""What ends with the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from gateway.parent_death import ending_with_parent

ROOT = Path(__file__).parents[3]


def test_a_program_has_the_process_id_of_the_one_that_was_started() -> None:
    """Nothing stays between a parent and its child: signals and exit codes are the program's own."""
    with subprocess.Popen(
        ending_with_parent(["sh", "-c", "echo $$; exit 3"]), stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.pid == int(child.stdout.readline())
    assert child.returncode == 3


def test_a_program_whose_parent_is_gone_already_gets_the_signal_at_once() -> None:
    """Between the fork and the question to the kernel a parent can end: nobody would ever end the child."""
    started = ending_with_parent(["sh", "-c", "exit 0"], signal.SIGTERM)
    started[started.index(str(os.getpid()))] = "1"  # as of another process than this one
    assert subprocess.run(started, check=False).returncode == -signal.SIGTERM


def test_one_place_asks_the_kernel() -> None:
    """Five did, each in its own way."""
    asking = [
        str(file.relative_to(ROOT))
        for folder in ("gateway", "preprocessing", "deploy", "benchmarks", "dashboards")
        for file in sorted((ROOT / folder).rglob("*.py"))
        if "prctl(" in file.read_text("utf-8")
    ]
    assert asking == ["gateway/parent_death.py"]


def test_it_needs_nothing_of_ours() -> None:
    """Each child of a supervisor waits for this file: the standard library, and no more of it than it uses."""
    code = "import sys, runpy; runpy.run_path(sys.argv[1]); print(*sorted(sys.modules))"
    path = str(ROOT / "gateway" / "parent_death.py")
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, path], capture_output=True, text=True, check=True)
    assert not {"asyncio", "logging", "subprocess", "gateway"} & set(done.stdout.split())
