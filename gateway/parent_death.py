"""Makes processes end when the process that started them ends in any way (Linux: PR_SET_PDEATHSIG).

Our own children call ``end_with_parent`` when they start. Other programs are started with the command line of
``ending_with_parent``, which runs this file first, because code between fork and exec may deadlock in a process with
threads. This file imports nothing of ours and little else, because children wait for it.

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


def end_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Ask the kernel to send this process signal ``number`` when the thread that started it ends.

    ``parent`` is the id of that thread's process; if it has ended already, the signal is sent at once. On systems other
    than Linux, only the latter happens.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def ending_with_parent(argv: Sequence[str], number: int = signal.SIGKILL) -> list[str]:
    """Return the command line that runs ``argv`` as a child which gets signal ``number`` when this process ends.

    The child's process id is that of ``argv``'s program. Start it from a thread that lives as long as this process.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(int(number)), *argv]


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]), int(sys.argv[2]))
    os.execvp(sys.argv[3], sys.argv[3:])  # noqa: S606 - the command line from `ending_with_parent`, without a shell
