"""Memory is returned to the system after a burst, and rarely."""

from __future__ import annotations

import subprocess
import sys

from gateway.memory import Leftovers, resident

MB = 1 << 20


class Process:
    """A process with the memory that a test sets, and ``kept`` after returning memory."""

    def __init__(self, kept: int) -> None:
        self.memory, self.kept, self.times = 100 * MB, kept, 0
        self.leftovers = Leftovers(lambda: self.memory, self.give)

    def give(self) -> None:
        """Count, and shrink."""
        self.times, self.memory = self.times + 1, self.kept

    def look(self, *quiet: bool) -> None:
        """Check once a second, as the gateway does."""
        for is_quiet in quiet:
            if self.leftovers.are_due(is_quiet=is_quiet):
                self.leftovers.give()


def test_memory_is_given_back_when_a_burst_is_over() -> None:
    """Once, and not during requests or a pause of a second."""
    process = Process(kept=120 * MB)
    process.look(True)
    process.memory = 300 * MB
    process.look(False, False, True, False)
    assert 0 == process.times
    process.look(True, True, True, True)
    assert (1, 120 * MB) == (process.times, process.memory)


def test_memory_in_use_is_not_tried_repeatedly() -> None:
    """A model was loaded and nothing can be returned. The next attempt waits for further growth."""
    process = Process(kept=300 * MB)
    process.look(True)
    process.memory = 300 * MB
    process.look(*[True] * 50)
    assert 1 == process.times
    process.memory = 310 * MB
    process.look(*[True] * 50)
    assert 1 == process.times


def test_memory_of_many_small_pieces_is_returned() -> None:
    """In its own process: half of the freed pieces are between used ones."""
    program = (
        "from gateway.memory import give_back, resident\n"
        "pieces = [bytes(2000) for _ in range(100_000)]\n"
        "last = pieces[-1]\n"
        "del pieces[:-1]\n"
        "before = resident()\n"
        "give_back()\n"
        "print(before, resident())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert after <= before


def test_the_memory_of_this_process_is_known() -> None:
    """From Linux. On other systems it is 0."""
    assert resident() > 10 * MB or sys.platform != "linux"
