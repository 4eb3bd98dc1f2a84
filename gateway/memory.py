"""The memory of this process, and how freed memory is returned to the system after a burst.

The C library keeps freed memory for later, per thread. After thousands of connections, large bodies or long texts (a
tokenizer takes some 60 bytes per character), that is tens or hundreds of megabytes that no other process can use.
``Leftovers`` returns them after a burst, and rarely, because it takes milliseconds.
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
    """Return the resident memory of this process in bytes; 0 on systems other than Linux."""
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def give_back() -> None:
    """Return freed memory to the system; does nothing if the C library has no ``malloc_trim``."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


class Leftovers:
    """Returns freed memory if the process has grown by a fifth and was quiet at two checks in a row."""

    def __init__(self, memory: Callable[[], int] = resident, give: Callable[[], None] = give_back) -> None:
        self._memory = memory
        self._give = give
        self._least = 0
        """The smallest memory in bytes since memory was last returned."""
        self._was_quiet = False

    def are_due(self, *, is_quiet: bool) -> bool:
        """Return whether ``give`` may return memory; called periodically."""
        was_quiet, self._was_quiet = self._was_quiet, is_quiet
        memory = self._memory()
        self._least = min(self._least or memory, memory)
        return is_quiet and was_quiet and memory > max(_GROWN * self._least, self._least + _GROWN_BYTES)

    def give(self) -> None:
        """Return the memory. Takes milliseconds, so call it in a thread."""
        self._give()
        self._least = self._memory()
