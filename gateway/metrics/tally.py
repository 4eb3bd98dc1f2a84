"""Numbers that grow in plain Python and are carried to prometheus_client's children when someone looks.

Used by ``observer`` and ``custom``, in the event loop only. A child takes a lock per sample and, with several workers,
a write into a mapped file; adding here costs a tenth of that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any


class Count:
    """A number that grows here and is carried to a counter."""

    __slots__ = ("_child", "value")

    def __init__(self, child: Any) -> None:
        self._child = child
        self.value: float = 0

    def flush(self) -> None:
        """Carry and start over."""
        if self.value:
            self._child.inc(self.value)
            self.value = 0


class Last:
    """The newest value, carried to a gauge."""

    __slots__ = ("_child", "value")

    def __init__(self, child: Any) -> None:
        self._child = child
        self.value: float | None = None

    def flush(self) -> None:
        """Carry, if there is something new."""
        if self.value is not None:
            self._child.set(self.value)
            self.value = None


class Distribution:
    """A histogram that grows here and is carried to prometheus_client's buckets."""

    __slots__ = ("_bounds", "_child", "_counts", "_sum")

    def __init__(self, child: Any, bounds: Sequence[float]) -> None:
        self._child = child
        self._bounds = bounds
        self._counts: list[float] = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add(self, value: float, weight: float) -> None:
        """Count a value that stands for ``weight`` of them."""
        self._counts[bisect_left(self._bounds, value)] += weight
        self._sum += value * weight

    def flush(self) -> None:
        """Carry and start over."""
        if any(self._counts):
            # The child has no call for many observations at once; these two are what its own observe() adds to.
            for bucket, count in zip(self._child._buckets, self._counts, strict=True):  # noqa: SLF001
                if count:
                    bucket.inc(count)
            self._child._sum.inc(self._sum)  # noqa: SLF001
            self._counts = [0] * len(self._counts)
            self._sum = 0.0
