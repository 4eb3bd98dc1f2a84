"""The memory of this process, and giving back what a burst has left behind.

The C library keeps what was freed in small pieces for later. After thousands of connections, or of large bodies, that
is tens or hundreds of megabytes, which nobody else on the machine can have. ``Leftovers`` asks for them once a burst is
over: seldom, because that takes milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")
_GROWN: Final = 1.2
_GROWN_BYTES: Final = 16 << 20


def resident() -> int:
    """Return the bytes of memory that this process has; 0 elsewhere than on Linux."""
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def give_back() -> None:
    """Give the system what was freed; nothing where the C library has no ``malloc_trim``."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


class Leftovers:
    """Gives back what is left of a burst, if the process has become a fifth larger and is quiet at two looks."""

    def __init__(self, memory: Callable[[], int] = resident, give: Callable[[], None] = give_back) -> None:
        self._memory = memory
        self._give = give
        self._least = 0
        """What it had when it was smallest since memory was last given back."""
        self._was_quiet = False

    def are_due(self, *, is_quiet: bool) -> bool:
        """Return whether there may be something to ``give``; called now and then."""
        was_quiet, self._was_quiet = self._was_quiet, is_quiet
        memory = self._memory()
        self._least = min(self._least or memory, memory)
        return is_quiet and was_quiet and memory > max(_GROWN * self._least, self._least + _GROWN_BYTES)

    def give(self) -> None:
        """Give it back; in a thread, as it takes milliseconds."""
        self._give()
        self._least = self._memory()
