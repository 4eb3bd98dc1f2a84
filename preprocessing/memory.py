"""Returns memory that long texts took to the operating system.

The C library keeps freed memory per thread. A tokenizer takes some 60 bytes per character of a text, so a few threads
that once tokenized a megabyte would each keep half a gigabyte.
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
    """glibc's allocator; others have no such function."""

    def __init__(self) -> None:
        self._trim: Any = None
        with contextlib.suppress(TypeError):  # on Windows, CDLL needs a name
            self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._at = 0.0

    def trim(self) -> None:
        """Return free memory, at most once per second. Takes milliseconds and releases the interpreter lock."""
        now = time.monotonic()
        if self._trim is not None and now - self._at >= _PERIOD_S:
            self._at = now
            self._trim(0)


_ALLOCATOR: Final = _Allocator()


def give_back(texts: Texts) -> None:
    """Return memory after these texts (or pairs) were tokenized; does nothing if they were short."""
    if total_chars(texts) > _MANY_CHARS:
        _ALLOCATOR.trim()


def total_chars(texts: Texts) -> int:
    """Return the characters of texts or pairs."""
    return sum(len(text) if type(text) is str else len(text[0]) + len(text[1]) for text in texts)
