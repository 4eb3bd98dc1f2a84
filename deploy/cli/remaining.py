"""What is left of a long step, from what is known of it: its pace so far, and the bytes that an upload has read."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

_COUNTED: Final = re.compile(r"(\d+)(?: of |/)(\d+)")


class Pace:
    """Estimates the time that is left of counted work, by its pace since the first count."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kind: object = None
        self._first = self._newest = (0.0, 0.0)

    def counted(self, done: float, total: float, kind: object = None) -> Callable[[], str]:
        """Note that ``done`` of ``total`` is done; return what says the time left, empty while it is unknown.

        Another ``kind`` or total begins anew.
        """
        now = self._clock()
        if (kind, total) != self._kind or done < self._newest[1]:
            self._kind, self._first, self._newest = (kind, total), (now, done), (now, done)
        elif done > self._newest[1]:
            self._newest = now, done
        (began, first), (at, newest) = self._first, self._newest
        if newest <= first or at <= began:
            return str
        ends = at + (at - began) / (newest - first) * (total - newest)
        return lambda: f", about {max(0.0, ends - self._clock()):.0f} s left"

    def told(self, text: str) -> Callable[[], str]:
        """Return the same for a text with a count in it: ``PyTorch: 8 of 64 texts``, ``speed 3/16: …``."""
        found = _COUNTED.search(text)
        return str if found is None else self.counted(int(found[1]), int(found[2]), text[: found.start()])


def of_upload(folder: Path) -> Callable[[], str]:
    """Return what says how much of the package that is being read from ``folder`` is read, and the time left.

    The SDK reads it as fast as the server takes it, and tells nobody how far it is. Empty where ``/proc`` is missing.
    """
    pace = Pace()

    def left() -> str:
        read, size = max(_open_files(folder), default=(0, 0))
        if not size:
            return ""
        return f": {read / 1e6:.0f} of {size / 1e6:.0f} MB{pace.counted(read, size)()}"

    return left


def _open_files(folder: Path) -> list[tuple[int, int]]:
    """Return (bytes read, size) of each package under ``folder`` that this process has open."""
    found = []
    with contextlib.suppress(OSError):
        for descriptor in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                path = descriptor.readlink()
                if path.is_relative_to(folder) and path.suffix == ".zip" and path.name != "packing.zip":
                    told = Path("/proc/self/fdinfo", descriptor.name).read_text()
                    found.append((int(told.split()[1]), path.stat().st_size))
    return found
