"""The parent of several workers, with minimal workers: those that end or hang are replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import LIMIT_S, until

PROGRAM = """
import os, signal, sys, threading, time
from pathlib import Path
from gateway.workers import Workers
folder = Path(sys.argv[1])

def told_at_once():
    if (folder / "told-at-once").exists():
        (folder / "told-at-once").unlink()
        os.kill(os.getpid(), signal.SIGTERM)

os.register_at_fork(after_in_child=told_at_once)

class Server:
    started = False
    def run(self):
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        if (folder / "broken").exists():
            return
        (folder / f"worker-{os.getpid()}").touch()
        self.started = True
        while not stop.wait(0.02):
            pass
        (folder / f"ended-{os.getpid()}").touch()

sys.exit(Workers(Server, 2, drain=300.0, silence_timeout=float(sys.argv[2])).run())
"""


class Stand:
    """A parent with two workers, and their files."""

    def __init__(self, folder: Path, silence_timeout: float = 3600.0) -> None:
        self.folder = folder
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(folder), str(silence_timeout)], stderr=log
            )

    def log(self) -> str:
        """Return the log of the parent and its workers."""
        return (self.folder / "log").read_text()

    def workers(self) -> set[int]:
        """Return the ids of running workers that have served."""
        found = {int(path.name.partition("-")[2]) for path in self.folder.glob("worker-*")}
        return {pid for pid in found if Path(f"/proc/{pid}").exists()}


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    """Two workers that serve."""
    one = Stand(tmp_path)
    until(lambda: len(one.workers()) == 2)
    yield one
    one.process.kill()
    one.process.wait()
    for pid in one.workers():
        os.kill(pid, signal.SIGKILL)


def test_a_worker_that_hangs_is_replaced(tmp_path: Path) -> None:
    """Stopped by a signal, it sends no heartbeat. The other one stays."""
    one = Stand(tmp_path, silence_timeout=10.0)
    try:
        until(lambda: len(one.workers()) == 2)
        stopped, other = sorted(one.workers())
        os.kill(stopped, signal.SIGSTOP)
        until(lambda: stopped not in one.workers() and len(one.workers()) == 2)
        assert other in one.workers()
    finally:
        before = one.workers()
        one.process.terminate()
        assert 0 == one.process.wait(LIMIT_S)
    assert before == {int(path.name.partition("-")[2]) for path in tmp_path.glob("ended-*")}  # each by itself


def test_a_stop_right_after_the_fork_reaches_the_worker(stand: Stand) -> None:
    """Before it has its own handlers. The handlers inherited from its parent would ignore the signal."""
    (stand.folder / "told-at-once").touch()
    first = min(stand.workers())
    os.kill(first, signal.SIGKILL)
    until(lambda: 2 == stand.log().count("is replaced"))
    until(lambda: first not in stand.workers() and len(stand.workers()) == 2)
    # the parent takes none while it forks
    until(lambda: {"0" * 16} == {_blocked(pid) for pid in (stand.process.pid, *stand.workers())})


def _blocked(pid: int) -> str:
    """Return the blocked signals of a process, as Linux writes them; 2: SIGINT, 4000: SIGTERM."""
    found = [line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line[:7] == "SigBlk:"]
    return found[0]


def test_workers_that_can_never_start_end_the_parent(tmp_path: Path) -> None:
    """A broken configuration is reported at once. One that breaks later is tried again."""
    (tmp_path / "broken").touch()
    assert 1 == Stand(tmp_path).process.wait(LIMIT_S)
