"""What a burst has left behind is given back when it is over, and seldom."""

from __future__ import annotations

import subprocess
import sys

from gateway.memory import Leftovers, resident

MB = 1 << 20


class Process:
    """A process whose memory is what a test says, and ``kept`` after memory was given back."""

    def __init__(self, kept: int) -> None:
        self.memory, self.kept, self.times = 100 * MB, kept, 0
        self.leftovers = Leftovers(lambda: self.memory, self.give)

    def give(self) -> None:
        """Count, and become smaller."""
        self.times, self.memory = self.times + 1, self.kept

    def look(self, *quiet: bool) -> None:
        """Look as the gateway does, once a second."""
        for is_quiet in quiet:
            if self.leftovers.are_due(is_quiet=is_quiet):
                self.leftovers.give()


def test_memory_is_given_back_when_a_burst_is_over() -> None:
    """Not while requests are worked on, nor in a pause of a second; then once."""
    process = Process(kept=120 * MB)
    process.look(True)
    process.memory = 300 * MB
    process.look(False, False, True, False)
    assert 0 == process.times
    process.look(True, True, True, True)
    assert (1, 120 * MB) == (process.times, process.memory)


def test_what_is_really_used_is_not_asked_for_again_and_again() -> None:
    """A model was loaded: nothing comes back, and until it has grown again nobody asks."""
    process = Process(kept=300 * MB)
    process.look(True)
    process.memory = 300 * MB
    process.look(*[True] * 50)
    assert 1 == process.times
    process.memory = 310 * MB
    process.look(*[True] * 50)
    assert 1 == process.times


def test_memory_of_many_small_pieces_comes_back() -> None:
    """In a process of its own: half of the pieces that were freed lie between others that are used."""
    program = (
        "from gateway.memory import give_back, resident\n"
        "pieces = [bytes(2000) for _ in range(100_000)]\n"
        "last = pieces[-1]\n"
        "del pieces[:-1]\n"
        "before = resident()\n"
        "give_back()\n"
        "print(before, resident())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    before, after = map(int, done.stdout.split())
    assert after <= before


def test_the_memory_of_this_process_is_known() -> None:
    """Linux tells it; elsewhere there is no such file, and it is 0."""
    assert resident() > 10 * MB or sys.platform != "linux"
