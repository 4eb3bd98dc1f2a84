"""Processes that end with the process that started them, however that one ends (Linux: PR_SET_PDEATHSIG).

A child that is ours calls ``end_with_parent`` when it starts. Any other program is started with the command line of
``ending_with_parent``, which runs this file first: code between fork and exec of a process that has threads may
deadlock. The one place that asks the kernel for it. Imports nothing of ours and little else: a child waits for it.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


_ENDS = getattr(signal, "SIGKILL", signal.SIGTERM)
"""Windows knows one way to end a process."""


def end_with_parent(parent: int, number: int = _ENDS) -> None:
    """Have the kernel send this process signal ``number`` when the thread that started it is gone.

    ``parent`` is the process id of that thread's process; if it is gone already, the signal is sent at once. On other
    systems than Linux only the latter.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def ending_with_parent(argv: Sequence[str], number: int = _ENDS) -> list[str]:
    """Return the command line that runs ``argv`` as a child of this process which gets ``number`` when we are gone.

    The process id is that of ``argv``'s program; it has to be started from a thread that lives as long as it does.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(int(number)), *argv]


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]), int(sys.argv[2]))
    os.execvp(sys.argv[3], sys.argv[3:])  # noqa: S606 - what `ending_with_parent` was given, without a shell
