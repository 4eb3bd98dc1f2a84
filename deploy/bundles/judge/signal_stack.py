"""Keeps Ctrl-C working after OpenVINO was used.

On processors with AMX, OpenVINO gives the thread that compiles a model its own stack for signal handlers, and restores
the thread's former one when the model is freed. If two models are freed in the order in which they were made, the
thread is left with the stack of the first one, whose memory is gone: the next signal that Python handles ends the
process (SIGSEGV), without any cleanup. Seen with OpenVINO 2026.4.1, ``sigaltstack(2)``.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class _Stack(ctypes.Structure):
    """``stack_t`` of Linux."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def former_signal_stack() -> Iterator[None]:
    """Keep this thread's current signal stack, usually none, whatever is loaded inside the block."""
    if sys.platform != "linux":
        yield
        return
    sigaltstack = ctypes.CDLL(None).sigaltstack
    former = _Stack()
    sigaltstack(None, ctypes.byref(former))
    try:
        yield
    finally:
        sigaltstack(ctypes.byref(former), None)
