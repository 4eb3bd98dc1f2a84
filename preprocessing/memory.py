"""Memory that long texts took, back to the system.

The C library keeps what was freed, per thread: a tokenizer takes some 60 bytes for each character of a text while it
reads it, so that a few threads that once read a megabyte each hold half a gigabyte of nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from typing import Any, Final

from preprocessing.types import Texts

_PERIOD_S: Final = 1.0
_MANY_CHARS: Final = 200_000


class _Allocator:
    """glibc's; of others there is nothing to ask."""

    def __init__(self) -> None:
        self._trim: Any = None
        with contextlib.suppress(TypeError):  # Windows has no library without a name
            self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._at = 0.0

    def trim(self) -> None:
        """Give free memory back, at most once per second; takes milliseconds and lets go of the interpreter lock."""
        now = time.monotonic()
        if self._trim is not None and now - self._at >= _PERIOD_S:
            self._at = now
            self._trim(0)


_ALLOCATOR: Final = _Allocator()


def give_back(texts: Texts) -> None:
    """Call after these texts (or pairs) were tokenized; does something if they were long."""
    if sum(len(text) if type(text) is str else len(text[0]) + len(text[1]) for text in texts) > _MANY_CHARS:
        _ALLOCATOR.trim()
